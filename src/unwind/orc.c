// SPDX-License-Identifier: GPL-2.0
/*
 * Walks a stack by rules that have been learnt, and by the kernel's own unwinder where none
 * applies. x86-64 with ORC; elsewhere there is the kernel's own only.
 */
#include <linux/ftrace.h>
#include <linux/irq_work.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched/task_stack.h>
#include <linux/stacktrace.h>

#include "../shim/shim.h"

#ifdef CONFIG_UNWINDER_ORC

#include <asm/unwind.h>

/*
 * A stack for learning. Each word tells its own place and is no address; nobody writes to it, so
 * any number of contexts may learn on it at the same time.
 */
#define LEARN_WORD(i)	(0x5eed000000000000UL + (i))

static unsigned long learn_stack[STACKMAP_LEARN_WORDS] __ro_after_init;

static DEFINE_PER_CPU(unsigned long [STACKMAP_UNWOUND_NR], unwound);

/**
 * stackmap_unwound_whole - count a stack that was not walked here
 *
 * Context: any, NMI included.
 */
void stackmap_unwound_whole(void)
{
	this_cpu_inc(unwound[STACKMAP_SLOW_WHOLE]);
}

/**
 * stackmap_unwound - how frames were found
 * @how: what to count
 *
 * Context: any.
 * Return: the number since the module was loaded, all CPUs.
 */
unsigned long stackmap_unwound(enum stackmap_unwound how)
{
	unsigned long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(unwound, cpu)[how]);
	return sum;
}

/**
 * stackmap_unwind_prepare - make ready what learning needs
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
	return 0;
}

/**
 * stackmap_unwind_keeps - whether the text at an address is there for long
 * @ip: the address
 *
 * So is that of the kernel, and that of a module from the end of its init on. Trampolines, BPF,
 * init text and live patches are not.
 *
 * Context: any in which RCU is watching; preemption off.
 */
bool stackmap_unwind_keeps(unsigned long ip)
{
	const struct module *mod;

	if (ip >= stackmap_symbols.stext && ip < stackmap_symbols.etext)
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
 * @tried: set to what it did
 *
 * Context: any in which RCU is watching.
 */
void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_tried *tried)
{
	struct unwind_state state = {
		.stack_info = {
			.type	= STACK_TYPE_TASK,
			.begin	= learn_stack,
			.end	= learn_stack + STACKMAP_LEARN_WORDS,
		},
		.task	= current,
		/* It does not warn of what it cannot do. */
		.error	= true,
		.signal	= signal,
		.ip	= ip - signal,
		.sp	= (unsigned long)&learn_stack[sp],
		.bp	= (unsigned long)&learn_stack[bp],
	};

	tried->next = unwind_next_frame(&state);
	tried->signal = state.signal;
	tried->same_stack = state.stack_info.begin == learn_stack;
	tried->all_regs = state.regs && state.full_regs;
	tried->some_regs = state.regs;
	tried->ip = state.ip - LEARN_WORD(0);
	tried->sp = state.sp - (unsigned long)learn_stack;
	tried->bp = state.bp - (unsigned long)learn_stack;
	tried->bp_word = state.bp - LEARN_WORD(0);
	tried->regs = (unsigned long)state.regs - (unsigned long)learn_stack;
}

/* What tracers put in the place of a return address: the kernel knows what was there. */
static __always_inline bool replaced_by_tracer(unsigned long ip)
{
	return ip == stackmap_symbols.return_to_handler ||
	       ip == stackmap_symbols.rethook_trampoline;
}

/*
 * Begins at the caller of the function whose frame this is. On another stack than the task's, the
 * kernel is asked which one it is; it makes a step that is not used.
 */
static __always_inline bool begin(struct unwind_state *state, const unsigned long *frame)
{
	unsigned long *stack = task_stack_page(current);

	if (unlikely(replaced_by_tracer(frame[1])))
		return false;
	if (likely((unsigned long)frame - (unsigned long)stack < THREAD_SIZE)) {
		memset(state, 0, sizeof(*state));
		state->task = current;
		state->stack_info.type = STACK_TYPE_TASK;
		state->stack_info.begin = stack;
		state->stack_info.end = (void *)stack + THREAD_SIZE;
		state->stack_mask = 1UL << STACK_TYPE_TASK;
	} else {
		struct pt_regs regs = {
			.ip = frame[1] - 1,
			.sp = (unsigned long)(frame + 2),
			.bp = frame[0],
		};

		__unwind_start(state, current, &regs, NULL);
		if (!on_stack(&state->stack_info, (void *)frame, 2 * sizeof(long)))
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
	}
	state->ip = frame[1];
	state->sp = (unsigned long)(frame + 2);
	state->bp = frame[0];
	return true;
}

static __always_inline bool holds(const struct unwind_state *state, unsigned long addr, size_t len)
{
	const struct stack_info *info = &state->stack_info;

	return addr >= (unsigned long)info->begin && addr + len <= (unsigned long)info->end &&
	       addr + len > addr;
}

static __always_inline unsigned long load(unsigned long addr)
{
	return READ_ONCE_NOCHECK(*(unsigned long *)addr);
}

/* An offset of a rule in bytes. */
static __always_inline long offset(u32 rule, unsigned int shift)
{
	const unsigned int bits = 32 - STACKMAP_RULE_OFFSET;

	return ((s32)(rule << (bits - shift)) >> bits) * (long)sizeof(long);
}

static __always_inline unsigned long new_sp(const struct unwind_state *state, u32 rule)
{
	return (rule & STACKMAP_RULE_BASE_BP ? state->bp : state->sp) +
	       offset(rule, STACKMAP_RULE_SHIFT);
}

enum progress {
	MOVED,	/* to the caller */
	AT_END,	/* there is none */
	STUCK,	/* where it was: the kernel's own unwinder can take the step */
};

/* Steps to the caller as the rule says. If it cannot, says why. */
static __always_inline enum progress call(struct unwind_state *state, u32 rule,
					  enum stackmap_unwound *how)
{
	unsigned long sp = new_sp(state, rule), bp = state->bp, ip;

	*how = STACKMAP_SLOW_STACK;
	if (unlikely(sp <= state->sp || !holds(state, sp - sizeof(long), sizeof(long))))
		return STUCK;
	ip = load(sp - sizeof(long));
	if (unlikely(replaced_by_tracer(ip))) {
		*how = STACKMAP_SLOW_RETURN;
		return STUCK;
	}
	if (rule & (STACKMAP_RULE_BP_AT_SP | STACKMAP_RULE_BP_AT_BP)) {
		bp = (rule & STACKMAP_RULE_BP_AT_SP ? sp : bp) +
		     offset(rule, STACKMAP_RULE_BP_SHIFT);
		if (unlikely(!holds(state, bp, sizeof(long))))
			return STUCK;
		bp = load(bp);
	}
	state->ip = ip;
	state->sp = sp;
	state->bp = bp;
	return MOVED;
}

/* Whether the next frame is the user's, where the kernel's own walk ends. */
static __always_inline bool comes_from_user(const struct unwind_state *state, u32 rule)
{
	unsigned long regs = new_sp(state, rule);

	return holds(state, regs, sizeof(struct pt_regs)) &&
	       (load(regs + offsetof(struct pt_regs, cs)) & 3) &&
	       load(regs + offsetof(struct pt_regs, ip)) < TASK_SIZE_MAX;
}

/* Follows a rule. Leaves @how as it is if the rule was enough. */
static __always_inline enum progress follow(struct unwind_state *state, u32 rule,
					    enum stackmap_unwound *how)
{
	enum stackmap_unwound slow;

	switch (rule & STACKMAP_RULE_KIND) {
	case STACKMAP_RULE_CALL:
		if (likely(call(state, rule, &slow) == MOVED))
			return MOVED;
		*how = slow;
		return STUCK;
	case STACKMAP_RULE_REGISTERS:
		if (likely(comes_from_user(state, rule)))
			return AT_END;
		*how = STACKMAP_SLOW_REGS;
		return STUCK;
	case STACKMAP_RULE_END:
		return AT_END;
	default:
		*how = STACKMAP_SLOW_ODD;
		return STUCK;
	}
}

/**
 * stackmap_unwind - find the callers of a function
 * @frame: its frame: the caller's frame pointer, the return address
 * @calls: set to the return addresses, the innermost first
 * @size: the number that fits
 * @skip: innermost ones to leave out
 *
 * They are those that stack_trace_save() finds.
 *
 * Context: any, NMI included, in which RCU is watching; preemption off.
 * Return: the number of addresses, or -1: this stack cannot be walked here.
 */
int stackmap_unwind(const unsigned long *frame, unsigned long *calls, unsigned int size,
		    unsigned int skip)
{
	struct unwind_state state;
	unsigned int nr = 0, fast = 0;
	enum stackmap_unwound how;
	enum progress progress;
	u32 rule;

	if (unlikely(!begin(&state, frame)))
		return -1;
	do {
		rule = 0;
		how = STACKMAP_SLOW_REGS;
		/* Where an interrupt has hit is no place that a call returns to. */
		if (likely(!state.signal && !state.regs)) {
			rule = stackmap_rule(state.ip);
			how = STACKMAP_FAST;
		}
		/* Where there is a rule there is text. */
		if (unlikely(!rule)) {
			if (!unwind_get_return_address(&state))
				break;
			if (how == STACKMAP_FAST) {
				rule = stackmap_learn(state.ip);
				how = rule ? STACKMAP_SLOW_NEW : STACKMAP_SLOW_TEXT;
			}
		}
		if (skip)
			skip--;
		else
			calls[nr++] = state.ip;
		if (unlikely(nr == size))
			break;
		progress = likely(rule) ? follow(&state, rule, &how) : STUCK;
		if (likely(how == STACKMAP_FAST))
			fast++;
		else
			this_cpu_inc(unwound[how]);
	} while (progress == MOVED || (progress == STUCK && unwind_next_frame(&state)));
	this_cpu_add(unwound[STACKMAP_FAST], fast);
	return nr;
}

NOKPROBE_SYMBOL(stackmap_unwind);

#else

void stackmap_unwound_whole(void)
{
}

unsigned long stackmap_unwound(enum stackmap_unwound how)
{
	return 0;
}

int stackmap_unwind_prepare(void)
{
	return -EOPNOTSUPP;
}

bool stackmap_unwind_keeps(unsigned long ip)
{
	return false;
}

void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_tried *tried)
{
	*tried = (struct stackmap_tried){ };
}

int stackmap_unwind(const unsigned long *frame, unsigned long *calls, unsigned int size,
		    unsigned int skip)
{
	return -1;
}

#endif /* CONFIG_UNWINDER_ORC */
