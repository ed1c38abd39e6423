// SPDX-License-Identifier: GPL-2.0
/*
 * Compares the prototypes in stackmap_functions.h with the BTF of the running kernel.
 *
 * The module calls functions of the kernel that no header declares. A call with other arguments
 * than the function takes could crash, so this is done before the first one.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/build_bug.h>
#include <linux/err.h>
#include <linux/errno.h>
#include <linux/printk.h>
#include <linux/seq_buf.h>
#include <linux/string.h>

#include "shim.h"

#ifdef CONFIG_BPF_SYSCALL
STACKMAP_STATIC_CALL(NULL, stackmap_btf_vmlinux, bpf_get_btf_vmlinux);
STACKMAP_STATIC_CALL(NULL, stackmap_btf_find, btf_find_by_name_kind);
STACKMAP_STATIC_CALL(NULL, stackmap_btf_type, btf_type_by_id);

#define TEXT_LEN	128

/* A type, as far as calling a function depends on it. */
#define TYPE(type)					\
	(__same_type(type, void) ? "void" :		\
	 __same_type(type, bool) ? "bool" :		\
	 __same_type(type, int) ? "s32" :		\
	 __same_type(type, unsigned int) ? "u32" :	\
	 __same_type(type, unsigned long) ? "u64" : "ptr")

#define TYPES_1(r, a)			{ TYPE(r), TYPE(a) }
#define TYPES_2(r, a, b)		{ TYPE(r), TYPE(a), TYPE(b) }
#define TYPES_3(r, a, b, c)		{ TYPE(r), TYPE(a), TYPE(b), TYPE(c) }
#define TYPES_5(r, a, b, c, d, e)	{ TYPE(r), TYPE(a), TYPE(b), TYPE(c), TYPE(d), TYPE(e) }

#define PROTOTYPE(nr, r, func, ...)						\
{										\
	.name	= #func + BUILD_BUG_ON_ZERO(!__same_type(func, r(__VA_ARGS__))),	\
	.types	= TYPES_##nr(r, __VA_ARGS__),					\
}

/* Each function of stackmap_functions.h, what it returns, and what it takes. */
static const struct prototype {
	const char *name;
	const char *types[7];
} prototypes[] = {
	PROTOTYPE(5, void, __ftrace_trace_stack, struct trace_array *, struct trace_buffer *,
		  unsigned int, int, struct pt_regs *),
	PROTOTYPE(2, void, trace_buffer_unlock_commit_nostack, struct trace_buffer *,
		  struct ring_buffer_event *),
	PROTOTYPE(3, int, seq_print_ip_sym, struct trace_seq *, unsigned long, unsigned long),
	PROTOTYPE(1, bool, tracer_tracing_is_on, struct trace_array *),
};

/* Prints a prototype of the module. */
static void print_ours(struct seq_buf *text, const struct prototype *prototype)
{
	const char * const *type = prototype->types + 1;

	for (; *type; type++)
		seq_buf_printf(text, "%s%s", type == prototype->types + 1 ? "(" : ", ", *type);
	seq_buf_printf(text, ") -> %s", prototype->types[0]);
}

/* Prints a type of the kernel, without the names that it has and what it is qualified by. */
static void print_type(struct seq_buf *text, const struct btf *btf, u32 id)
{
	const struct btf_type *type;

	for (; id; id = type->type) {
		type = static_call(stackmap_btf_type)(btf, id);
		switch (type ? BTF_INFO_KIND(type->info) : BTF_KIND_UNKN) {
		case BTF_KIND_TYPEDEF:
		case BTF_KIND_VOLATILE:
		case BTF_KIND_CONST:
		case BTF_KIND_RESTRICT:
		case BTF_KIND_TYPE_TAG:
			continue;
		case BTF_KIND_PTR:
			seq_buf_printf(text, "ptr");
			return;
		case BTF_KIND_INT:
			if (btf_int_encoding(type) & BTF_INT_BOOL)
				seq_buf_printf(text, "bool");
			else
				seq_buf_printf(text, "%c%02u",
					       btf_type_is_signed_int(type) ? 's' : 'u',
					       8 * type->size);
			return;
		default:
			seq_buf_printf(text, "other");
			return;
		}
	}
	seq_buf_printf(text, "void");
}

/* Prints a prototype of the kernel. Returns whether BTF has it. */
static bool print_theirs(struct seq_buf *text, const struct btf *btf, const char *name)
{
	const s32 id = static_call(stackmap_btf_find)(btf, name, BTF_KIND_FUNC);
	const struct btf_type *proto;
	unsigned int i;

	if (id <= 0)
		return false;
	proto = static_call(stackmap_btf_type)(btf, id);
	proto = static_call(stackmap_btf_type)(btf, proto->type);
	for (i = 0; i < BTF_INFO_VLEN(proto->info); i++) {
		seq_buf_printf(text, i ? ", " : "(");
		print_type(text, btf, ((const struct btf_param *)(proto + 1))[i].type);
	}
	seq_buf_printf(text, ") -> ");
	print_type(text, btf, proto->type);
	return true;
}

/* The kernel's BTF; NULL if there is none, or it cannot be read. */
static const struct btf *find_btf(void)
{
	void *vmlinux = stackmap_symbol_find("bpf_get_btf_vmlinux");
	void *find = stackmap_symbol_find("btf_find_by_name_kind");
	void *type = stackmap_symbol_find("btf_type_by_id");
	const struct btf *btf;

	if (!vmlinux || !find || !type)
		return NULL;
	static_call_update(stackmap_btf_vmlinux, vmlinux);
	static_call_update(stackmap_btf_find, find);
	static_call_update(stackmap_btf_type, type);
	btf = static_call(stackmap_btf_vmlinux)();
	return IS_ERR(btf) ? NULL : btf;
}

#endif

/**
 * stackmap_prototypes_check - compare the prototypes of stackmap_functions.h with the kernel's
 *
 * Context: process, may sleep. stackmap_symbols_resolve() has returned 0.
 * Return: 0, also for what cannot be compared; -ENOEXEC if one differs. The log has both.
 */
int stackmap_prototypes_check(void)
{
#ifdef CONFIG_BPF_SYSCALL
	const struct btf *btf = find_btf();
	unsigned int i;

	for (i = 0; btf && i < ARRAY_SIZE(prototypes); i++) {
		const char *name = prototypes[i].name;
		DECLARE_SEQ_BUF(theirs, TEXT_LEN);
		DECLARE_SEQ_BUF(ours, TEXT_LEN);

		if (!print_theirs(&theirs, btf, name)) {
			pr_notice("%s() cannot be compared: it is not in this kernel's BTF\n",
				  name);
			continue;
		}
		print_ours(&ours, &prototypes[i]);
		if (strcmp(seq_buf_str(&theirs), seq_buf_str(&ours))) {
			pr_err("%s(): the module was built for %s, this kernel has %s\n", name,
			       seq_buf_str(&ours), seq_buf_str(&theirs));
			return -ENOEXEC;
		}
	}
	if (btf)
		return 0;
#endif
	pr_notice("unexported functions cannot be compared: this kernel has no BTF\n");
	return 0;
}
