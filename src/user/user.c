// SPDX-License-Identifier: GPL-2.0
/*
 * Requests for user stacks, and their delivery: one unwind_work for each trace array.
 *
 * A request is made when a kernel stack is recorded, in any context. The kernel unwinds the user
 * stack once, when the task returns to user space, and calls each work that has requested it. The
 * cookie of the kernel entry joins both.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/unwind_deferred.h>

#include "../record/slot.h"
#include "../shim/shim.h"
#include "user.h"

DEFINE_STATIC_CALL_NULL(stackmap_unwind_init, unwind_deferred_init);
DEFINE_STATIC_CALL_NULL(stackmap_unwind_request, unwind_deferred_request);
DEFINE_STATIC_CALL_NULL(stackmap_unwind_cancel, unwind_deferred_cancel);

/**
 * stackmap_user_resolve - find what user stacks need of the kernel
 *
 * Context: process, may sleep. stackmap_symbols_resolve() has returned 0.
 * Return: 0, or -EOPNOTSUPP if the kernel lacks something, which the log names.
 */
int stackmap_user_resolve(void)
{
	static const char * const names[] = {
		"unwind_deferred_init", "unwind_deferred_request", "unwind_deferred_cancel",
		"freader_init_from_file", "freader_fetch", "freader_cleanup",
		"lock_vma_under_rcu", "task_work_cancel", "unwind_user_faultable",
		"put_task_stack",
	};
	void *found[ARRAY_SIZE(names)];
	unsigned int i;

	if (!IS_ENABLED(CONFIG_UNWIND_USER)) {
		pr_info("options/stackmap-user: this kernel has no CONFIG_UNWIND_USER\n");
		return -EOPNOTSUPP;
	}
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		found[i] = stackmap_symbol_find(names[i]);
		if (found[i])
			continue;
		pr_info("options/stackmap-user: this kernel has no symbol %s\n", names[i]);
		return -EOPNOTSUPP;
	}
	static_call_update(stackmap_unwind_init, found[0]);
	static_call_update(stackmap_unwind_request, found[1]);
	static_call_update(stackmap_unwind_cancel, found[2]);
	static_call_update(stackmap_freader_init, found[3]);
	static_call_update(stackmap_freader_fetch, found[4]);
	static_call_update(stackmap_freader_cleanup, found[5]);
	static_call_update(stackmap_lock_vma, found[6]);
	static_call_update(stackmap_task_work_cancel, found[7]);
	static_call_update(stackmap_unwind_user, found[8]);
	static_call_update(stackmap_put_task_stack, found[9]);
	return stackmap_user_probe();
}

u64 stackmap_user_end(void)
{
	return stackmap_facts.user_end;
}

unsigned int stackmap_this_cpu(void)
{
	return raw_smp_processor_id();
}

unsigned int stackmap_cpus(void)
{
	return nr_cpu_ids;
}

void stackmap_preempt_disable(void)
{
	preempt_disable();
}

void stackmap_preempt_enable(void)
{
	preempt_enable();
}

/* Task context, may sleep; the kernel holds its SRCU. */
static void deliver(struct unwind_work *work, struct unwind_stacktrace *trace, u64 cookie)
{
	struct stackmap_slot *slot = container_of(work, struct stackmap_slot, work);

	stackmap_user_bind(&slot->served, cookie,
			   stackmap_user_id(trace->entries, trace->nr, cookie));
}

/**
 * stackmap_user_serve - let stacks of a trace array ask for user stacks
 * @tr: the trace array, which is served
 *
 * Context: process, may sleep.
 * Return: 0, or -EBUSY if the kernel has no bit free: it has 62 for all tracers.
 */
int stackmap_user_serve(const struct trace_array *tr)
{
	struct stackmap_slot *slot;
	int ret;

	for (slot = stackmap_slots; slot->served.tr != tr; slot++)
		if (slot == stackmap_slots + STACKMAP_SLOTS - 1)
			return -ENOENT;
	if (!slot->has_work) {
		ret = static_call(stackmap_unwind_init)(&slot->work, deliver);
		if (ret)
			return ret;
		slot->has_work = true;
	}
	/* Release: readers see the work, too; pairs with stackmap_slot_asks(). */
	smp_store_release(&slot->asks, true);
	return 0;
}

/**
 * stackmap_user_cancel - end the requests of trace arrays that are not served any more
 * @all: those of all trace arrays
 *
 * The hook requests nothing for them any more: the trace arrays are not served, or no hook is
 * installed, and stackmap_hook_drain() was called since. When this returns no callback runs for
 * them, and none will.
 *
 * Context: process, may sleep; callers serialise.
 */
void stackmap_user_cancel(bool all)
{
	struct stackmap_slot *slot;

	stackmap_user_drain();
	for (slot = stackmap_slots; slot < stackmap_slots + STACKMAP_SLOTS; slot++) {
		if (!slot->has_work || (slot->served.tr && !all))
			continue;
		slot->has_work = false;
		WRITE_ONCE(slot->asks, false);
		static_call(stackmap_unwind_cancel)(&slot->work);
	}
}

/**
 * stackmap_user_request - ask for the user stack of the current task
 * @served: the trace array that an event was recorded for
 * @cookie: set to the number of this entry into the kernel
 * @exec_id: set to the task's count of exec calls, where the request is the first one
 *
 * Context: any, NMI included; preemption off.
 * Return: what becomes of it.
 */
enum stackmap_request stackmap_user_request(struct stackmap_served *served, u64 *cookie,
					    u64 *exec_id)
{
	struct stackmap_slot *slot = container_of(served, struct stackmap_slot, served);
	const unsigned int flags = current->flags;
	int ret = -EINVAL;

	if (unlikely(flags & (PF_KTHREAD | PF_USER_WORKER))) {
		stackmap_user_count(STACKMAP_USER_NOT_USER);
		return STACKMAP_REQUEST_NONE;
	}
	if (unlikely(!stackmap_slot_asks(slot))) {
		stackmap_user_count(STACKMAP_USER_NO_WORK);
		return STACKMAP_REQUEST_NONE;
	}
	/*
	 * It returns a bit of the task's mask where the request was made before; as an int that can
	 * have any sign. Errors are these two.
	 */
	if (likely(current->mm))
		ret = static_call(stackmap_unwind_request)(&slot->work, cookie);
	if (unlikely(ret == -EINVAL || ret == -ESRCH)) {
		if (!(flags & PF_EXITING)) {
			stackmap_user_count(STACKMAP_USER_REFUSED);
			return STACKMAP_REQUEST_NONE;
		}
		stackmap_user_count(STACKMAP_USER_EXIT_EVENTS);
		*cookie = stackmap_exit_cookie();
		return STACKMAP_REQUEST_AGAIN;
	}
	if (in_nmi())
		stackmap_user_count(STACKMAP_USER_IN_NMI);
	if (ret) {
		stackmap_user_count(STACKMAP_USER_REQUESTED_AGAIN);
		return STACKMAP_REQUEST_AGAIN;
	}
	stackmap_user_count(STACKMAP_USER_REQUESTED);
	*exec_id = current->self_exec_id;
	return STACKMAP_REQUEST_FIRST;
}
