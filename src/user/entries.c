// SPDX-License-Identifier: GPL-2.0
/*
 * Calls of our own at the entries of functions, in their context: where these may sleep, we may.
 * For kernels whose tracepoints run probes with preemption off.
 *
 * As with a live patch, an ftrace callback leads into a trampoline; that calls us and goes on in
 * the function, after its call of ftrace. A function can have one such callback, beside any number
 * of others, of BPF's trampolines, too.
 *
 * A task may sleep in what is called, which SRCU waits for; before and after that it can only be
 * preempted, which RCU tasks waits for.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "unwind.h"

#if STACKMAP_OWN_DEFERRAL
#include <linux/errno.h>
#include <linux/ftrace.h>
#include <linux/objtool.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/srcu.h>

#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

#include "../shim/shim.h"
#include "user.h"

/* How often a trampoline of BPF may be busy, each time for a millisecond. */
#define RETRIES		100

DEFINE_STATIC_SRCU(entries_srcu);

void stackmap_exec_trampoline(void);
void stackmap_exit_trampoline(void);
void stackmap_enter_exec(void);
void stackmap_enter_exit(void);
/* Where the functions go on. */
extern unsigned long stackmap_exec_back, stackmap_exit_back;

unsigned long stackmap_exec_back, stackmap_exit_back;

/* The stack is that at the function's entry, also when it returns into the function. */
#define TRAMPOLINE(name, function, back)			\
	asm(".pushsection .text, \"ax\", @progbits\n"		\
	    ".balign 16\n"					\
	    ".global " name "\n"				\
	    name ":\n"						\
	    UNWIND_HINT_FUNC "\n"				\
	    ANNOTATE_NOENDBR "\n"				\
	    "	push	" back "(%rip)\n"			\
	    "	push	%rbp\n"					\
	    "	mov	%rsp, %rbp\n"				\
	    CALL_DEPTH_ACCOUNT "\n"				\
	    "	push	%rdi\n	push	%rsi\n	push	%rdx\n"	\
	    "	push	%rcx\n	push	%r8\n	push	%r9\n"	\
	    "	call	" function "\n"				\
	    "	pop	%r9\n	pop	%r8\n	pop	%rcx\n"	\
	    "	pop	%rdx\n	pop	%rsi\n	pop	%rdi\n"	\
	    "	pop	%rbp\n"					\
	    ASM_RET						\
	    ".size " name ", . - " name "\n"			\
	    ".popsection\n")

TRAMPOLINE("stackmap_exec_trampoline", "stackmap_enter_exec", "stackmap_exec_back");
TRAMPOLINE("stackmap_exit_trampoline", "stackmap_enter_exit", "stackmap_exit_back");

static struct function {
	const char *name;
	void (*trampoline)(void);
	unsigned long *back;
	struct ftrace_ops ops;
	bool on;
} functions[] = {
	{ "begin_new_exec", stackmap_exec_trampoline, &stackmap_exec_back },
	{ "exit_mm_release", stackmap_exit_trampoline, &stackmap_exit_back },
};

static void redirect(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
		     struct ftrace_regs *fregs)
{
	const struct function *function = container_of(ops, struct function, ops);

	/* It never changes. */
	WRITE_ONCE(*function->back, ip + MCOUNT_INSN_SIZE);
	ftrace_regs_set_instruction_pointer(fregs, (unsigned long)function->trampoline);
}

void stackmap_enter_exec(void)
{
	guard(srcu)(&entries_srcu);
	stackmap_before_exec();
}

void stackmap_enter_exit(void)
{
	guard(srcu)(&entries_srcu);
	stackmap_before_exit();
}

/* Waits until the calls end that have begun. Process context, may sleep. */
void stackmap_entries_drain(void)
{
	synchronize_srcu(&entries_srcu);
}

/**
 * stackmap_entries_end - end the calls at exec and exit
 *
 * ftrace refuses to take a callback off once it has found a fault of its own.
 *
 * Context: process, may sleep; callers serialise.
 * Return: whether no call is left; then no task is in this file.
 */
bool stackmap_entries_end(void)
{
	struct function *function;
	bool left = false;

	for (function = functions; function < functions + ARRAY_SIZE(functions); function++) {
		const int ret = function->on ? unregister_ftrace_function(&function->ops) : 0;

		if (ret)
			pr_err_once("user stacks: ftrace keeps its call at %s() (%d)\n",
				    function->name, ret);
		function->on = ret;
		left |= ret;
	}
	if (left)
		return false;
	synchronize_rcu_tasks();
	synchronize_srcu(&entries_srcu);
	synchronize_rcu_tasks();
	/* Once, as Linux 6.12 leaves pointers to freed hashes. */
	for (function = functions; function < functions + ARRAY_SIZE(functions); function++)
		ftrace_free_filter(&function->ops);
	return true;
}

/* Has a function redirected. Returns 0 or an errno. */
static int redirect_function(struct function *function)
{
	void *entry = stackmap_symbol_find(function->name);
	int ret = entry ? ftrace_set_filter_ip(&function->ops, (unsigned long)entry, 0, 1) :
			  -ENOENT;
	unsigned int tries = RETRIES;

	if (ret)
		return ret;
	do
		ret = register_ftrace_function(&function->ops);
	while (ret == -EAGAIN && tries--);
	return ret;
}

/**
 * stackmap_entries_begin - call stackmap_before_exec() and stackmap_before_exit()
 *
 * Context: process, may sleep; callers serialise. No call is left of before. After an error,
 * stackmap_entries_end() must follow.
 * Return: 0 or an errno, which the log has: EBUSY if another user redirects one of the functions.
 */
int stackmap_entries_begin(void)
{
	struct function *function;
	int ret;

	/* Linux 6.12 leaves pointers to freed hashes in what is unregistered. */
	for (function = functions; function < functions + ARRAY_SIZE(functions); function++)
		function->ops = (struct ftrace_ops) {
			.func	= redirect,
			.flags	= FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY |
				  FTRACE_OPS_FL_RECURSION,
		};
	for (function = functions; function < functions + ARRAY_SIZE(functions); function++) {
		ret = redirect_function(function);
		/* ftrace does not roll a registration back that it cannot complete. */
		function->on = function->ops.flags & FTRACE_OPS_FL_ENABLED;
		if (ret) {
			pr_info("user stacks: %s() cannot be redirected (%d)\n", function->name,
				ret);
			return ret;
		}
	}
	return 0;
}
#endif /* STACKMAP_OWN_DEFERRAL */
