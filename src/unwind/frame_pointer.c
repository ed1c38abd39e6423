// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own unwinder, a step at a time, where it follows frame pointers.
 *
 * A function has pushed the frame pointer of its caller below its return address, and its own
 * frame pointer is where that is: a frame record. The stack pointer of a frame, as the walk has it,
 * is after the return address, so it says where the record is.
 */
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/stacktrace.h>

#include "../shim/shim.h"
#include "unwind.h"

#ifdef CONFIG_UNWINDER_FRAME_POINTER

#include <asm/unwind.h>

/* The frame record below a stack pointer after the return address: both words of it. */
static unsigned long *record_of(unsigned long sp)
{
	return (unsigned long *)sp - 2;
}

static void set_frame(struct stackmap_frame *frame, const struct unwind_state *state)
{
	const struct stack_info *stack = &state->stack_info;

	frame->ip = state->ip;
	frame->interrupted = state->regs;
	if (state->regs) {
		/* The kernel's state has these registers, and steps from them. */
		frame->sp = (unsigned long)state->regs;
		frame->bp = 0;
	} else {
		frame->sp = (unsigned long)(state->bp + 2);
		frame->bp = READ_ONCE_NOCHECK(*state->bp);
	}
	frame->registers = 0;
	frame->irq_stack = stack->type == STACK_TYPE_IRQ;
	frame->begin = (unsigned long)stack->begin;
	/*
	 * The walk takes a frame that ends at @end for the last one of the task. On other stacks
	 * @end is odd, so that no frame does. That leaves out their last word: the kernel steps
	 * from there.
	 */
	frame->end = stack->type == STACK_TYPE_TASK ? frame->begin + STACKMAP_STACK_SIZE :
						      (unsigned long)stack->end - 1;
}

/*
 * As in orc.c. The frame of a call sets @trial->signal to false, all else to the opposite of
 * @signal, so that nothing looks like the end of a walk.
 */
void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_trial *trial)
{
	const unsigned long *stack = stackmap_learn_stack;
	struct unwind_state state = {
		.stack_info = {
			.type	= STACK_TYPE_TASK,
			.begin	= (void *)stack,
			.end	= (void *)(stack + STACKMAP_LEARN_WORDS),
		},
		.task		= current,
		.ip		= ip,
		.bp		= record_of((unsigned long)&stack[sp]),
		.orig_sp	= record_of((unsigned long)&stack[sp]),
		/* In place of what is in the record: no word of the stack is an address. */
		.next_bp	= (unsigned long *)&stack[bp],
	};

	*trial = (struct stackmap_trial){ .signal = !signal };
	if (!unwind_next_frame(&state) || state.regs)
		return;
	trial->next = true;
	trial->signal = false;
	trial->same_stack = state.stack_info.begin == stack;
	trial->ip = state.ip - STACKMAP_LEARN_WORD(0);
	trial->sp = (unsigned long)(state.bp + 2) - (unsigned long)stack;
	trial->bp = *state.bp - (unsigned long)stack;
	trial->bp_word = *state.bp - STACKMAP_LEARN_WORD(0);
}

/* As in orc.c, on whichever stack. */
bool stackmap_unwind_begin(struct stackmap_frame *frame, struct unwind_state *state)
{
	unsigned long *record = record_of(frame->sp);
	struct pt_regs regs = {
		.ip = frame->ip,
		.sp = (unsigned long)record,
		.bp = (unsigned long)record,
	};

	__unwind_start(state, current, &regs, record);
	if (unwind_done(state) || state->bp != record)
		return false;
	/* There are no registers. */
	state->got_irq = false;
	set_frame(frame, state);
	return true;
}

/* As in orc.c. If @state is not set, all frames of the walk were on one stack. */
bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool is_set)
{
	if (!is_set && !stackmap_unwind_begin(frame, state))
		return false;
	/* Of a frame that was interrupted, the state has the registers. */
	if (!frame->interrupted) {
		state->ip = frame->ip;
		state->bp = record_of(frame->sp);
		state->regs = NULL;
		state->next_bp = NULL;
	}
	if (!unwind_next_frame(state))
		return false;
	set_frame(frame, state);
	return true;
}

#endif /* CONFIG_UNWINDER_FRAME_POINTER */
