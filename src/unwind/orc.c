// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own unwinder, a step at a time, where that is ORC.
 */
#include <linux/sched/task_stack.h>
#include <linux/stacktrace.h>

#include "../shim/shim.h"
#include "unwind.h"

#ifdef CONFIG_UNWINDER_ORC

#include <asm/unwind.h>

/**
 * stackmap_unwind_try - see what the kernel's unwinder does after a call
 * @ip: the address that the call returns to
 * @sp: where the stack pointer is, a word of the stack for learning
 * @bp: where the frame pointer is
 * @signal: any; an end of the walk leaves it as it is, any other outcome changes one of two
 * @trial: set to what it did
 *
 * Context: any in which RCU is watching.
 */
void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_trial *trial)
{
	struct unwind_state state = {
		.stack_info = {
			.type	= STACK_TYPE_TASK,
			.begin	= stackmap_learn_stack,
			.end	= stackmap_learn_stack + STACKMAP_LEARN_WORDS,
		},
		.task	= current,
		/* Suppresses warnings. */
		.error	= true,
		.signal	= signal,
		.ip	= ip - signal,
		.sp	= (unsigned long)&stackmap_learn_stack[sp],
		.bp	= (unsigned long)&stackmap_learn_stack[bp],
	};

	trial->next = unwind_next_frame(&state);
	trial->signal = state.signal;
	trial->same_stack = state.stack_info.begin == stackmap_learn_stack;
	trial->all_regs = state.regs && state.full_regs;
	trial->some_regs = state.regs;
	trial->ip = state.ip - STACKMAP_LEARN_WORD(0);
	trial->sp = state.sp - (unsigned long)stackmap_learn_stack;
	trial->bp = state.bp - (unsigned long)stackmap_learn_stack;
	trial->bp_word = state.bp - STACKMAP_LEARN_WORD(0);
	trial->regs = (unsigned long)state.regs - (unsigned long)stackmap_learn_stack;
}

/**
 * stackmap_unwind_begin - begin a walk on another stack than the task's
 * @frame: the frame to begin at; the stack that it is on is set
 * @state: set so that stackmap_unwind_step() can go on
 *
 * Context: any in which RCU is watching; preemption off.
 * Return: whether the kernel knows that stack.
 */
bool stackmap_unwind_begin(struct stackmap_frame *frame, struct unwind_state *state)
{
	struct pt_regs regs = {
		.ip = frame->ip - 1,
		.sp = frame->sp,
		.bp = frame->bp,
	};
	const size_t len = 2 * sizeof(long);

	/* __unwind_start() makes one step, which is not used. */
	__unwind_start(state, current, &regs, NULL);
	if (!on_stack(&state->stack_info, (void *)(frame->sp - len), len))
		return false;
	state->graph_idx = 0;
#ifdef CONFIG_RETHOOK
	state->kr_cur = NULL;
#endif
	state->error = false;
	state->signal = false;
	state->full_regs = false;
	state->regs = NULL;
	state->prev_regs = NULL;
	frame->begin = (unsigned long)state->stack_info.begin;
	frame->end = (unsigned long)state->stack_info.end;
	frame->irq_stack = state->stack_info.type == STACK_TYPE_IRQ;
	return true;
}

/**
 * stackmap_unwind_step - step to the caller as the kernel's unwinder does
 * @frame: the frame, then its caller's
 * @state: of the walk
 * @is_set: whether @state is set; if not, all frames of the walk were found by rules
 *
 * Context: any in which RCU is watching; preemption off.
 * Return: whether there is a caller.
 */
bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool is_set)
{
	if (!is_set) {
		/* Rules lead from the task's stack, and from that for interrupts to the task's. */
		const bool on_task = frame->begin == (unsigned long)task_stack_page(current);
		const enum stack_type type = on_task ? STACK_TYPE_TASK : STACK_TYPE_IRQ;

		*state = (struct unwind_state) {
			.task		= current,
			.stack_info	= {
				.type	= type,
				.begin	= (void *)frame->begin,
				.end	= (void *)frame->end,
			},
			.stack_mask	= 1UL << type,
		};
	}
	if (frame->registers) {
		state->signal = true;
		state->regs = (struct pt_regs *)frame->registers;
		state->full_regs = true;
	}
	state->ip = frame->ip;
	state->sp = frame->sp;
	state->bp = frame->bp;
	if (!unwind_next_frame(state))
		return false;
	frame->ip = state->ip;
	frame->sp = state->sp;
	frame->bp = state->bp;
	frame->begin = (unsigned long)state->stack_info.begin;
	frame->end = (unsigned long)state->stack_info.end;
	frame->interrupted = state->signal || state->regs;
	frame->registers = 0;
	return true;
}

#endif /* CONFIG_UNWINDER_ORC */
