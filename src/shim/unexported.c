// SPDX-License-Identifier: GPL-2.0
/*
 * Finds the functions and variables that the kernel has but does not export.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/errno.h>
#include <linux/kprobes.h>
#include <linux/printk.h>
#include <linux/stringify.h>

#include "shim.h"

STACKMAP_STATIC_CALL(NULL, stackmap_kallsyms, kallsyms_lookup_name);
STACKMAP_STATIC_CALL(NULL, stackmap_trace_stack_orig, __ftrace_trace_stack);
STACKMAP_STATIC_CALL(NULL, stackmap_commit, trace_buffer_unlock_commit_nostack);
STACKMAP_STATIC_CALL(NULL, stackmap_save_regs, stack_trace_save_regs);
STACKMAP_STATIC_CALL(NULL, stackmap_seq_print_ip, seq_print_ip_sym);
STACKMAP_STATIC_CALL(NULL, stackmap_tracefs_create_orig, tracefs_create_file);
STACKMAP_STATIC_CALL(NULL, stackmap_tracefs_remove_orig, tracefs_remove);
STACKMAP_STATIC_CALL(NULL, stackmap_tr_is_on, tracer_tracing_is_on);
STACKMAP_STATIC_CALL(NULL, stackmap_module_text, __module_text_address);
STACKMAP_STATIC_CALL(NULL, stackmap_get_kprobe, get_kprobe);
/* Without the function, nothing is taken for BPF text. */
STACKMAP_STATIC_CALL(RET0, stackmap_bpf_text, is_bpf_text_address);
#ifdef CONFIG_X86_64
STACKMAP_STATIC_CALL(NULL, stackmap_text_poke, smp_text_poke_single);
#elif defined(CONFIG_ARM64)
STACKMAP_STATIC_CALL(NULL, stackmap_patch_text, aarch64_insn_patch_text);
STACKMAP_STATIC_CALL(NULL, stackmap_copy_text, aarch64_insn_copy);
#endif
#ifdef CONFIG_DYNAMIC_FTRACE
STACKMAP_STATIC_CALL(NULL, stackmap_ops_trampoline, ftrace_ops_trampoline);
#endif

struct stackmap_symbols stackmap_symbols __ro_after_init;
struct stackmap_facts stackmap_facts __ro_after_init;

/*
 * kallsyms_lookup_name() finds everything else. A kprobe that is registered but never armed tells
 * where it is; the address may be past the ENDBR of the entry, which a direct call may skip.
 */
static int find_kallsyms(void)
{
	struct kprobe kp = {
		.symbol_name = "kallsyms_lookup_name",
		.flags = KPROBE_FLAG_DISABLED,
	};
	int ret = register_kprobe(&kp);

	if (ret) {
		pr_err("kallsyms_lookup_name not found: cannot register a kprobe (%d)\n", ret);
		return ret;
	}
	static_call_update(stackmap_kallsyms, (void *)kp.addr);
	unregister_kprobe(&kp);
	return 0;
}

/**
 * stackmap_symbol_find - find something that the kernel does not export
 * @name: its name
 *
 * Context: process, may sleep. stackmap_symbols_resolve() has returned 0.
 * Return: its address, NULL if there is no such symbol.
 */
void *stackmap_symbol_find(const char *name)
{
	return (void *)static_call(stackmap_kallsyms)(name);
}

static unsigned long find_address(const char *name)
{
	return (unsigned long)stackmap_symbol_find(name);
}

static void *need(const char *name, int *ret)
{
	void *addr = stackmap_symbol_find(name);

	if (!addr) {
		pr_err("this kernel has no symbol %s\n", name);
		*ret = -ENOENT;
	}
	return addr;
}

/* What learning rules needs. */
static void find_unwinder(struct stackmap_symbols *syms)
{
	void *module_text = stackmap_symbol_find("__module_text_address");
	void *bpf_text = stackmap_symbol_find("is_bpf_text_address");

#ifdef CONFIG_ARM64
	syms->irq_stack_ptr = stackmap_symbol_find("irq_stack_ptr");
	/* Both are looked for on stacks, where they are not what a function has returned to. */
	syms->can_unwind = syms->irq_stack_ptr &&
		(stackmap_facts.return_to_handler || !IS_ENABLED(CONFIG_FUNCTION_GRAPH_TRACER)) &&
		(stackmap_facts.rethook_trampoline || !IS_ENABLED(CONFIG_KRETPROBES));
#else
	syms->can_unwind = stackmap_facts.stext && stackmap_facts.etext && module_text;
#endif
	static_call_update(stackmap_module_text, module_text);
	if (bpf_text)
		static_call_update(stackmap_bpf_text, bpf_text);
}

/* What the jump needs. */
static void find_poking(struct stackmap_symbols *syms)
{
	void *get_probe = stackmap_symbol_find("get_kprobe");
#ifdef CONFIG_ARM64
	void *poke = stackmap_symbol_find("aarch64_insn_patch_text");
	void *copy = stackmap_symbol_find("aarch64_insn_copy");

	static_call_update(stackmap_patch_text, poke);
	static_call_update(stackmap_copy_text, copy);
	syms->can_poke = copy && stackmap_facts.etext;
#else
	void *poke = stackmap_symbol_find(__stringify(smp_text_poke_single));

	static_call_update(stackmap_text_poke, poke);
	syms->can_poke = true;
#endif
	static_call_update(stackmap_get_kprobe, get_probe);
	syms->text_mutex = stackmap_symbol_find("text_mutex");
	syms->kprobe_mutex = stackmap_symbol_find("kprobe_mutex");
	syms->can_poke = syms->can_poke && syms->text_mutex && syms->kprobe_mutex && get_probe &&
			 poke;
}

/**
 * stackmap_symbols_resolve - find all symbols
 *
 * What is missing is named in the log. Nothing may be called through the static calls of shim.h
 * before this returned 0.
 *
 * Context: process, may sleep.
 * Return: 0, -ENOENT if a symbol that is needed is missing, or what register_kprobe() says.
 */
int stackmap_symbols_resolve(void)
{
	struct stackmap_symbols *syms = &stackmap_symbols;
	int ret = find_kallsyms();

	if (ret)
		return ret;

	syms->trace_stack = need("__ftrace_trace_stack", &ret);
	syms->tracefs_mount = need("tracefs_mount", &ret);
	static_call_update(stackmap_commit, need("trace_buffer_unlock_commit_nostack", &ret));
	static_call_update(stackmap_save_regs, need("stack_trace_save_regs", &ret));
	static_call_update(stackmap_seq_print_ip, need("seq_print_ip_sym", &ret));
	static_call_update(stackmap_tracefs_create_orig, need("tracefs_create_file", &ret));
	static_call_update(stackmap_tracefs_remove_orig, need("tracefs_remove", &ret));
	static_call_update(stackmap_tr_is_on, need("tracer_tracing_is_on", &ret));
#ifdef CONFIG_DYNAMIC_FTRACE
	static_call_update(stackmap_ops_trampoline, need("ftrace_ops_trampoline", &ret));
	syms->global_ops = stackmap_symbol_find("global_ops");
#endif
	if (ret)
		return ret;

	syms->temp_buffer = stackmap_symbol_find("temp_buffer");
	stackmap_facts = (struct stackmap_facts) {
		/* The layout is read from tracefs. */
		.stext			= find_address("_stext"),
		.etext			= find_address("_etext"),
		.return_to_handler	= find_address("return_to_handler"),
#ifdef CONFIG_ARM64
		.rethook_trampoline	= find_address("__kretprobe_trampoline"),
#else
		.rethook_trampoline	= find_address("arch_rethook_trampoline"),
#endif
		.user_end		= TASK_SIZE_MAX,
#ifdef CONFIG_ARM64
		/* Bit 55, which tells the kernel's addresses from others, is in no signature. */
		.signature		= ptrauth_kernel_pac_mask() & ~BIT_ULL(55),
#endif
	};
	find_unwinder(syms);
	find_poking(syms);
	/* Stacks that are not ours go on there, whatever hook is installed or was just removed. */
	static_call_update(stackmap_trace_stack_orig, stackmap_jump_original());
	return 0;
}
