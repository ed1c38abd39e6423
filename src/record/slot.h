/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A trace array whose stacks become ids, and its requests for user stacks.
 */
#ifndef STACKMAP_RECORD_SLOT_H
#define STACKMAP_RECORD_SLOT_H

#include <asm/barrier.h>
#include <linux/build_bug.h>
#include <linux/compiler.h>

#include <stackmap_shim.h>

#include "../user/unwind.h"

struct pt_regs;

/* The size of a slot, also for stackmap_hook_entry(). */
#define STACKMAP_SLOT_SIZE	128

struct stackmap_slot {
	struct stackmap_served served;
	struct unwind_work work;
	bool has_work;		/* @work is known to the kernel */
	bool asks;		/* stacks request user stacks by it */
} __aligned(STACKMAP_SLOT_SIZE);

static_assert(sizeof(struct stackmap_slot) == STACKMAP_SLOT_SIZE);
/* stackmap_hook_entry() compares it. */
static_assert(offsetof(struct stackmap_slot, served.tr) == 0);

/* Whether stacks request user stacks; if so, the work is initialised. Context: any. */
static __always_inline bool stackmap_slot_asks(const struct stackmap_slot *slot)
{
	/* Acquire; pairs with the store in stackmap_user_ask(). */
	return smp_load_acquire(&slot->asks);
}

/* The top level's slot is the first one. */
extern struct stackmap_slot stackmap_slots[STACKMAP_SLOTS];

/* After the last one that is served. */
extern struct stackmap_slot *stackmap_slots_end;

#define stackmap_for_each_served(slot, end)					\
	for ((slot) = stackmap_slots, (end) = READ_ONCE(stackmap_slots_end);	\
	     (slot) != (end); (slot)++)

/*
 * Called in place of __ftrace_trace_stack(), with the same arguments: jumps to
 * stackmap_trace_stack() with the slot of a trace array that is served; with any other one, to the
 * kernel's own function, as if that had been called.
 */
void stackmap_hook_entry(struct trace_array *tr, struct trace_buffer *buffer,
			 unsigned int trace_ctx, int skip, struct pt_regs *regs);
void stackmap_trace_stack(struct trace_array *tr, struct trace_buffer *buffer,
			  unsigned int trace_ctx, int skip, struct pt_regs *regs,
			  struct stackmap_slot *slot);

#endif /* STACKMAP_RECORD_SLOT_H */
