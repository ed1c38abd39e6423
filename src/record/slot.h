/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A trace array whose stacks become ids, and its requests for user stacks.
 */
#ifndef STACKMAP_RECORD_SLOT_H
#define STACKMAP_RECORD_SLOT_H

#include <asm/barrier.h>
#include <linux/unwind_deferred_types.h>

#include <stackmap_shim.h>

struct stackmap_slot {
	struct stackmap_served served;
	struct unwind_work work;
	bool has_work;		/* @work is known to the kernel */
	bool asks;		/* requests may be made by it */
};

/* Whether requests may be made. Context: any. */
static __always_inline bool stackmap_slot_asks(const struct stackmap_slot *slot)
{
	/* Acquire; pairs with the store in stackmap_user_serve(). */
	return smp_load_acquire(&slot->asks);
}

#define STACKMAP_SLOTS	(1 + STACKMAP_INSTANCES)

extern struct stackmap_slot stackmap_slots[STACKMAP_SLOTS];

#endif /* STACKMAP_RECORD_SLOT_H */
