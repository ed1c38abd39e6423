/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the C files of user stacks share.
 */
#ifndef STACKMAP_USER_USER_H
#define STACKMAP_USER_USER_H

#include <linux/bits.h>
#include <linux/mmap_lock.h>
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
 * thread that calls exec takes over PID and start time of the leader; the count of exec calls tells
 * both apart.
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

int stackmap_user_probe(void);
void stackmap_before_exec(void);
void stackmap_before_exit(void);
int stackmap_entries_begin(void);
bool stackmap_entries_end(void);
void stackmap_entries_drain(void);
void stackmap_user_drain(void);
bool stackmap_user_execs(void);
bool stackmap_user_in_exec(void);

#endif /* STACKMAP_USER_USER_H */
