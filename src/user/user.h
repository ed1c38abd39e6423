/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the C files of user stacks share.
 */
#ifndef STACKMAP_USER_USER_H
#define STACKMAP_USER_USER_H

#include <linux/bits.h>
#include <linux/irqflags.h>
#include <linux/kconfig.h>
#include <linux/mmap_lock.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/task_work.h>

#include "unwind.h"

/* Found by stackmap_user_resolve(). */
DECLARE_STATIC_CALL(stackmap_lock_vma, lock_vma_under_rcu);
DECLARE_STATIC_CALL(stackmap_put_task_stack, put_task_stack);
DECLARE_STATIC_CALL(stackmap_unwind_request, unwind_deferred_request);
DECLARE_STATIC_CALL(stackmap_unwind_user, unwind_user_faultable);
DECLARE_STATIC_CALL(stackmap_task_work_cancel, task_work_cancel);

/*
 * The cookie of a task that exits: the kernel makes none from then on. No CPU number has bit 31. A
 * thread that calls exec takes over PID and start time of the leader; the count of exec calls
 * distinguishes both.
 */
static inline u64 stackmap_exit_cookie(void)
{
	return (u64)(u32)current->pid << 32 | BIT(31) |
	       ((current->start_time >> 20) & 0x3fffff) << 9 | (current->self_exec_id & 0x1ff);
}

/* Where a task left user space. */
static inline struct stackmap_registers stackmap_registers_of(struct pt_regs *regs)
{
	return (struct stackmap_registers) {
		.ip	= instruction_pointer(regs),
		.sp	= user_stack_pointer(regs),
		.fp	= frame_pointer(regs),
		.word	= user_mode(regs) ? unwind_user_word_size(regs) : 0,
	};
}

/*
 * The count of exec calls that a request of the current task is remembered with. Inside exec it is
 * that of none of its programs: before the new one, exec delivers what was requested.
 */
static inline u64 stackmap_exec_id(void)
{
	return current->self_exec_id - current->in_execve;
}

/*
 * How often preemption is disabled for an event: by its tracer, for its stack, and by a second
 * tracer's list of functions. The scheduler disables it twice more when it switches tasks.
 */
#define STACKMAP_TRACERS_PREEMPT	3

/*
 * Whether the task may have looked for works for the last time in this kernel entry: interrupts are
 * off, none is being served, and nothing but tracers has disabled preemption. An NMI may come
 * there, too, and the breakpoint of a kprobe, which counts as one.
 */
static inline bool stackmap_may_be_late(void)
{
	const int count = preempt_count();

	/* One comparison decides mostly. */
	if (count > STACKMAP_TRACERS_PREEMPT && count < NMI_OFFSET)
		return false;
	return in_nmi() || irqs_disabled();
}

void stackmap_late_begin(void *symbol_size, unsigned long address);
void stackmap_late_end(void);
bool stackmap_is_too_late(void);
void stackmap_look_again(void);
int stackmap_user_probe(void);
void stackmap_user_drain(void);
bool stackmap_user_execs(void);
bool stackmap_user_in_exec(void);

#endif /* STACKMAP_USER_USER_H */
