// SPDX-License-Identifier: GPL-2.0
/*
 * The steps that the walk by frame records does not take by itself, on arm64: to registers and from
 * them, and from the CPU's stack for interrupts to the task's.
 *
 * The kernel's unwinder has no function that takes one step. These take it with the same checks,
 * see kunwind_next_frame_record() and what it calls in arch/arm64/kernel/stacktrace.c. Where it
 * would go to another stack, end with an error, or look up a return address that a tracer has
 * replaced, the walk gives up, and the kernel's unwinder walks the whole stack.
 */
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>

#include <asm/memory.h>

#include "../shim/shim.h"
#include "unwind.h"

/* A caller's frame pointer and a return address. */
#define RECORD_SIZE	(2 * sizeof(unsigned long))

/**
 * stackmap_unwind_prepare - see whether stacks can be walked here
 *
 * Context: process, before anything else is called here.
 * Return: 0, or -ENOENT if this kernel lacks a symbol.
 */
int stackmap_unwind_prepare(void)
{
	return stackmap_symbols.can_unwind ? 0 : -ENOENT;
}

/* The kernel's unwinder takes the same step from any address, whatever is there. */
bool stackmap_unwind_is_stable(unsigned long ip)
{
	return true;
}

bool stackmap_unwind_is_bpf(unsigned long ip)
{
	return false;
}

bool stackmap_unwind_is_text(unsigned long ip)
{
	return true;
}

/* So there is nothing to learn. */
void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_trial *trial)
{
	*trial = (struct stackmap_trial){ };
}

static bool is_replaced(unsigned long ip)
{
	return ip == stackmap_facts.return_to_handler || ip == stackmap_facts.rethook_trampoline;
}

static bool is_on(unsigned long addr, size_t len, unsigned long begin, unsigned long end)
{
	return addr >= begin && addr < end && end - addr >= len;
}

/* As in orc.c, on the CPU's stack for interrupts. @state is not used. */
bool stackmap_unwind_begin(struct stackmap_frame *frame, struct unwind_state *state)
{
	const unsigned long begin = (unsigned long)*this_cpu_ptr(stackmap_symbols.irq_stack_ptr);
	const unsigned long end = begin + IRQ_STACK_SIZE;
	const size_t len = RECORD_SIZE;

	if (!begin || !is_on(frame->sp - len, len, begin, end))
		return false;
	frame->begin = begin;
	frame->end = end;
	frame->irq_stack = true;
	return true;
}

/*
 * Goes to the registers whose record @record is, if its type says so and they are on the frame's
 * stack. Without types, the record of an interrupt has the address that was interrupted.
 */
static bool step_to_registers(struct stackmap_frame *frame, unsigned long record,
			      unsigned long end)
{
#ifdef STACKMAP_HAS_FRAME_TYPES
	const struct frame_record_meta *meta = (void *)record;
	const struct pt_regs *regs = container_of(meta, struct pt_regs, stackframe);
	const unsigned long at = (unsigned long)regs;
	unsigned long pc;

	if (!is_on(at, sizeof(*regs), frame->sp, end) ||
	    READ_ONCE_NOCHECK(meta->type) != FRAME_META_TYPE_PT_REGS)
		return false;
	pc = stackmap_returns_to(READ_ONCE_NOCHECK(regs->pc));
	if (is_replaced(pc))
		return false;
	frame->ip = pc;
	frame->sp = at + sizeof(*regs);
	frame->bp = READ_ONCE_NOCHECK(regs->regs[29]);
	frame->interrupted = true;
	return true;
#else
	return false;
#endif
}

/*
 * As in orc.c, without @state. If there is no caller, and the frame is not the last one of the
 * task, the kernel's unwinder may still find one.
 */
bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool is_set)
{
	const unsigned long task = (unsigned long)task_stack_page(current);
	const bool on_task = frame->begin == task;
	const unsigned long record = frame->bp;
	/* Where memory ends, not frames: registers may be the last that is there. */
	unsigned long end = on_task ? task + THREAD_SIZE : frame->end;
	unsigned long fp, lr;

	if (record & 7)
		return false;
	if (!is_on(record, RECORD_SIZE, frame->sp, end)) {
		end = task + THREAD_SIZE;
		/* From interrupts to the task, and never back. */
		if (on_task || !is_on(record, RECORD_SIZE, task, end))
			return false;
		frame->begin = task;
		frame->end = task + STACKMAP_STACK_SIZE;
		frame->irq_stack = false;
		/* All of this stack is after the frame. */
		frame->sp = task;
	}
	fp = READ_ONCE_NOCHECK(((unsigned long *)record)[0]);
	lr = READ_ONCE_NOCHECK(((unsigned long *)record)[1]);
	if (!fp && !lr)
		return step_to_registers(frame, record, end);
	lr = stackmap_returns_to(lr);
	if (is_replaced(lr))
		return false;
	frame->ip = lr;
	frame->sp = record + RECORD_SIZE;
	frame->bp = fp;
	frame->interrupted = false;
	frame->registers = 0;
	return true;
}
