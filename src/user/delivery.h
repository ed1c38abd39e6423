/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The last delivery on each CPU, by the module's own deferral.
 */
#ifndef STACKMAP_USER_DELIVERY_H
#define STACKMAP_USER_DELIVERY_H

#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/user-return-notifier.h>

#include "unwind.h"

/* The last delivery on a CPU; changes with interrupts off. */
struct stackmap_delivery {
#if STACKMAP_TELLS_RETURN
	struct user_return_notifier notifier;
	bool notifies;			/* @notifier is registered */
#else
	struct user_pt_regs registers;	/* of @task */
	unsigned long jiffies;		/* when it was */
	bool on_return;			/* it was made by works_loop */
#endif
	struct task_struct *task;	/* NULL: a task has returned to user space since */
	u64 start_time;			/* of @task, which may be freed */
	unsigned long switches;		/* of @task, from CPUs */
	unsigned long completed;	/* the bits of the works */
	u64 id;
	bool repeats;			/* as of the entry */
};

DECLARE_PER_CPU(struct stackmap_delivery, stackmap_deliveries);

/* How often a task was switched from a CPU. */
static inline unsigned long stackmap_switches(const struct task_struct *task)
{
	return task->nvcsw + task->nivcsw;
}

/* The last delivery, if it was to the current task, which has not been switched out since. */
static inline const struct stackmap_delivery *stackmap_last_delivery(void)
{
	const struct stackmap_delivery *delivery = this_cpu_ptr(&stackmap_deliveries);

	if (READ_ONCE(delivery->task) != current ||
	    delivery->start_time != current->start_time ||
	    delivery->switches != stackmap_switches(current))
		return NULL;
	return delivery;
}

/* The delivery to the current task in this entry into the kernel, if there is known to be one. */
static inline const struct stackmap_delivery *stackmap_delivery_here(void)
{
	return STACKMAP_TELLS_RETURN ? stackmap_last_delivery() : NULL;
}

int stackmap_delivery_begin(void);
void stackmap_delivery_end(void);
void stackmap_delivery_remember(u64 id, unsigned long completed, bool repeats);
void stackmap_delivery_forget(int bit);
bool stackmap_may_repeat(bool may_be_late);

#endif /* STACKMAP_USER_DELIVERY_H */
