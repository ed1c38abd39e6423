// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own unwinder, a step at a time: for the walk where no rule applies, and for learning
 * rules. x86-64 with ORC; elsewhere stacks are not walked by rules.
 */
#include <linux/module.h>
#include <linux/sched/task_stack.h>
#include <linux/stacktrace.h>

#include "../shim/shim.h"

#ifdef CONFIG_UNWINDER_ORC

#include <asm/unwind.h>

/*
 * A stack for learning. Each word encodes its own index and is no address, but two, which lead to
 * words further up. The stack is read-only, so any number of contexts can learn on it at the same
 * time.
 */
#define LEARN_WORD(i)	(0x5eed000000000000UL + (i))

static unsigned long learn_stack[STACKMAP_LEARN_WORDS] __ro_after_init;

/**
 * stackmap_unwind_prepare - prepare the stack for learning
 *
 * Context: process, before anything else is called here.
 * Return: 0, or -ENOENT if this kernel lacks a symbol.
 */
int stackmap_unwind_prepare(void)
{
	unsigned int i;

	if (!stackmap_symbols.can_unwind)
		return -ENOENT;
	for (i = 0; i < STACKMAP_LEARN_WORDS; i++)
		learn_stack[i] = LEARN_WORD(i);
	learn_stack[STACKMAP_LEARN_LINK_0] = (unsigned long)&learn_stack[STACKMAP_LEARN_LINKED_0];
	learn_stack[STACKMAP_LEARN_LINK_1] = (unsigned long)&learn_stack[STACKMAP_LEARN_LINKED_1];
	return 0;
}

/**
 * stackmap_unwind_is_stable - whether a rule may be kept for the text at an address
 * @ip: the address
 *
 * True for the kernel's text and for the text of a live module. False for trampolines, BPF, init
 * text and live patches, which can be freed without a module notifier.
 *
 * Context: any in which RCU is watching; preemption off.
 */
bool stackmap_unwind_is_stable(unsigned long ip)
{
	const struct module *mod;

	if (ip >= stackmap_facts.stext && ip < stackmap_facts.etext)
		return true;
	mod = static_call(stackmap_module_text)(ip);
	return mod && mod->state == MODULE_STATE_LIVE && !is_livepatch_module((void *)mod) &&
	       within_module_mem_type(ip, mod, MOD_TEXT);
}

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
			.begin	= learn_stack,
			.end	= learn_stack + STACKMAP_LEARN_WORDS,
		},
		.task	= current,
		/* Suppresses warnings. */
		.error	= true,
		.signal	= signal,
		.ip	= ip - signal,
		.sp	= (unsigned long)&learn_stack[sp],
		.bp	= (unsigned long)&learn_stack[bp],
	};

	trial->next = unwind_next_frame(&state);
	trial->signal = state.signal;
	trial->same_stack = state.stack_info.begin == learn_stack;
	trial->all_regs = state.regs && state.full_regs;
	trial->some_regs = state.regs;
	trial->ip = state.ip - LEARN_WORD(0);
	trial->sp = state.sp - (unsigned long)learn_stack;
	trial->bp = state.bp - (unsigned long)learn_stack;
	trial->bp_word = state.bp - LEARN_WORD(0);
	trial->regs = (unsigned long)state.regs - (unsigned long)learn_stack;
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
 * @begun: whether @state is set; if not, all frames of the walk were found by rules
 *
 * Context: any in which RCU is watching; preemption off.
 * Return: whether there is a caller.
 */
bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool begun)
{
	if (!begun) {
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

/**
 * stackmap_unwind_is_text - whether there is text at an address, as the kernel's unwinder has it
 * @ip: the address
 *
 * Context: any in which RCU is watching; preemption off.
 */
bool stackmap_unwind_is_text(unsigned long ip)
{
	struct unwind_state state = {
		.stack_info.type	= STACK_TYPE_TASK,
		.ip			= ip,
	};

	return unwind_get_return_address(&state);
}

#else

int stackmap_unwind_prepare(void)
{
	return -EOPNOTSUPP;
}

bool stackmap_unwind_is_stable(unsigned long ip)
{
	return false;
}

void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_trial *trial)
{
	*trial = (struct stackmap_trial){ };
}

bool stackmap_unwind_begin(struct stackmap_frame *frame, struct unwind_state *state)
{
	return false;
}

bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool begun)
{
	return false;
}

bool stackmap_unwind_is_text(unsigned long ip)
{
	return false;
}

#endif /* CONFIG_UNWINDER_ORC */
