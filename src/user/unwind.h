/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's deferred unwinding of user stacks. For kernels without it: the types and names that
 * the module uses, and a deferral of its own, deferral.c, where the kernel has what that needs.
 * stackmap_user_resolve() refuses all others.
 */
#ifndef STACKMAP_USER_UNWIND_H
#define STACKMAP_USER_UNWIND_H

#include <linux/kconfig.h>

#define STACKMAP_KERNEL_DEFERRAL	\
	(STACKMAP_HAS_UNWIND_DEFERRED && IS_ENABLED(CONFIG_UNWIND_USER))
/* Whether the kernel tells when a task returns to user space. */
#define STACKMAP_TELLS_RETURN	\
	(STACKMAP_KERNEL_DEFERRAL || IS_ENABLED(CONFIG_USER_RETURN_NOTIFIER))
#define STACKMAP_OWN_DEFERRAL	\
	(!STACKMAP_KERNEL_DEFERRAL &&	\
	 (IS_ENABLED(CONFIG_ARM64) ||	\
	  (STACKMAP_TELLS_RETURN && IS_ENABLED(CONFIG_DYNAMIC_FTRACE_WITH_ARGS))))
/* exec and exit are watched at the entries of functions; see probes.c. */
#define STACKMAP_OWN_ENTRIES	\
	(STACKMAP_OWN_DEFERRAL && !STACKMAP_HAS_SLEEPABLE_PROBES &&	\
	 IS_ENABLED(CONFIG_DYNAMIC_FTRACE_WITH_ARGS))

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

#if !STACKMAP_KERNEL_DEFERRAL
#define UNWIND_PENDING			BIT(0)
#ifdef CONFIG_X86_64
/* Virtual 8086 mode has segments. */
#define unwind_user_word_size(regs)	\
	((regs)->flags & X86_VM_MASK ? 0 : user_64bit_mode(regs) ? 8 : 4)
#elif defined(CONFIG_ARM64)
#define unwind_user_word_size(regs)	(compat_user_mode(regs) ? 4 : 8)
#else
#define unwind_user_word_size(regs)	0
#endif
#endif

struct mutex;
struct srcu_struct;
struct task_struct;

#if STACKMAP_OWN_DEFERRAL
extern struct mutex stackmap_deferral_lock;
extern struct srcu_struct *const stackmap_deferral_srcu;

int stackmap_deferral_begin(void);
void stackmap_deferral_end(void);
int stackmap_deferral_init(struct unwind_work *work,
			   void (*func)(struct unwind_work *work, struct unwind_stacktrace *trace,
					u64 cookie));
int stackmap_deferral_request(struct unwind_work *work, u64 *cookie);
void stackmap_deferral_cancel(struct unwind_work *work);
void stackmap_deferral_flush(void);
u64 stackmap_deferral_walked(void);
struct unwind_task_info *stackmap_deferral_info(const struct task_struct *task);
#endif

/* What a task has requested. Without a deferral no task has. */
static inline struct unwind_task_info *stackmap_unwind_info(struct task_struct *task)
{
#if STACKMAP_KERNEL_DEFERRAL
	return &task->unwind_info;
#elif STACKMAP_OWN_DEFERRAL
	return stackmap_deferral_info(task);
#else
	static struct unwind_task_info none;

	return &none;
#endif
}

#endif /* STACKMAP_USER_UNWIND_H */
