/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Sizes of the kernel that is built for, in bytes, as both Rust and C use them.
 */
#ifndef STACKMAP_SIZES_H
#define STACKMAP_SIZES_H

#include <linux/sched/task_stack.h>

#include <asm/ptrace.h>
#if defined(CONFIG_ARM64) && __has_include("asm/stacktrace/frame.h")
#include <asm/stacktrace/frame.h>
#define STACKMAP_HAS_FRAME_TYPES	1
#endif

enum {
	/*
	 * The stack of a task, up to where the last frame may end. With frame pointers, the last
	 * frame record is below the registers of user space, or the space for them; by that, the
	 * kernel's unwinder knows it. On arm64, a record there marks the end: the last frame's
	 * leads to it.
	 */
#ifdef CONFIG_UNWINDER_FRAME_POINTER
	STACKMAP_STACK_SIZE	= THREAD_SIZE - TOP_OF_KERNEL_STACK_PADDING -
				  sizeof(struct pt_regs),
#elif defined(CONFIG_ARM64)
	STACKMAP_STACK_SIZE	= THREAD_SIZE - sizeof(struct pt_regs) +
				  offsetof(struct pt_regs, stackframe),
#else
	STACKMAP_STACK_SIZE	= THREAD_SIZE,
#endif
	STACKMAP_REGS_SIZE	= sizeof(struct pt_regs),
#ifdef STACKMAP_HAS_FRAME_TYPES
	/* The type of the record there. */
	STACKMAP_MARK_FINAL	= FRAME_META_TYPE_FINAL,
#elif defined(CONFIG_ARM64)
	/* Records have no type before Linux 6.13: the address of the last one is known. */
	STACKMAP_MARK_FINAL	= 0,
#endif
#ifdef CONFIG_X86_64
	STACKMAP_REGS_IP	= offsetof(struct pt_regs, ip),
	STACKMAP_REGS_CS	= offsetof(struct pt_regs, cs),
	STACKMAP_REGS_SP	= offsetof(struct pt_regs, sp),
	STACKMAP_REGS_BP	= offsetof(struct pt_regs, bp),
#else
	/* No rule leads to registers there. */
	STACKMAP_REGS_IP	= 0,
	STACKMAP_REGS_CS	= 0,
	STACKMAP_REGS_SP	= 0,
	STACKMAP_REGS_BP	= 0,
#endif
};

#endif /* STACKMAP_SIZES_H */
