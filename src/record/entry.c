// SPDX-License-Identifier: GPL-2.0
/*
 * The function that runs in place of __ftrace_trace_stack(): guards and nesting.
 *
 * It follows the kernel's own, step by step, up to the point where the stack is walked.
 */
#include <linux/context_tracking.h>
#include <linux/cpumask.h>
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/topology.h>
#include <linux/trace_recursion.h>

#include "../shim/shim.h"
#include "slot.h"
#include "../unwind/unwind.h"

/* What a stack is recorded in. What is the same for each of them is set in advance. */
struct stack_level {
	STACKMAP_UNWIND_STATE(state);
	struct stackmap_stack stack;
	unsigned long ips[STACKMAP_MAX_FRAMES];
};

/* Stacks being recorded on this CPU now, and a level for each. */
struct stack_nest {
	int depth;
	struct stack_level *levels;
};

static DEFINE_PER_CPU(struct stack_nest, stack_nest);

static atomic_long_t stack_nested;

/* Whether stacks are walked by rules if possible, and without the kernel's unwinder to compare. */
static bool by_rules __read_mostly;
static bool by_rules_only __read_mostly;

/*
 * The trace arrays whose stacks become ids: the top level, then instances. A slot is free while its
 * tr is NULL. A CPU that has loaded tr sees the rest of the slot: O5 of Documentation/design.rst.
 */
struct stackmap_slot stackmap_slots[STACKMAP_SLOTS];

struct stackmap_slot *stackmap_slots_end = stackmap_slots;

/**
 * stackmap_stack_alloc - allocate the frame buffers of all CPUs
 * @rules: whether stacks are walked by rules if possible
 * @verify: whether the kernel's unwinder walks them too, to compare
 *
 * Context: process, may sleep; nothing is recorded yet.
 * Return: 0 or -ENOMEM.
 */
int stackmap_stack_alloc(bool rules, bool verify)
{
	/* The second half is for the frames of the kernel's unwinder. */
	const unsigned int levels = verify ? 2 * STACKMAP_LEVELS : STACKMAP_LEVELS;
	int cpu;

	by_rules = rules;
	by_rules_only = rules && !verify;
	for_each_possible_cpu(cpu) {
		struct stack_nest *nest = per_cpu_ptr(&stack_nest, cpu);
		int level;

		nest->levels = kvzalloc_node(levels * sizeof(*nest->levels), GFP_KERNEL,
					     cpu_to_node(cpu));
		if (!nest->levels) {
			stackmap_stack_free();
			return -ENOMEM;
		}
		for (level = 0; level < STACKMAP_LEVELS; level++) {
			struct stack_level *one = &nest->levels[level];

			one->stack = (struct stackmap_stack) {
				.context	= cpu * STACKMAP_LEVELS + level,
				.from_caller	= true,
				.nr_kernel	= -1,
				.ips		= one->ips,
				.kernel		= verify ? one[STACKMAP_LEVELS].ips : one->ips,
				.state		= (void *)&one->state,
			};
		}
	}
	return 0;
}

void stackmap_stack_free(void)
{
	int cpu;

	stackmap_mismatch_flush();

	for_each_possible_cpu(cpu) {
		struct stack_nest *nest = per_cpu_ptr(&stack_nest, cpu);

		kvfree(nest->levels);
		nest->levels = NULL;
	}
}

/**
 * stackmap_stack_nested - number of stacks lost because of too many nested recordings
 *
 * The kernel's own function warns and drops such a stack too. The recursion guard has fewer bits
 * than there are levels, so this stays 0.
 *
 * Context: any.
 * Return: the number since the module was loaded.
 */
unsigned long stackmap_stack_nested(void)
{
	return atomic_long_read(&stack_nested);
}

/**
 * stackmap_serve - record the stacks of a trace array as ids
 * @nr: its slot, which is free
 * @new: the trace array, its event, and its function tracer if that is known
 *
 * Context: process, callers serialise.
 */
void stackmap_serve(unsigned int nr, const struct stackmap_served *new)
{
	struct stackmap_slot *slot = &stackmap_slots[nr];

	WRITE_ONCE(slot->served.file, new->file);
	WRITE_ONCE(slot->served.ops, new->ops);
	WRITE_ONCE(slot->served.rule, 0);
	WRITE_ONCE(slot->served.buffer, NULL);
	/* Release; O5, pairs with the loads in stackmap_serves() and stackmap_hook_entry(). */
	smp_store_release(&slot->served.tr, new->tr);
	WRITE_ONCE(stackmap_slots_end, max(stackmap_slots_end, slot + 1));
}

/**
 * stackmap_unserve - record the stacks of a trace array as full stacks again
 * @nr: its slot
 *
 * CPUs may use the slot until stackmap_hook_drain() returns.
 *
 * Context: process, callers serialise.
 */
void stackmap_unserve(unsigned int nr)
{
	struct stackmap_slot *end = stackmap_slots_end;

	WRITE_ONCE(stackmap_slots[nr].asks, false);
	WRITE_ONCE(stackmap_slots[nr].served.tr, NULL);
	while (end > stackmap_slots && !end[-1].served.tr)
		end--;
	WRITE_ONCE(stackmap_slots_end, end);
}

/**
 * stackmap_serves - whether stacks of a trace array become ids
 * @tr: the trace array
 *
 * Context: any.
 * Return: true or false.
 */
bool stackmap_serves(const struct trace_array *tr)
{
	const struct stackmap_slot *slot, *end;

	stackmap_for_each_served(slot, end)
		/* Acquire; O5, pairs with the store in stackmap_serve(). */
		if (smp_load_acquire(&slot->served.tr) == tr)
			return true;
	return false;
}

NOKPROBE_SYMBOL(stackmap_serves);

/* The text that calls a tracer, if it has text of its own. */
static __always_inline struct stackmap_text trampoline_of(const struct ftrace_ops *ops)
{
	struct stackmap_text text = { };

#ifdef CONFIG_DYNAMIC_FTRACE
	if (ops && ops->trampoline) {
		text.start = ops->trampoline;
		text.end = text.start + ops->trampoline_size;
	}
#endif
	return text;
}

/**
 * stackmap_set_tracer - set what is known of the function tracer of a stack's trace array
 * @stack: the stack
 *
 * Context: any.
 */
void stackmap_set_tracer(struct stackmap_stack *stack)
{
	const struct ftrace_ops *ops = READ_ONCE(stack->site.slot->ops);

	stack->trampoline = trampoline_of(ops);
	stack->tracer_unknown = IS_ENABLED(CONFIG_DYNAMIC_FTRACE) && !ops;
}

NOKPROBE_SYMBOL(stackmap_set_tracer);

/**
 * stackmap_find_tracer - find the function tracer of a stack's trace array by its trampoline
 * @stack: the stack; its trampoline is set if it is found
 * @ips: return addresses
 * @nr: the number of them
 *
 * The tracer is remembered in the slot: it exists as long as its trace array, but it is on the list
 * of tracers only while it traces.
 *
 * Context: any in which RCU is watching, NMI included; preemption off.
 */
void stackmap_find_tracer(struct stackmap_stack *stack, const unsigned long *ips, unsigned int nr)
{
#ifdef CONFIG_DYNAMIC_FTRACE
	struct stackmap_served *slot = stack->site.slot;
	struct ftrace_ops *ops;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		if (ips[i] >= stackmap_facts.stext && ips[i] < stackmap_facts.etext)
			continue;
		ops = static_call(stackmap_ops_trampoline)(ips[i]);
		if (ops && ops->private == slot->tr) {
			WRITE_ONCE(slot->ops, ops);
			stack->trampoline = trampoline_of(ops);
			return;
		}
	}
#endif
}

/**
 * stackmap_is_tracer - whether the kernel's unwinder knows the trampoline that an address is in
 * @ip: the address
 *
 * Context: any in which RCU is watching, NMI included; preemption off.
 * Return: whether a tracer that has a trampoline there is registered.
 */
bool stackmap_is_tracer(unsigned long ip)
{
#ifdef CONFIG_DYNAMIC_FTRACE
	return static_call(stackmap_ops_trampoline)(ip);
#else
	return false;
#endif
}

NOKPROBE_SYMBOL(stackmap_is_tracer);

/* rcu_is_watching() where preemption is off: without a call, if possible. */
static __always_inline bool is_watching(void)
{
#ifdef CONFIG_CONTEXT_TRACKING_IDLE
	return rcu_is_watching_curr_cpu();
#else
	return rcu_is_watching();
#endif
}

/* Records a stack, with a request for the user stack or without. */
static __always_inline bool record(struct stackmap_stack *stack, bool asks)
{
	return unlikely(asks) ? stackmap_record_user(stack) : stackmap_record(stack);
}

/**
 * stackmap_trace_stack - record the current stack
 * @tr: the trace array that an event was written for
 * @buffer: its ring buffer
 * @trace_ctx: flags and preempt count at the event
 * @skip: innermost frames to leave out
 * @regs: where to start, or NULL for the caller
 * @slot: the trace array's
 *
 * Jumped to by stackmap_hook_entry(), as if called in place of __ftrace_trace_stack().
 *
 * Context: any, NMI included.
 */
void stackmap_trace_stack(struct trace_array *tr, struct trace_buffer *buffer,
			  unsigned int trace_ctx, int skip, struct pt_regs *regs,
			  struct stackmap_slot *slot)
{
	const bool asks = stackmap_slot_asks(slot);
	struct stackmap_stack *stack;
	struct stack_nest *nest;
	int level, bit;

	/*
	 * The guard is a bit in a word of this task, the depth is per CPU. An interrupt uses other
	 * bits and restores both before it returns, so the updates here need not be atomic.
	 */
	bit = data_race(trace_test_and_set_recursion(_THIS_IP_, _RET_IP_, TRACE_EVENT_START));
	if (bit < 0)
		return;

	/* Preemption is off from here on. */
	nest = this_cpu_ptr(&stack_nest);
	/* No race, as above. */
	level = data_race(nest->depth++);
	barrier();
	if (unlikely(level >= STACKMAP_LEVELS)) {
		atomic_long_inc(&stack_nested);
		goto out;
	}

	stack = &nest->levels[level].stack;
	stack->site.slot = &slot->served;
	stack->site.buffer = buffer;
	stack->site.trace_ctx = trace_ctx;
	/*
	 * A grace period does not wait for an offline CPU. On a CPU that goes offline or comes
	 * online, RCU is watching for a part of the time in which the CPU is not online.
	 */
	stack->watched = is_watching() && cpu_online(smp_processor_id());
	stack->skip = stackmap_skipped(skip);
	stack->nr = 0;
	/* Until stackmap_set_tracer() is called. */
	stack->trampoline.end = 0;
	if (IS_ENABLED(CONFIG_UNWINDER_ORC) && unlikely(!skip)) {
		/* As for trace_dump_stack(0): the first frame is the recorder. */
		stack->ips[stack->nr++] = (unsigned long)stackmap_symbols.trace_stack;
		stack->skip = 0;
	}
	set_caller(&stack->caller);
	if (likely(by_rules_only && !regs && skip >= 0)) {
		if (likely(record(stack, asks)))
			goto out;
	} else {
		stack->from_caller = by_rules && !regs && skip >= 0;
	}
	do {
		stack->nr_kernel = unwind_by_kernel(stack->kernel, skip, regs);
	} while (!record(stack, asks));
	stack->from_caller = true;
	stack->nr_kernel = -1;
	stack->retries = 0;
out:
	barrier();
	/* No race, as above. */
	data_race((nest->depth--, trace_clear_recursion(bit), 0));
}
