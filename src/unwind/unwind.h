/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The two ways to walk a stack, for a function that runs in place of __ftrace_trace_stack().
 */
#ifndef STACKMAP_UNWIND_H
#define STACKMAP_UNWIND_H

#include <linux/stacktrace.h>

#include "../shim/shim.h"

/*
 * The stack from here, or from where an interrupt has hit, as the kernel's own
 * __ftrace_trace_stack() finds it. Inlined, so that the frames to skip are the same: itself and
 * stack_trace_save().
 */
static __always_inline unsigned int unwind_by_kernel(unsigned long *calls, int skip,
						     struct pt_regs *regs)
{
	unsigned int nr;

	if (regs)
		return static_call(stackmap_save_regs)(regs, calls, STACKMAP_MAX_FRAMES, skip);
	if (!IS_ENABLED(CONFIG_UNWINDER_ORC))
		return stack_trace_save(calls, STACKMAP_MAX_FRAMES, skip + 1);
	nr = stack_trace_save(calls, STACKMAP_MAX_FRAMES, skip);
	/* With nothing to skip, as for trace_dump_stack(0), the first frame is the recorder. */
	if (!skip && nr)
		calls[0] = (unsigned long)stackmap_symbols.trace_stack;
	return nr;
}

/* The same by rules. Returns -1 if that cannot be done here. */
static __always_inline int unwind_by_rules(unsigned long *calls, int skip)
{
	const unsigned int own = !skip;
	int nr;

	nr = stackmap_unwind(__builtin_frame_address(0), calls + own, STACKMAP_MAX_FRAMES - own,
			     skip + own - 1);
	if (nr < 0)
		return nr;
	if (own)
		calls[0] = (unsigned long)stackmap_symbols.trace_stack;
	return nr + own;
}

#endif /* STACKMAP_UNWIND_H */
