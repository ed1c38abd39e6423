// SPDX-License-Identifier: GPL-2.0
/*
 * User stacks that the kernel would unwind too late, or not at all: of tasks that call exec, and
 * lose their stack with the old program, and of tasks that exit.
 *
 * They come from tracepoints. Older kernels without deferred unwinding run probes with preemption
 * off, and sched_process_exit after the address space is gone: there they come from the entries of
 * functions, or without ftrace's callbacks not at all.
 *
 * Adding and removing probes waits for the probes that run. So no probe waits for I/O: the walk
 * ends at user memory that is not present.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "unwind.h"

#include <linux/binfmts.h>
#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/printk.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>

#if STACKMAP_OWN_ENTRIES
#include <linux/ftrace.h>
#include <linux/rcupdate.h>
#include <linux/srcu.h>

#ifdef CONFIG_X86_64
#include <linux/objtool.h>

#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>
#endif
#endif

#include "../record/slot.h"
#include "../shim/shim.h"
#include "user.h"

STACKMAP_STATIC_CALL(NULL, stackmap_unwind_user, unwind_user_faultable);
STACKMAP_STATIC_CALL(NULL, stackmap_task_work_cancel, task_work_cancel);

/* Whether a trace array that asks for user stacks takes events. */
static bool records(struct stackmap_slot *slot)
{
	/* A trace array that is seen here stays until stackmap_user_drain(). */
	struct trace_array *tr = READ_ONCE(slot->served.tr);

	return stackmap_slot_asks(slot) && tr && static_call(stackmap_tr_is_on)(tr);
}

static bool probing;

/* Whether a trace array asks for user stacks and takes events. */
static bool is_recorded(void)
{
	struct stackmap_slot *slot, *end;

	stackmap_for_each_served(slot, end)
		if (records(slot))
			return true;
	return false;
}

/*
 * Whether user memory can be read here, if it is present. A tracepoint that is called with
 * preemption off does not let us sleep, which an uncounted one hides.
 */
static bool can_unwind(void)
{
	if (!STACKMAP_HAS_SLEEPABLE_PROBES && !STACKMAP_OWN_ENTRIES &&
	    !IS_ENABLED(CONFIG_PREEMPT_COUNT))
		return false;
	return !preempt_count() && !irqs_disabled();
}

/*
 * Delivers all pending requests now. Another tracer may request at any time, in an interrupt, and
 * then queues the same work again. So the work is taken off the list before it runs.
 * unwind_deferred_task_exit() runs it while it is on the list, which a second queueing would
 * corrupt.
 */
static void deliver_pending(void)
{
#if STACKMAP_OWN_DEFERRAL
	stackmap_deferral_flush();
#else
	struct unwind_task_info *info = stackmap_unwind_info(current);

	while ((atomic_long_read(&info->unwind_mask) & UNWIND_PENDING) &&
	       static_call(stackmap_task_work_cancel)(current, &info->work))
		info->work.func(&info->work);
#endif
}

/* The same, of user memory that is present: nothing is waited for. */
static void flush(void)
{
	pagefault_disable();
	deliver_pending();
	pagefault_enable();
}

/* Whether the current task has a request of ours pending. */
static bool is_requested(void)
{
	const unsigned long mask = atomic_long_read(&stackmap_unwind_info(current)->unwind_mask);
	struct stackmap_slot *slot;

	if (!(mask & UNWIND_PENDING))
		return false;
	for (slot = stackmap_slots; slot < stackmap_slots + STACKMAP_SLOTS; slot++)
		/* Acquire; pairs with the store in stackmap_user_begin(). */
		if (smp_load_acquire(&slot->has_work) && mask & BIT(slot->work.bit))
			return true;
	return false;
}

/* The current task is about to lose its program. Context: that of the probe. */
static void before_exec(void)
{
	const bool asks = is_recorded();
	struct stackmap_slot *slot, *end;
	bool requested = is_requested();
	u64 cookie;
	int ret;

	/*
	 * What was requested before a trace array stopped asking is delivered, too. A helper of the
	 * kernel has no user space before its first exec.
	 */
	if (!current->mm || (!asks && !requested))
		return;
	if (!can_unwind()) {
		stackmap_user_count(STACKMAP_USER_EXEC_LATE);
		return;
	}
	/*
	 * Events that follow are still of this entry: they get the cookie of these. So do events of
	 * trace arrays that begin to record after this.
	 */
	stackmap_for_each_served(slot, end) {
		if (!asks || !stackmap_slot_asks(slot))
			continue;
		ret = static_call(stackmap_unwind_request)(&slot->work, &cookie);
		/* See stackmap_user_request(). */
		requested |= ret != -EINVAL && ret != -ESRCH;
	}
	if (requested)
		flush();
	stackmap_user_count(requested ? STACKMAP_USER_EXEC_FLUSHED : STACKMAP_USER_REFUSED);
}

/* The cookie of this entry if the current task's stack was walked in it, or 0. */
static u64 walked_in_entry(void)
{
#if STACKMAP_OWN_DEFERRAL
	return stackmap_deferral_walked();
#else
	const struct unwind_task_info *info = stackmap_unwind_info(current);

	return info->cache && info->cache->nr_entries ? info->id.id : 0;
#endif
}

/* The current task is about to lose its address space. Context: that of the probe. */
static void before_exit(void)
{
	struct unwind_stacktrace trace = { };
	struct stackmap_slot *slot, *end;
	u64 cookie, walked;
	unsigned int id;

	if (!current->mm || (current->flags & (PF_KTHREAD | PF_USER_WORKER)))
		return;
#if STACKMAP_OWN_DEFERRAL
	/* Later, there is no user memory; the kernel's deferral has done it. */
	if (can_unwind())
		flush();
#endif
	if (!is_recorded())
		return;
	if (!can_unwind()) {
		stackmap_user_count(STACKMAP_USER_EXIT_LATE);
		return;
	}
	cookie = stackmap_exit_cookie();
	walked = walked_in_entry();
	if (walked) {
		/*
		 * The stack was walked in this entry. An exec that failed after its point of no
		 * return may lie between, and the addresses be the old program's.
		 */
		id = stackmap_user_known(walked);
#if STACKMAP_OWN_DEFERRAL
	} else if (stackmap_user_in_exec()) {
		/* The same, when the task was switched out since. */
		stackmap_user_count(STACKMAP_USER_EXIT_LATE);
		return;
#endif
	} else {
#if !STACKMAP_OWN_DEFERRAL
		pagefault_disable();
		static_call(stackmap_unwind_user)(&trace);
		pagefault_enable();
#endif
		id = stackmap_user_id(trace.entries, trace.nr, cookie);
	}
	stackmap_for_each_served(slot, end)
		if (records(slot))
			stackmap_user_bind(&slot->served, cookie, id);
	stackmap_user_count(STACKMAP_USER_EXIT_BOUND);
}

#if STACKMAP_OWN_ENTRIES
/*
 * Calls of our own at the entries of functions, in their context: where these may sleep, we may.
 *
 * As with a live patch, an ftrace callback leads into a trampoline; that calls us and goes on in
 * the function, after its call of ftrace. A function can have one such callback, beside any number
 * of others, of BPF's trampolines, too.
 *
 * A task may sleep in what is called, which SRCU waits for; before and after that it can only be
 * preempted, which RCU tasks waits for.
 */

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

/*
 * The registers and the stack are those at the function's entry, also when it returns into the
 * function, which is a caller in stacks of what it calls.
 */
#ifdef CONFIG_X86_64
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
#else
#define TRAMPOLINE(name, function, back)			\
	asm(".pushsection .text, \"ax\", @progbits\n"		\
	    ".balign 16\n"					\
	    ".global " name "\n"				\
	    ".type " name ", @function\n"			\
	    name ":\n"						\
	    "	sub	sp, sp, #112\n"				\
	    "	stp	x29, x30, [sp, #96]\n"			\
	    "	add	x29, sp, #96\n"				\
	    "	adrp	x9, " back "\n"				\
	    "	ldr	x9, [x9, :lo12:" back "]\n"		\
	    "	stp	x29, x9, [sp, #80]\n"			\
	    "	add	x29, sp, #80\n"				\
	    "	stp	x0, x1, [sp]\n"				\
	    "	stp	x2, x3, [sp, #16]\n"			\
	    "	stp	x4, x5, [sp, #32]\n"			\
	    "	stp	x6, x7, [sp, #48]\n"			\
	    "	str	x8, [sp, #64]\n"			\
	    "	bl	" function "\n"				\
	    "	ldp	x0, x1, [sp]\n"				\
	    "	ldp	x2, x3, [sp, #16]\n"			\
	    "	ldp	x4, x5, [sp, #32]\n"			\
	    "	ldp	x6, x7, [sp, #48]\n"			\
	    "	ldr	x8, [sp, #64]\n"			\
	    "	ldr	x9, [sp, #88]\n"			\
	    "	ldp	x29, x30, [sp, #96]\n"			\
	    "	add	sp, sp, #112\n"				\
	    "	ret	x9\n"					\
	    ".size " name ", . - " name "\n"			\
	    ".popsection\n")
#endif

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
	before_exec();
}

void stackmap_enter_exit(void)
{
	guard(srcu)(&entries_srcu);
	before_exit();
}

/*
 * Ends the calls at exec and exit. Returns whether no call is left; then no task is in these
 * functions. ftrace refuses to take a callback off once it has found a fault of its own.
 */
static bool detach(void)
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

/* Has both functions redirected. Returns 0 or an errno, which the log has. */
static int redirect_all(void)
{
	struct function *function;
	int ret;

	/* Linux 6.12 leaves pointers to freed hashes in what is unregistered. */
	for (function = functions; function < functions + ARRAY_SIZE(functions); function++)
		function->ops = (struct ftrace_ops) {
			.func	= redirect,
			.flags	= FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RECURSION,
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

/*
 * Where another user excludes ours, user stacks go on without: what exec and exit lose is counted.
 */
static int attach(void)
{
	probing = !redirect_all() || !detach();
	return 0;
}

static void drain(void)
{
	synchronize_srcu(&entries_srcu);
}
#else
static struct tracepoint *prepare_exec, *process_exit;

static void on_prepare_exec(void *data, struct task_struct *task, struct linux_binprm *bprm)
{
	before_exec();
}

static void on_process_exit(void *data, struct task_struct *task, bool group_dead)
{
	before_exit();
}

static void find(struct tracepoint *tp, void *unused)
{
	if (!strcmp(tp->name, "sched_prepare_exec"))
		prepare_exec = tp;
	else if (!strcmp(tp->name, "sched_process_exit"))
		process_exit = tp;
}

static int attach(void)
{
	int ret;

	for_each_kernel_tracepoint(find, NULL);
	if (!prepare_exec || !process_exit) {
		pr_info("user stacks: this kernel has no tracepoints of exec and exit\n");
		return -EOPNOTSUPP;
	}
	ret = tracepoint_probe_register(prepare_exec, on_prepare_exec, NULL);
	if (ret)
		return ret;
	ret = tracepoint_probe_register(process_exit, on_process_exit, NULL);
	if (ret) {
		tracepoint_probe_unregister(prepare_exec, on_prepare_exec, NULL);
		tracepoint_synchronize_unregister();
	}
	probing = !ret;
	return ret;
}

static bool detach(void)
{
	tracepoint_probe_unregister(process_exit, on_process_exit, NULL);
	tracepoint_probe_unregister(prepare_exec, on_prepare_exec, NULL);
	tracepoint_synchronize_unregister();
	return true;
}

static void drain(void)
{
	tracepoint_synchronize_unregister();
}
#endif

/* Begins to watch exec and exit, unless that is done. Returns 0 or an errno. */
int stackmap_user_probe(void)
{
	return probing ? 0 : attach();
}

/* Waits until no probe uses a trace array that is no longer served. Process context, may sleep. */
void stackmap_user_drain(void)
{
	if (probing)
		drain();
}

/* Stops watching exec and exit. Returns whether no probe is left. */
static bool unprobe(void)
{
	probing = probing && !detach();
	return !probing;
}

/**
 * stackmap_user_unprobe - stop watching exec and exit
 *
 * If the kernel keeps a probe, this never returns: the probe's code must stay.
 *
 * Context: process, may sleep; callers serialise. When this returns no probe runs.
 */
void stackmap_user_unprobe(void)
{
	while (!unprobe())
		ssleep(1);
}

/**
 * stackmap_user_unprobe_idle - stop watching exec and exit, unless a task may need it
 *
 * A task inside exec delivers what it has requested by the probe, or loses it.
 *
 * Context: process, may sleep; callers serialise. No trace array asks for user stacks.
 * Return: whether no probe is left.
 */
bool stackmap_user_unprobe_idle(void)
{
	if (!probing)
		return true;
	/* Who has seen that a trace array asks has requested. */
	stackmap_hook_drain();
	if (stackmap_user_execs())
		return false;
	return unprobe();
}
