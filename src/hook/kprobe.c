// SPDX-License-Identifier: GPL-2.0
/*
 * The hooks at the entry of __ftrace_trace_stack(): the kprobe here, the jump in
 * jump_x86.c and jump_arm64.c.
 */
#include <linux/cpu.h>
#include <linux/errno.h>
#include <linux/kprobes.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>

#include "../record/slot.h"
#include "../shim/shim.h"
#include "jump.h"

static struct kprobe hook_kprobe;
static unsigned long hook_missed;

static int hook_pre_handler(struct kprobe *kp, struct pt_regs *regs)
{
	if (!stackmap_serves((void *)regs_get_kernel_argument(regs, 0)))
		return 0;
	instruction_pointer_set(regs, (unsigned long)stackmap_hook_entry);
	return 1;
}

NOKPROBE_SYMBOL(hook_pre_handler);

/* A kprobe with a post-handler is never turned into a jump, which would ignore the new ip. */
static void hook_post_handler(struct kprobe *kp, struct pt_regs *regs, unsigned long flags)
{
}

NOKPROBE_SYMBOL(hook_post_handler);

static int kprobe_install(void)
{
	hook_kprobe = (struct kprobe) {
		.symbol_name = "__ftrace_trace_stack",
		.pre_handler = hook_pre_handler,
		.post_handler = hook_post_handler,
	};
	return register_kprobe(&hook_kprobe);
}

static int kprobe_remove(void)
{
	unregister_kprobe(&hook_kprobe);
	hook_missed += hook_kprobe.nmissed;
	hook_kprobe.nmissed = 0;
	return 0;
}

/**
 * stackmap_jump_check - whether the jump could be installed
 *
 * Context: process, may sleep.
 * Return: 0, -ENOENT if the kernel lacks a symbol that is needed, or as stackmap_jump_fits().
 */
int stackmap_jump_check(void)
{
	int ret;

	if (!stackmap_symbols.can_poke)
		return -ENOENT;
	jump_lock();
	ret = stackmap_jump_fits();
	jump_unlock();
	return ret;
}

/**
 * stackmap_hook_install - make the kernel call stackmap_hook_entry()
 * @hook: by which hook
 *
 * Context: process, may sleep.
 * Return: 0 or an errno; then the kernel's text is as before.
 */
int stackmap_hook_install(enum stackmap_hook hook)
{
	return hook == STACKMAP_HOOK_JUMP ? stackmap_jump_install() : kprobe_install();
}

/**
 * stackmap_hook_remove - make the kernel call its own function again
 * @hook: the hook that is installed, or was last
 *
 * CPUs may still be inside stackmap_trace_stack() when this returns.
 *
 * Context: process, may sleep.
 * Return: 0, or -EBUSY if another user's kprobe keeps the jumps in place; they bypass the module.
 */
int stackmap_hook_remove(enum stackmap_hook hook)
{
	return hook == STACKMAP_HOOK_JUMP ? stackmap_jump_remove() : kprobe_remove();
}

static void do_nothing(void *unused)
{
}

/**
 * stackmap_hook_drain - wait until no CPU or task is inside stackmap_trace_stack()
 *
 * Three waits cover all cases:
 *
 * - a CPU that records with RCU watching has preemption off: a grace period waits for it;
 * - a CPU that records with RCU not watching has interrupts off: an interrupt on each CPU waits for
 *   it; while a CPU goes offline or comes online, the hotplug lock does;
 * - a task preempted at the entry or exit of the function: RCU tasks waits for it. RCU tasks
 *   ignores only idle tasks, and these run with preemption off.
 *
 * synchronize_rcu_tasks_rude() waits for nothing on x86.
 *
 * Context: process, may sleep. The hook, or the served trace array, has been removed.
 */
void stackmap_hook_drain(void)
{
	synchronize_rcu();
	cpus_read_lock();
	on_each_cpu(do_nothing, NULL, true);
	cpus_read_unlock();
	synchronize_rcu_tasks();
	stackmap_jump_drained();
}

/**
 * stackmap_hook_missed - hits of the kprobe hook inside other kprobes' handlers
 *
 * The kernel has recorded the full stack there.
 *
 * Context: process.
 * Return: the number since the module was loaded.
 */
unsigned long stackmap_hook_missed(void)
{
	return hook_missed + READ_ONCE(hook_kprobe.nmissed);
}
