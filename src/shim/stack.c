// SPDX-License-Identifier: GPL-2.0
/*
 * The function that runs in place of __ftrace_trace_stack(): guards, nesting, unwinding.
 *
 * It follows the kernel's own, step by step, up to the point where the stack is written.
 */
#include <linux/cpumask.h>
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/topology.h>
#include <linux/trace_recursion.h>

#include "shim.h"
#include "unwind.h"

struct stack_frames {
	unsigned long calls[STACKMAP_MAX_FRAMES];
};

/* Stacks being recorded on this CPU now, and a buffer for each. */
struct stack_nest {
	int depth;
	struct stack_frames *levels;
};

static DEFINE_PER_CPU(struct stack_nest, stack_nest);

static atomic_long_t stack_nested;

/* How stacks are walked; set before the first one is. */
static bool by_rules __read_mostly;
static bool verifies __read_mostly;

/* ftrace:stack_id in the top level, and the instances that are served as the top level is. */
static struct trace_event_file *top_file;
static struct stackmap_served served[STACKMAP_INSTANCES];
static unsigned int nr_served;

/**
 * stackmap_stack_alloc - allocate the frame buffers of all CPUs
 *
 * Context: process, may sleep.
 * Return: 0 or -ENOMEM.
 */
int stackmap_stack_alloc(void)
{
	/* The second half is for the kernel's. */
	const unsigned int levels = verifies ? 2 * STACKMAP_LEVELS : STACKMAP_LEVELS;
	int cpu;

	for_each_possible_cpu(cpu) {
		struct stack_nest *nest = per_cpu_ptr(&stack_nest, cpu);

		nest->levels = kvmalloc_node(levels * sizeof(*nest->levels), GFP_KERNEL,
					     cpu_to_node(cpu));
		if (!nest->levels) {
			stackmap_stack_free();
			return -ENOMEM;
		}
	}
	return 0;
}

void stackmap_stack_free(void)
{
	int cpu;

	stackmap_verify_end();

	for_each_possible_cpu(cpu) {
		struct stack_nest *nest = per_cpu_ptr(&stack_nest, cpu);

		kvfree(nest->levels);
		nest->levels = NULL;
	}
}

/**
 * stackmap_contexts - the number of contexts that stackmap_record() may name
 *
 * Context: any.
 * Return: STACKMAP_LEVELS for each possible CPU number.
 */
unsigned int stackmap_contexts(void)
{
	return nr_cpu_ids * STACKMAP_LEVELS;
}

/**
 * stackmap_stack_nested - stacks that were lost because too many were being recorded
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
 * stackmap_serve_top - name the event that the top level's ids are recorded as
 * @file: ftrace:stack_id in the top-level trace array
 *
 * Context: process, before any hook is installed.
 */
void stackmap_serve_top(struct trace_event_file *file)
{
	top_file = file;
}

/**
 * stackmap_serve - record the stacks of these instances as ids, besides those of the top level
 * @instances: the instances, instead of those of the last call
 * @nr: their number, STACKMAP_INSTANCES at most
 *
 * A CPU that looks meanwhile may not find an instance, or find it with the event of another: it
 * records the full stack. What is not served any more may be used until stackmap_hook_drain().
 *
 * Context: process, callers serialise.
 */
void stackmap_serve(const struct stackmap_served *instances, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		WRITE_ONCE(served[i].file, instances[i].file);
		WRITE_ONCE(served[i].tr, instances[i].tr);
	}
	WRITE_ONCE(nr_served, nr);
}

/* The event that ids of a trace array are recorded as, or NULL if there are to be none. */
static __always_inline struct trace_event_file *file_of(const struct trace_array *tr)
{
	unsigned int i, nr;

	if (likely(tr == stackmap_tr))
		return top_file;
	nr = READ_ONCE(nr_served);
	for (i = 0; i < nr; i++)
		if (READ_ONCE(served[i].tr) == tr)
			return READ_ONCE(served[i].file);
	return NULL;
}

bool stackmap_serves(const struct trace_array *tr)
{
	return file_of(tr);
}

NOKPROBE_SYMBOL(stackmap_serves);

/* The one place that unwinds. With verify=1 a second half of the levels is for the kernel's. */
static __always_inline unsigned int unwind(unsigned long *calls, int skip, struct pt_regs *regs,
					   bool watched)
{
	unsigned long *spare;
	int nr;

	if (!READ_ONCE(by_rules))
		return unwind_by_kernel(calls, skip, regs);
	if (unlikely(regs || skip < 0 || !watched)) {
		stackmap_unwound_whole();
		return unwind_by_kernel(calls, skip, regs);
	}
	nr = unwind_by_rules(calls, skip);
	if (unlikely(nr < 0)) {
		stackmap_unwound_whole();
		return unwind_by_kernel(calls, skip, regs);
	}
	if (likely(!READ_ONCE(verifies)))
		return nr;
	spare = calls + STACKMAP_LEVELS * STACKMAP_MAX_FRAMES;
	return stackmap_verify(calls, nr, spare, unwind_by_kernel(spare, skip, regs));
}

/**
 * stackmap_stack_use - choose how stacks are walked
 * @rules: by rules, where that can be done; else by the kernel's unwinder alone
 * @check: also by the kernel's unwinder, each time, and compare
 *
 * Context: process, before stackmap_stack_alloc().
 */
void stackmap_stack_use(bool rules, bool check)
{
	WRITE_ONCE(verifies, rules && check);
	WRITE_ONCE(by_rules, rules);
}

/**
 * stackmap_stack_by_rules - whether stacks are walked by rules
 *
 * Context: any.
 * Return: what stackmap_stack_use() was told.
 */
bool stackmap_stack_by_rules(void)
{
	return READ_ONCE(by_rules);
}

static __always_inline void mark_trampolines(unsigned long *calls, unsigned int nr)
{
#ifdef CONFIG_DYNAMIC_FTRACE
	const struct ftrace_ops *ops = stackmap_symbols.global_ops;
	unsigned long start, end;
	unsigned int i;

	if (!ops || !ops->trampoline)
		return;
	start = ops->trampoline;
	end = start + ops->trampoline_size;
	for (i = 0; i < nr; i++)
		if (calls[i] >= start && calls[i] < end)
			calls[i] = STACKMAP_TRAMPOLINE_MARKER;
#endif
}

/**
 * stackmap_trace_stack - record the current stack
 * @tr: the trace array that an event was written for
 * @buffer: its ring buffer
 * @trace_ctx: flags and preempt count at the event
 * @skip: innermost frames to leave out
 * @regs: where to start, or NULL for the caller
 *
 * Reached by a hook at the entry of __ftrace_trace_stack(), as if called in its place.
 *
 * Context: any, NMI included.
 */
void stackmap_trace_stack(struct trace_array *tr, struct trace_buffer *buffer,
			  unsigned int trace_ctx, int skip, struct pt_regs *regs)
{
	struct stackmap_site site = {
		.file = file_of(tr),
		.buffer = buffer,
		.trace_ctx = trace_ctx,
	};
	struct stack_nest *nest;
	unsigned long *calls;
	unsigned int nr;
	int level, bit;
	bool watched;

	if (unlikely(!site.file)) {
		/* Another instance: as ever, one frame (this one) deeper. No tail call. */
		static_call(stackmap_trace_stack_orig)(tr, buffer, trace_ctx, skip + !regs, regs);
		barrier();
		return;
	}

	/*
	 * The guard is a bit in a word of this task's, the depth is this CPU's. An interrupt, which
	 * has bits of its own, leaves both as it found them: nothing is lost where one comes.
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

	watched = rcu_is_watching();
	calls = nest->levels[level].calls;
	nr = unwind(calls, skip, regs, watched);
	mark_trampolines(calls, nr);
	stackmap_record(&site, smp_processor_id() * STACKMAP_LEVELS + level, calls, nr, watched);
out:
	barrier();
	/* As above. */
	data_race((nest->depth--, trace_clear_recursion(bit), 0));
}
