// SPDX-License-Identifier: GPL-2.0
/*
 * Finds the functions and variables that the kernel has but does not export.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/errno.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/printk.h>

#include "shim.h"

unsigned long stackmap_sym_kallsyms(const char *name);

DEFINE_STATIC_CALL_NULL(stackmap_kallsyms, stackmap_sym_kallsyms);
DEFINE_STATIC_CALL_NULL(stackmap_trace_stack_orig, stackmap_sym_trace_stack);
DEFINE_STATIC_CALL_NULL(stackmap_commit, stackmap_sym_commit);
DEFINE_STATIC_CALL_NULL(stackmap_save_regs, stackmap_sym_save_regs);
DEFINE_STATIC_CALL_NULL(stackmap_seq_print_ip, stackmap_sym_seq_print_ip);
DEFINE_STATIC_CALL_NULL(stackmap_tracefs_remove_orig, stackmap_sym_tracefs_remove);
DEFINE_STATIC_CALL_NULL(stackmap_tr_is_on, stackmap_sym_tr_is_on);
DEFINE_STATIC_CALL_NULL(stackmap_module_text, stackmap_sym_module_text);
DEFINE_STATIC_CALL_NULL(stackmap_get_kprobe, stackmap_sym_get_kprobe);
DEFINE_STATIC_CALL_NULL(stackmap_text_poke, stackmap_sym_text_poke);
#ifdef CONFIG_DYNAMIC_FTRACE
DEFINE_STATIC_CALL_NULL(stackmap_ops_trampoline, ftrace_ops_trampoline);
#endif

struct stackmap_symbols stackmap_symbols __ro_after_init;

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
		pr_err("no kprobes: kallsyms_lookup_name cannot be found (%d)\n", ret);
		return ret;
	}
	static_call_update(stackmap_kallsyms, (void *)kp.addr);
	unregister_kprobe(&kp);
	return 0;
}

static void *find(const char *name)
{
	return (void *)static_call(stackmap_kallsyms)(name);
}

static unsigned long find_address(const char *name)
{
	return (unsigned long)find(name);
}

static void *need(const char *name, int *ret)
{
	void *addr = find(name);

	if (!addr) {
		pr_err("this kernel has no symbol %s\n", name);
		*ret = -ENOENT;
	}
	return addr;
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
	void *commit, *save_regs, *seq_print_ip, *remove, *is_on, *module_text;
	void *get_kprobe, *text_poke, *ops_trampoline __maybe_unused;
	int ret = find_kallsyms();

	if (ret)
		return ret;

	syms->trace_stack = need("__ftrace_trace_stack", &ret);
	commit = need("trace_buffer_unlock_commit_nostack", &ret);
	save_regs = need("stack_trace_save_regs", &ret);
	seq_print_ip = need("seq_print_ip_sym", &ret);
	remove = need("tracefs_remove", &ret);
	is_on = need("tracer_tracing_is_on", &ret);
	syms->tracefs_mount = need("tracefs_mount", &ret);
#ifdef CONFIG_DYNAMIC_FTRACE
	ops_trampoline = need("ftrace_ops_trampoline", &ret);
#endif
	if (ret)
		return ret;

	static_call_update(stackmap_commit, commit);
	static_call_update(stackmap_save_regs, save_regs);
	static_call_update(stackmap_seq_print_ip, seq_print_ip);
	static_call_update(stackmap_tracefs_remove_orig, remove);
	static_call_update(stackmap_tr_is_on, is_on);

#ifdef CONFIG_DYNAMIC_FTRACE
	static_call_update(stackmap_ops_trampoline, ops_trampoline);
	syms->global_ops = find("global_ops");
#endif

	syms->stext = find_address("_stext");
	syms->etext = find_address("_etext");
	syms->return_to_handler = find_address("return_to_handler");
	syms->rethook_trampoline = find_address("arch_rethook_trampoline");
	module_text = find("__module_text_address");
	syms->can_unwind = syms->stext && syms->etext && module_text;
	if (module_text)
		static_call_update(stackmap_module_text, module_text);

	syms->text_mutex = find("text_mutex");
	syms->kprobe_mutex = find("kprobe_mutex");
	get_kprobe = find("get_kprobe");
	text_poke = find("smp_text_poke_single");
	syms->can_poke = syms->text_mutex && syms->kprobe_mutex && get_kprobe && text_poke;
	if (syms->can_poke) {
		static_call_update(stackmap_get_kprobe, get_kprobe);
		static_call_update(stackmap_text_poke, text_poke);
	}
	/* Stacks that are not ours go on there, whatever hook is installed or was just removed. */
	static_call_update(stackmap_trace_stack_orig, stackmap_jump_original());
	return 0;
}
