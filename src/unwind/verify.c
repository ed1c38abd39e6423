// SPDX-License-Identifier: GPL-2.0
/*
 * Compares stacks that were walked by rules with those that the kernel's unwinder finds: one when
 * the module is loaded, and each with verify=1.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/irq_work.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "../shim/shim.h"
#include "unwind.h"

static atomic_long_t verified, mismatches;

/* A stack that differs from the kernel's. */
static struct {
	atomic_t taken;
	unsigned int frame, nr, nr_kernel;
	unsigned long ip, kernel_ip;
} mismatch;

static void report_mismatch(struct irq_work *work)
{
	pr_warn("unwind: frame %u of a stack of %u (the kernel's: %u) is %pS, the kernel's is %pS\n",
		mismatch.frame, mismatch.nr, mismatch.nr_kernel, (void *)mismatch.ip,
		(void *)mismatch.kernel_ip);
	/* What was told has been read; pairs with the cmpxchg, which acquires. */
	atomic_set_release(&mismatch.taken, 0);
}

static DEFINE_IRQ_WORK(mismatch_work, report_mismatch);

/* The number of frames that begin both. */
static unsigned int same_frames(const unsigned long *ips, unsigned int nr,
				const unsigned long *kernel, unsigned int nr_kernel)
{
	unsigned int i;

	for (i = 0; i < nr && i < nr_kernel && ips[i] == kernel[i]; i++)
		;
	return i;
}

/**
 * stackmap_verify_again - whether two walks of one stack differ by text that goes meanwhile
 * @ips: the stack
 * @nr: the number of its frames
 * @kernel: what the kernel's unwinder has found
 * @nr_kernel: the number of frames of that
 *
 * From when its tracer is unregistered, the kernel's unwinder finds no way out of a trampoline, or
 * guesses; who is in it is in it still.
 *
 * Context: any, NMI included, in which RCU is watching; preemption off.
 */
bool stackmap_verify_again(const unsigned long *ips, unsigned int nr,
			   const unsigned long *kernel, unsigned int nr_kernel)
{
	unsigned int i, same = same_frames(ips, nr, kernel, nr_kernel);
	const unsigned long *longer = same < nr ? ips : kernel;

	if (same == nr && same == nr_kernel)
		return false;
	for (i = 0; i <= same; i++)
		if (!stackmap_unwind_keeps(longer[i]))
			return true;
	return false;
}

/**
 * stackmap_verify - compare a stack with the kernel's
 * @ips: the stack
 * @nr: the number of its frames
 * @kernel: what the kernel's unwinder has found
 * @nr_kernel: the number of frames of that
 *
 * Context: any, NMI included.
 * Return: whether they are the same. If not, the log tells it.
 */
bool stackmap_verify(const unsigned long *ips, unsigned int nr, const unsigned long *kernel,
		     unsigned int nr_kernel)
{
	unsigned int i = same_frames(ips, nr, kernel, nr_kernel);

	if (likely(i == nr && i == nr_kernel)) {
		atomic_long_inc(&verified);
		return true;
	}
	atomic_long_inc(&mismatches);
	/* One at a time is told. */
	if (!atomic_cmpxchg(&mismatch.taken, 0, 1)) {
		mismatch.frame = i;
		mismatch.nr = nr;
		mismatch.nr_kernel = nr_kernel;
		mismatch.ip = i < nr ? ips[i] : 0;
		mismatch.kernel_ip = i < nr_kernel ? kernel[i] : 0;
		irq_work_queue(&mismatch_work);
	}
	return false;
}

/**
 * stackmap_verify_end - wait until the last difference has been told
 *
 * Context: process, may sleep. Nobody calls stackmap_verify() any more.
 */
void stackmap_verify_end(void)
{
	irq_work_sync(&mismatch_work);
}

/**
 * stackmap_verified - stacks that were as the kernel's
 *
 * Context: any.
 * Return: the number since the module was loaded.
 */
unsigned long stackmap_verified(void)
{
	return atomic_long_read(&verified);
}

/**
 * stackmap_mismatches - stacks that were not, and that the kernel's were taken for
 *
 * Context: any.
 * Return: the number since the module was loaded.
 */
unsigned long stackmap_mismatches(void)
{
	return atomic_long_read(&mismatches);
}

/* Whether rules give what the kernel gives here: twice, as the first time they are learnt. */
static noinline bool test_self(unsigned long *ips, unsigned long *kernel, unsigned int depth)
{
	STACKMAP_UNWIND_STATE(state);
	struct stackmap_stack stack = {
		.context	= smp_processor_id() * STACKMAP_LEVELS,
		.watched	= true,
		.from_caller	= true,
		.ips		= ips,
		.facts		= &stackmap_facts,
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
 * stackmap_unwind_self_test - see whether stacks can be walked by rules on this kernel
 *
 * Context: process, may sleep; rules can be kept, and nothing is recorded yet.
 * Return: 0, -EINVAL if they differ from the kernel's, or -ENOMEM.
 */
int stackmap_unwind_self_test(void)
{
	unsigned long *frames;
	bool same;

	frames = kvmalloc_array(2 * STACKMAP_MAX_FRAMES, sizeof(*frames), GFP_KERNEL);
	if (!frames)
		return -ENOMEM;
	preempt_disable();
	same = test_self(frames, frames + STACKMAP_MAX_FRAMES, 4);
	preempt_enable();
	kvfree(frames);
	return same ? 0 : -EINVAL;
}
