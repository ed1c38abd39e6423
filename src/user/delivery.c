// SPDX-License-Identifier: GPL-2.0
/*
 * Whether what a task requests after a delivery is of the same entry into the kernel.
 *
 * The CPU remembers the delivery until a notifier is called as a task returns to user space there.
 * A task that was switched out meanwhile may have been in user space: it gets a new cookie, and
 * another delivery.
 *
 * Without such notifiers, on arm64, what is requested after a delivery gets a new cookie and
 * another delivery in any case. It is right whether or not the task has been in user space in
 * between. That the task gets there, stackmap_may_repeat() sees to.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "unwind.h"

#if STACKMAP_OWN_DEFERRAL
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/printk.h>
#include <linux/smp.h>
#include <linux/stacktrace.h>
#include <linux/static_call.h>
#include <linux/string.h>

#ifdef CONFIG_ARM64
#include <asm/insn.h>
#endif

#include "../shim/shim.h"
#include "delivery.h"

DEFINE_PER_CPU(struct stackmap_delivery, stackmap_deliveries);

#if STACKMAP_TELLS_RETURN
static int hotplug;

/* A task is about to be in user space. Interrupts are off. */
static void on_user_return(struct user_return_notifier *notifier)
{
	struct stackmap_delivery *delivery =
		container_of(notifier, struct stackmap_delivery, notifier);

	if (delivery->notifies) {
		delivery->notifies = false;
		user_return_notifier_unregister(notifier);
	}
	/* Last: the call may be traced, and no work runs any more before user space. */
	WRITE_ONCE(delivery->task, NULL);
}

/* Has the notifier called. Returns whether it will be. Interrupts are off. */
static bool watch_return(struct stackmap_delivery *delivery)
{
	/* drop_notifier() has run, or will not: nothing would unregister it. */
	if (!cpu_active(raw_smp_processor_id()))
		return false;
	if (!delivery->notifies) {
		delivery->notifies = true;
		user_return_notifier_register(&delivery->notifier);
	}
	return true;
}

/* A CPU goes offline, or the module goes: runs on the CPU, where no delivery follows. */
static int drop_notifier(unsigned int cpu)
{
	guard(irqsave)();
	on_user_return(&this_cpu_ptr(&stackmap_deliveries)->notifier);
	return 0;
}

/* Process context, may sleep. Returns 0 or an errno. */
int stackmap_delivery_begin(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(stackmap_deliveries, cpu).notifier.on_user_return = on_user_return;
	hotplug = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "stackmap:online", NULL, drop_notifier);
	return min(hotplug, 0);
}

/* On all CPUs. Process context, may sleep. */
void stackmap_delivery_end(void)
{
	cpuhp_remove_state(hotplug);
}

bool stackmap_may_repeat(bool may_be_late)
{
	return false;
}
#else
STACKMAP_STATIC_CALL(NULL, stackmap_stack_walk, arch_stack_walk);

/* The function that has a task do its works before it returns to user space, as often as needed. */
static unsigned long works_loop;

/* Finds what stackmap_may_repeat() needs. Returns 0 or an errno. */
int stackmap_delivery_begin(void)
{
	void *walk = stackmap_symbol_find("arch_stack_walk");

	works_loop = (unsigned long)(stackmap_symbol_find("exit_to_user_mode_loop") ?:
				     stackmap_symbol_find("do_notify_resume"));
	if (!works_loop || !walk) {
		pr_info("user stacks: this kernel has no symbol %s\n",
			walk ? "do_notify_resume" : "arch_stack_walk");
		return -EOPNOTSUPP;
	}
	static_call_update(stackmap_stack_walk, walk);
	return 0;
}

void stackmap_delivery_end(void)
{
}

/* Notes that a return address is after a call of works_loop. Returns whether to go on. */
static bool look_for_loop(void *found, unsigned long ip)
{
	u32 call;

	if (ip - stackmap_facts.stext >= stackmap_facts.etext - stackmap_facts.stext)
		return true;
	call = le32_to_cpup((__le32 *)ip - 1);
	*(bool *)found = aarch64_insn_is_bl(call) &&
			 ip - 4 + 4 * sign_extend64(call, 25) == works_loop;
	return !*(bool *)found;
}

/* Whether the current task is in works_loop. */
static bool is_returning(void)
{
	bool found = false;

	static_call(stackmap_stack_walk)(look_for_loop, &found, current, NULL);
	return found;
}

static bool watch_return(struct stackmap_delivery *delivery)
{
	delivery->jiffies = jiffies;
	delivery->registers = task_pt_regs(current)->user_regs;
	delivery->on_return = is_returning();
	return true;
}

/*
 * Whether a first request may have the task do works again before it returns to user space, and
 * meet the same event again. Or it is of a later entry into the kernel, from the same registers and
 * in the same tick. Interrupts are off.
 */
bool stackmap_may_repeat(bool may_be_late)
{
	const struct pt_regs *regs = task_pt_regs(current);
	const struct stackmap_delivery *delivery = stackmap_last_delivery();

	if (!delivery || time_after(jiffies, delivery->jiffies) ||
	    memcmp(&delivery->registers, &regs->user_regs, sizeof(regs->user_regs)))
		return false;
	/*
	 * Others do works, too, and do not go on while there are some: before a guest of KVM is
	 * entered, or in a wait of io_uring. The same by the interrupt of a late request.
	 */
	if (!delivery->on_return || (may_be_late && regs->syscallno == NO_SYSCALL))
		return true;
	return is_returning();
}
#endif

/* Has this CPU remember a delivery to the current task. Interrupts are off. */
void stackmap_delivery_remember(u64 id, unsigned long completed, bool repeats)
{
	struct stackmap_delivery *delivery = this_cpu_ptr(&stackmap_deliveries);

	/* An NMI sees all of it, or nothing. */
	WRITE_ONCE(delivery->task, NULL);
	barrier();
	delivery->repeats = repeats;
	delivery->id = id;
	delivery->completed = completed;
	delivery->start_time = current->start_time;
	delivery->switches = stackmap_switches(current);
	if (!watch_return(delivery))
		return;
	barrier();
	WRITE_ONCE(delivery->task, current);
}

static void forget_bit(void *bit)
{
	this_cpu_ptr(&stackmap_deliveries)->completed &= ~BIT((long)bit);
}

/* Forgets the deliveries of a work on all CPUs. Process context. */
void stackmap_delivery_forget(int bit)
{
	on_each_cpu(forget_bit, (void *)(long)bit, true);
}
#endif /* STACKMAP_OWN_DEFERRAL */
