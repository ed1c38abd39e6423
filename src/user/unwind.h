/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's deferred unwinding of user stacks. For kernels without it: the types and names that
 * the module uses, so that all compiles. stackmap_user_resolve() refuses such a kernel.
 */
#ifndef STACKMAP_USER_UNWIND_H
#define STACKMAP_USER_UNWIND_H

#if STACKMAP_HAS_UNWIND_DEFERRED
#include <linux/unwind_deferred.h>
#include <linux/unwind_user.h>
#else
#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/list.h>
#include <linux/types.h>

struct unwind_cache {
	unsigned long unwind_completed;
	unsigned int nr_entries;
};

struct unwind_task_info {
	atomic_long_t unwind_mask;
	struct unwind_cache *cache;
	struct callback_head work;
	union {
		u64 id;
	} id;
};

struct unwind_stacktrace {
	unsigned int nr;
	unsigned long *entries;
};

struct unwind_work;

struct unwind_work {
	struct list_head list;
	void (*func)(struct unwind_work *work, struct unwind_stacktrace *trace, u64 cookie);
	int bit;
};

int unwind_user_faultable(struct unwind_stacktrace *trace);
int unwind_deferred_init(struct unwind_work *work,
			 void (*func)(struct unwind_work *work, struct unwind_stacktrace *trace,
				      u64 cookie));
int unwind_deferred_request(struct unwind_work *work, u64 *cookie);
void unwind_deferred_cancel(struct unwind_work *work);
#endif

#ifndef CONFIG_UNWIND_USER
#define UNWIND_PENDING			BIT(0)
#define unwind_user_word_size(regs)	0
#endif

struct task_struct;

/* What a task has requested. Without the kernel's user unwinder no task has. */
static inline struct unwind_task_info *stackmap_unwind_info(struct task_struct *task)
{
#ifdef CONFIG_UNWIND_USER
	return &task->unwind_info;
#else
	static struct unwind_task_info none;

	return &none;
#endif
}

#endif /* STACKMAP_USER_UNWIND_H */
