/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where a walk begins, for a function that runs in place of __ftrace_trace_stack().
 */
#ifndef STACKMAP_UNWIND_H
#define STACKMAP_UNWIND_H

#include <linux/sched/task_stack.h>
#include <linux/stacktrace.h>
#ifdef CONFIG_UNWINDER_ORC
#include <asm/unwind.h>
#endif

#include "../shim/shim.h"

/* Room for the state of the kernel's unwinder, which few stacks need. */
#ifdef CONFIG_UNWINDER_ORC
#define STACKMAP_UNWIND_STATE(name)	struct unwind_state name __uninitialized
#else
#define STACKMAP_UNWIND_STATE(name)	char name
#endif

/* Sets where a walk begins to the caller of the function that this is inlined into. */
static __always_inline void set_caller(struct stackmap_caller *caller)
{
	const unsigned long *frame = __builtin_frame_address(0);

	caller->ip = frame[1];
	caller->sp = (unsigned long)(frame + 2);
	caller->bp = frame[0];
	caller->begin = (unsigned long)task_stack_page(current);
	caller->end = caller->begin + THREAD_SIZE;
}

/*
 * The stack from here, or from where an interrupt has hit, as the kernel's own
 * __ftrace_trace_stack() finds it. Inlined, so that the frames to skip are the same: itself and
 * stack_trace_save().
 */
static __always_inline unsigned int unwind_by_kernel(unsigned long *ips, int skip,
						     struct pt_regs *regs)
{
	unsigned int nr;

	if (regs)
		return static_call(stackmap_save_regs)(regs, ips, STACKMAP_MAX_FRAMES, skip);
	if (!IS_ENABLED(CONFIG_UNWINDER_ORC))
		return stack_trace_save(ips, STACKMAP_MAX_FRAMES, skip + 1);
	nr = stack_trace_save(ips, STACKMAP_MAX_FRAMES, skip);
	/* With nothing to skip, as for trace_dump_stack(0), the first frame is the recorder. */
	if (!skip && nr)
		ips[0] = (unsigned long)stackmap_symbols.trace_stack;
	return nr;
}

#endif /* STACKMAP_UNWIND_H */
