/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the C files share with each other, and not with Rust.
 */
#ifndef STACKMAP_SHIM_SHIM_H
#define STACKMAP_SHIM_SHIM_H

#include <linux/compiler.h>
#include <linux/filter.h>
#include <linux/ftrace.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/stacktrace.h>
#include <linux/static_call.h>
#include <linux/tracefs.h>
#if defined(CONFIG_X86_64) || defined(CONFIG_ARM64)
#if __has_include("asm/text-patching.h")
#include <asm/text-patching.h>
#else
#include <asm/patching.h>
#endif
#endif

#include <stackmap_functions.h>
#include <stackmap_shim.h>
#include <stackmap_sizes.h>

struct pt_regs;
struct trace_array;
struct vfsmount;

/*
 * Defines a static call that returns @initial, NULL or RET0, until it is updated. There can be no
 * kprobe on its trampoline: where that is not the jump that it expects, static_call_update() is a
 * BUG().
 */
#ifdef CONFIG_HAVE_STATIC_CALL
#define STACKMAP_STATIC_CALL(initial, name, func)	\
	extern struct static_call_key STATIC_CALL_KEY(name);	\
	DEFINE_STATIC_CALL_##initial(name, func);	\
	NOKPROBE_SYMBOL(STATIC_CALL_TRAMP(name))
#else
#define STACKMAP_STATIC_CALL(initial, name, func)	DEFINE_STATIC_CALL_##initial(name, func)
#endif

/*
 * Functions of the kernel that are not exported. They are only ever called by static call: their
 * entries may be sealed against indirect calls. Their prototypes are those of the kernel's own
 * headers; for what these do not have, those of stackmap_functions.h.
 */
DECLARE_STATIC_CALL(stackmap_kallsyms, kallsyms_lookup_name);
DECLARE_STATIC_CALL(stackmap_save_regs, stack_trace_save_regs);
DECLARE_STATIC_CALL(stackmap_tracefs_create_orig, tracefs_create_file);
DECLARE_STATIC_CALL(stackmap_tracefs_remove_orig, tracefs_remove);
DECLARE_STATIC_CALL(stackmap_module_text, __module_text_address);
DECLARE_STATIC_CALL(stackmap_bpf_text, is_bpf_text_address);
DECLARE_STATIC_CALL(stackmap_get_kprobe, get_kprobe);
#ifdef CONFIG_X86_64
#if !STACKMAP_HAS_SMP_TEXT_POKE_SINGLE
/* Its name before Linux 6.16. */
#define smp_text_poke_single	text_poke_bp
#endif
DECLARE_STATIC_CALL(stackmap_text_poke, smp_text_poke_single);
#elif defined(CONFIG_ARM64)
DECLARE_STATIC_CALL(stackmap_patch_text, aarch64_insn_patch_text);
DECLARE_STATIC_CALL(stackmap_copy_text, aarch64_insn_copy);
#endif
#ifdef CONFIG_DYNAMIC_FTRACE
DECLARE_STATIC_CALL(stackmap_ops_trampoline, ftrace_ops_trampoline);
#endif
DECLARE_STATIC_CALL(stackmap_trace_stack_orig, __ftrace_trace_stack);
DECLARE_STATIC_CALL(stackmap_commit, trace_buffer_unlock_commit_nostack);
DECLARE_STATIC_CALL(stackmap_seq_print_ip, seq_print_ip_sym);
DECLARE_STATIC_CALL(stackmap_tr_is_on, tracer_tracing_is_on);

void *stackmap_symbol_find(const char *name);

/* What stackmap_symbols_resolve() found; what is optional may be NULL. */
struct stackmap_symbols {
	void *trace_stack;		/* entry of __ftrace_trace_stack() */
	struct vfsmount **tracefs_mount;	/* that tracefs' own files pin */
	struct ftrace_ops *global_ops;	/* optional: the top level's function tracer */
	struct trace_buffer **temp_buffer;	/* optional: of events for triggers alone */
	bool can_unwind;		/* all was found that learning rules needs */
	/* For the jump hook only: whether all was found, and the locks for changing text. */
	bool can_poke;
	struct mutex *text_mutex;	/* held while text changes */
	struct mutex *kprobe_mutex;	/* held while kprobes come and go; taken first */
#ifdef CONFIG_ARM64
	unsigned long * __percpu *irq_stack_ptr;	/* optional: stacks for interrupts */
#endif
};

extern struct stackmap_symbols stackmap_symbols __ro_after_init;

bool stackmap_serves(const struct trace_array *tr);

void *stackmap_jump_original(void);

/* Whether the event files are those of our events, in any trace array. */
bool stackmap_events_are(const struct stackmap_served *served);

#endif /* STACKMAP_SHIM_SHIM_H */
