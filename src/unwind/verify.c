// SPDX-License-Identifier: GPL-2.0
/*
 * The test at load: stacks that were walked by rules against those of the kernel's unwinder. And
 * the log's lines of a difference that verify=1 finds, see compared() in mod.rs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/irq_work.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "../shim/shim.h"
#include "unwind.h"

/* The mismatch that is being logged. */
static struct stackmap_mismatch mismatch;
static atomic_t reporting;

static void report(struct irq_work *work)
{
	pr_warn("unwind: frame %u differs (%u frames by rules, %u by kernel): %pS, by kernel %pS\n",
		mismatch.frame, mismatch.nr, mismatch.nr_kernel, (void *)mismatch.ip,
		(void *)mismatch.kernel_ip);
	/* Release: mismatch has been read; pairs with the acquiring cmpxchg. */
	atomic_set_release(&reporting, 0);
}

static DEFINE_IRQ_WORK(mismatch_work, report);

/**
 * stackmap_mismatch_report - log how two walks of a stack differ
 * @found: the mismatch; ignored while another one is being logged
 *
 * Context: any, NMI included.
 */
void stackmap_mismatch_report(const struct stackmap_mismatch *found)
{
	if (atomic_cmpxchg(&reporting, 0, 1))
		return;
	mismatch = *found;
	irq_work_queue(&mismatch_work);
}

/**
 * stackmap_mismatch_flush - wait until the last mismatch is logged
 *
 * Context: process, may sleep. No caller of stackmap_mismatch_report() is left.
 */
void stackmap_mismatch_flush(void)
{
	irq_work_sync(&mismatch_work);
}

/* Whether both walks agree: the first round learns the rules, the second one uses them. */
static noinline bool test_self(unsigned long *ips, unsigned long *kernel, unsigned int depth)
{
	STACKMAP_UNWIND_STATE(state) __uninitialized;
	struct stackmap_stack stack = {
		.context	= smp_processor_id() * STACKMAP_LEVELS,
		.watched	= true,
		.from_caller	= true,
		.skip		= stackmap_skipped(1),
		.ips		= ips,
		.state		= (void *)&state,
	};
	unsigned int round;
	bool same = true;

	set_caller(&stack.caller);
	if (depth) {
		same = test_self(ips, kernel, depth - 1);
		/* No tail call. */
		barrier();
		return same;
	}
	for (round = 0; round < 2; round++) {
		int nr = stackmap_walk(&stack);
		unsigned int nr_kernel = unwind_by_kernel(kernel, 1, NULL);

		same = same && nr > 0 && nr == nr_kernel &&
		       !memcmp(ips, kernel, nr * sizeof(*ips));
	}
	return same;
}

/**
 * stackmap_unwind_test - see whether stacks can be walked by rules on this kernel
 *
 * Context: process, may sleep; rules can be kept, and nothing is recorded yet.
 * Return: 0, -EINVAL if they differ from the kernel's, or -ENOMEM.
 */
int stackmap_unwind_test(void)
{
	unsigned long *frames;
	bool same;

	frames = kvcalloc(2 * STACKMAP_MAX_FRAMES, sizeof(*frames), GFP_KERNEL);
	if (!frames)
		return -ENOMEM;
	preempt_disable();
	same = test_self(frames, frames + STACKMAP_MAX_FRAMES, 4);
	preempt_enable();
	kvfree(frames);
	return same ? 0 : -EINVAL;
}
