// SPDX-License-Identifier: GPL-2.0
/*
 * Requests that may come after the task has looked for works for the last time in this kernel
 * entry. Only the next entry would deliver these, from another user stack: neither the kernel's
 * deferral nor deferral.c notices.
 *
 * Such a request raises an interrupt. It is taken in user space before the next instruction, and
 * its way back looks for works. As an event in each entry would raise one interrupt after another,
 * and the task would never run, first requests in the entry of such an interrupt are refused.
 */
#include "unwind.h"

#include <linux/irq_work.h>
#include <linux/percpu.h>

#ifdef CONFIG_X86_64
#include <asm/cpufeature.h>
#include <asm/irq_vectors.h>
#endif

#include "../shim/shim.h"
#include "user.h"

/* Set at run time: Linux 6.12 does not relocate the per-CPU data of modules. */
static DEFINE_PER_CPU(struct irq_work, interrupts);

static void interrupt(struct irq_work *work)
{
}

static void init_interrupts(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(interrupts, cpu) = IRQ_WORK_INIT_HARD(interrupt);
}

#ifdef CONFIG_X86_64
STACKMAP_STATIC_CALL(NULL, stackmap_symbol_size, kallsyms_lookup_size_offset);

/* The code by which interrupts of irq_work enter the kernel; of no size if none can be raised. */
static unsigned long entry, entry_size;

/*
 * Finds what stackmap_is_too_late() needs, by kallsyms_lookup_size_offset() and the address of
 * asm_sysvec_irq_work(). Process context; callers serialise.
 */
void stackmap_late_begin(void *symbol_size, unsigned long address)
{
	unsigned long offset;

	init_interrupts();
	/* Guests of Xen PV enter the kernel by other code. */
	if (!arch_irq_work_has_interrupt() || boot_cpu_has(X86_FEATURE_XENPV))
		return;
	entry = address;
	static_call_update(stackmap_symbol_size, symbol_size);
	if (!static_call(stackmap_symbol_size)(entry, &entry_size, &offset))
		entry_size = 0;
}

/* Whether a first request that may be late must be refused. The current task has user space. */
bool stackmap_is_too_late(void)
{
	const struct pt_regs *regs = task_pt_regs(current);

#ifdef X86_FEATURE_FRED
	if (entry_size && cpu_feature_enabled(X86_FEATURE_FRED))
		return regs->fred_ss.vector == IRQ_WORK_VECTOR;
#endif
	/* That code calls with the registers at the top of the stack. */
	return !entry_size || READ_ONCE(((unsigned long *)regs)[-1]) - entry < entry_size;
}

#else
void stackmap_late_begin(void *symbol_size, unsigned long address)
{
	init_interrupts();
}

/* deferral.c compares the registers. */
bool stackmap_is_too_late(void)
{
	return false;
}
#endif

/* Waits for interrupts. Process context, may sleep; nothing is requested any more. */
void stackmap_late_end(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		irq_work_sync(per_cpu_ptr(&interrupts, cpu));
}

/* Has the task look for works again in user space. Context: any, preemption off. */
void stackmap_look_again(void)
{
	irq_work_queue(this_cpu_ptr(&interrupts));
}
