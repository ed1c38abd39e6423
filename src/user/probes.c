// SPDX-License-Identifier: GPL-2.0
/*
 * User stacks that the kernel would unwind too late, or not at all: those of tasks that call
 * exec, and lose their stack with the old program, and those of tasks that exit.
 *
 * They come from tracepoints. A kernel without deferred unwinding runs probes with preemption off,
 * and sched_process_exit after the address space is gone: there they come from the entries of
 * functions, see entries.c.
 *
 * Adding and removing probes waits for the probes that run. So no probe waits for I/O: the walk
 * ends at user memory that is not present.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/binfmts.h>
#include <linux/delay.h>
#include <linux/printk.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>

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

/* Whether user memory can be read here, if it is present. */
static bool can_unwind(void)
{
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
void stackmap_before_exec(void)
{
	const bool asks = is_recorded();
	struct stackmap_slot *slot, *end;
	u64 cookie;

	/*
	 * What was requested before a trace array stopped asking is delivered, too. A helper of the
	 * kernel has no user space before its first exec.
	 */
	if (!current->mm || (!asks && !is_requested()))
		return;
	if (!can_unwind()) {
		stackmap_user_count(STACKMAP_USER_EXEC_LATE);
		return;
	}
	/*
	 * Events that follow are still of this entry: they get the cookie of these. So do those of
	 * trace arrays that begin to record after this.
	 */
	stackmap_for_each_served(slot, end)
		if (asks && stackmap_slot_asks(slot))
			static_call(stackmap_unwind_request)(&slot->work, &cookie);
	flush();
	stackmap_user_count(STACKMAP_USER_EXEC_FLUSHED);
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
void stackmap_before_exit(void)
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
		 * return may lie between, and the addresses be those of the old program.
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

#if STACKMAP_OWN_DEFERRAL
/*
 * Where another user excludes ours, user stacks go on without: what exec and exit lose is counted.
 */
static int attach(void)
{
	probing = !stackmap_entries_begin() || !stackmap_entries_end();
	return 0;
}

static bool detach(void)
{
	return stackmap_entries_end();
}

static void drain(void)
{
	stackmap_entries_drain();
}
#else
static struct tracepoint *prepare_exec, *process_exit;

static void on_prepare_exec(void *data, struct task_struct *task, struct linux_binprm *bprm)
{
	stackmap_before_exec();
}

static void on_process_exit(void *data, struct task_struct *task, bool group_dead)
{
	stackmap_before_exit();
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
