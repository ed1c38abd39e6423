/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where a walk begins, for a function that runs in place of __ftrace_trace_stack(); and what the C
 * files here share.
 */
#ifndef STACKMAP_UNWIND_H
#define STACKMAP_UNWIND_H

#include <linux/sched/task_stack.h>
#include <linux/stacktrace.h>
#if defined(CONFIG_UNWINDER_ORC) || defined(CONFIG_UNWINDER_FRAME_POINTER)
#include <asm/unwind.h>
#endif

#include "../shim/shim.h"

/* Memory for the state of the kernel's unwinder, which few stacks need. */
#if defined(CONFIG_UNWINDER_ORC) || defined(CONFIG_UNWINDER_FRAME_POINTER)
#define STACKMAP_UNWIND_STATE(name)	struct unwind_state name
#else
#define STACKMAP_UNWIND_STATE(name)	char name
#endif

/*
 * A stack for learning. Each word encodes its own index and is no address, but two, which lead to
 * words further up.
 */
#define STACKMAP_LEARN_WORD(i)	(0x5eed000000000000UL + (i))

extern unsigned long stackmap_learn_stack[STACKMAP_LEARN_WORDS];

/* The return address that a word of a stack has. */
static __always_inline unsigned long stackmap_returns_to(unsigned long word)
{
#ifdef CONFIG_ARM64
	return ptrauth_strip_kernel_insn_pac(word);
#else
	return word;
#endif
}

/*
 * How many callers a walk leaves out where __ftrace_trace_stack() is to leave out @skip frames.
 * With ORC, the first one of these is the function itself; with other unwinders it is the caller.
 */
static __always_inline int stackmap_skipped(int skip)
{
	return IS_ENABLED(CONFIG_UNWINDER_ORC) ? skip - 1 : skip;
}

/* Sets where a walk begins to the caller of the function that this is inlined into. */
static __always_inline void set_caller(struct stackmap_caller *caller)
{
	const unsigned long *frame = __builtin_frame_address(0);

	caller->ip = stackmap_returns_to(frame[1]);
	caller->sp = (unsigned long)(frame + 2);
	caller->bp = frame[0];
	caller->begin = (unsigned long)task_stack_page(current);
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
