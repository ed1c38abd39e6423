// SPDX-License-Identifier: GPL-2.0
/*
 * Requests pool growth from any context, NMI included: an irq_work queues a worker, and the worker
 * allocates memory.
 */
#include <linux/irq_work.h>
#include <linux/jiffies.h>
#include <linux/workqueue.h>

#include "../shim/shim.h"

/* The older name, also in the first versions of Linux 6.12. */
#if !STACKMAP_HAS_SYSTEM_PERCPU_WQ
#define system_percpu_wq	system_wq
#endif

static void grow(struct work_struct *work);
static DECLARE_DELAYED_WORK(grow_work, grow);

/* On failure, retry after one second. */
static void grow(struct work_struct *work)
{
	if (stackmap_grow())
		schedule_delayed_work(&grow_work, HZ);
}

/* Now: schedule_delayed_work() would keep a pending retry of the other map. */
static void queue_growth(struct irq_work *work)
{
	mod_delayed_work(system_percpu_wq, &grow_work, 0);
}

static DEFINE_IRQ_WORK(growth_kick, queue_growth);

/**
 * stackmap_growth_kick - request a call of stackmap_grow() in a worker
 *
 * Context: any, NMI included.
 */
void stackmap_growth_kick(void)
{
	irq_work_queue(&growth_kick);
}

/**
 * stackmap_growth_stop - cancel pending pool growth and wait for the worker
 *
 * Context: process, may sleep. No caller of stackmap_growth_kick() is left.
 */
void stackmap_growth_stop(void)
{
	irq_work_sync(&growth_kick);
	cancel_delayed_work_sync(&grow_work);
}
