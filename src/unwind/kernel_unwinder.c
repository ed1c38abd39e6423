// SPDX-License-Identifier: GPL-2.0
/*
 * What the walk needs of the kernel's own unwinder, whichever it is. Its steps, for the walk where
 * no rule applies and for learning rules, are in orc.c and frame_pointer.c; with another unwinder,
 * stacks are not walked by rules. For arm64, frame_record.c has all of this.
 */
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/stacktrace.h>

#include "../shim/shim.h"
#include "unwind.h"

#if defined(CONFIG_UNWINDER_ORC) || defined(CONFIG_UNWINDER_FRAME_POINTER)

#include <asm/unwind.h>

/* Read-only, so any number of contexts can learn on it at the same time. */
unsigned long stackmap_learn_stack[STACKMAP_LEARN_WORDS] __ro_after_init;

/**
 * stackmap_unwind_prepare - prepare the stack for learning
 *
 * Context: process, before anything else is called here.
 * Return: 0, -ENOENT if this kernel lacks a symbol, or -EOPNOTSUPP with another unwinder.
 */
int stackmap_unwind_prepare(void)
{
	unsigned int i;

	if (!stackmap_symbols.can_unwind)
		return -ENOENT;
	for (i = 0; i < STACKMAP_LEARN_WORDS; i++)
		stackmap_learn_stack[i] = STACKMAP_LEARN_WORD(i);
	stackmap_learn_stack[STACKMAP_LEARN_LINK_0] =
		(unsigned long)&stackmap_learn_stack[STACKMAP_LEARN_LINKED_0];
	stackmap_learn_stack[STACKMAP_LEARN_LINK_1] =
		(unsigned long)&stackmap_learn_stack[STACKMAP_LEARN_LINKED_1];
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
 * stackmap_unwind_is_bpf - whether a call that returns to an address is one of a BPF image
 * @ip: the address
 *
 * True while the kernel takes the image, a program or a trampoline, for text. Its memory is not
 * reused before. The kernel's unwinder wants text at the address, and goes by what the byte before
 * is in: a module comes first, and the byte after an image counts as the image's. If both are an
 * image's, the byte before is no module's.
 *
 * Context: any in which RCU is watching; preemption off.
 */
bool stackmap_unwind_is_bpf(unsigned long ip)
{
	if (ip >= stackmap_facts.stext && ip < stackmap_facts.etext)
		return false;
	return static_call(stackmap_bpf_text)(ip) && static_call(stackmap_bpf_text)(ip - 1);
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

bool stackmap_unwind_is_bpf(unsigned long ip)
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

bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool is_set)
{
	return false;
}

bool stackmap_unwind_is_text(unsigned long ip)
{
	return false;
}

#endif
