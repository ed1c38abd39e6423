// SPDX-License-Identifier: GPL-2.0
/*
 * The way from a CPU that finds the pool nearly used up, possibly in NMI, to a worker that adds
 * memory: an irq_work that queues the work.
 */
#include <linux/irq_work.h>
#include <linux/jiffies.h>
#include <linux/workqueue.h>

#include "../shim/shim.h"

static void grow(struct work_struct *work);
static DECLARE_DELAYED_WORK(grow_work, grow);

/* Without memory the system has other worries than ours: ask again after a while. */
static void grow(struct work_struct *work)
{
	if (stackmap_grow())
		schedule_delayed_work(&grow_work, HZ);
}

static void queue_growth(struct irq_work *work)
{
	schedule_delayed_work(&grow_work, 0);
}

static DEFINE_IRQ_WORK(growth_kick, queue_growth);

/**
 * stackmap_growth_kick - have stackmap_grow() called soon
 *
 * Context: any, NMI included.
 */
void stackmap_growth_kick(void)
{
	irq_work_queue(&growth_kick);
}

/**
 * stackmap_growth_stop - wait for the worker and forget what was asked for
 *
 * Context: process, may sleep. Nobody calls stackmap_growth_kick() any more.
 */
void stackmap_growth_stop(void)
{
	irq_work_sync(&growth_kick);
	cancel_delayed_work_sync(&grow_work);
}
