// SPDX-License-Identifier: GPL-2.0
/*
 * Requests for user stacks, and their delivery: one unwind_work for each trace array.
 *
 * A request is made when a kernel stack is recorded, in any context. The kernel, or deferral.c
 * where the kernel cannot, calls each work that has requested when the task returns to user space.
 * The cookie of the kernel entry joins both.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/srcu.h>

#ifdef CONFIG_X86_64
#include <asm/insn.h>
#endif

#include "../record/slot.h"
#include "../shim/shim.h"
#include "user.h"

STACKMAP_STATIC_CALL(NULL, stackmap_unwind_init, unwind_deferred_init);
STACKMAP_STATIC_CALL(NULL, stackmap_unwind_request, unwind_deferred_request);
STACKMAP_STATIC_CALL(NULL, stackmap_unwind_cancel, unwind_deferred_cancel);

#ifdef CONFIG_X86_64
STACKMAP_STATIC_CALL(NULL, stackmap_insn_decode, insn_decode);
#endif

/* Of the deferral: it is held when its list of works changes, and readers hold the SRCU. */
static struct mutex *works_lock;
static struct srcu_struct *works_srcu;

/* Finds @nr symbols. Returns 0, or -EOPNOTSUPP if the kernel lacks one, which the log names. */
static int find_all(const char * const *names, unsigned int nr, void **found)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		found[i] = stackmap_symbol_find(names[i]);
		if (found[i])
			continue;
		pr_info("user stacks: this kernel has no symbol %s\n", names[i]);
		return -EOPNOTSUPP;
	}
	return 0;
}

/* Finds the deferral: that of the kernel, or ours. Returns 0 or an errno. */
#if STACKMAP_KERNEL_DEFERRAL
static int resolve_deferral(void)
{
	static const char * const deferral[] = {
		"unwind_deferred_init", "unwind_deferred_request", "unwind_deferred_cancel",
		"unwind_user_faultable", "callback_mutex", "unwind_srcu",
	};
	void *found[ARRAY_SIZE(deferral)];
	int ret = find_all(deferral, ARRAY_SIZE(deferral), found);

	if (ret)
		return ret;
	static_call_update(stackmap_unwind_init, found[0]);
	static_call_update(stackmap_unwind_request, found[1]);
	static_call_update(stackmap_unwind_cancel, found[2]);
	static_call_update(stackmap_unwind_user, found[3]);
	works_lock = found[4];
	works_srcu = found[5];
	return 0;
}
#elif STACKMAP_OWN_DEFERRAL
static int resolve_deferral(void)
{
	static_call_update(stackmap_unwind_init, stackmap_deferral_init);
	static_call_update(stackmap_unwind_request, stackmap_deferral_request);
	static_call_update(stackmap_unwind_cancel, stackmap_deferral_cancel);
	works_lock = &stackmap_deferral_lock;
	works_srcu = stackmap_deferral_srcu;
	return stackmap_deferral_begin();
}
#else
static int resolve_deferral(void)
{
	pr_info("user stacks: this kernel has neither CONFIG_UNWIND_USER nor CONFIG_USER_RETURN_NOTIFIER\n");
	return -EOPNOTSUPP;
}
#endif

/**
 * stackmap_user_resolve - find what user stacks need of the kernel
 *
 * Context: process, may sleep; callers serialise. stackmap_symbols_resolve() has returned 0.
 * Return: 0; -EOPNOTSUPP if the kernel lacks something, which the log names; or another errno.
 */
int stackmap_user_resolve(void)
{
	static const char * const names[] = {
		"lock_vma_under_rcu", "task_work_cancel", "put_task_stack",
#ifdef CONFIG_X86_64
		"insn_decode", "kallsyms_lookup_size_offset", "asm_sysvec_irq_work",
#endif
	};
	void *found[ARRAY_SIZE(names)];
	int ret = find_all(names, ARRAY_SIZE(names), found);

	if (ret)
		return ret;
#ifdef CONFIG_X86_64
	stackmap_late_begin(found[4], (unsigned long)found[5]);
#else
	stackmap_late_begin(NULL, 0);
#endif
	static_call_update(stackmap_lock_vma, found[0]);
	static_call_update(stackmap_task_work_cancel, found[1]);
	static_call_update(stackmap_put_task_stack, found[2]);
#ifdef CONFIG_X86_64
	static_call_update(stackmap_insn_decode, found[3]);
#endif
	return resolve_deferral();
}

/**
 * stackmap_instruction_length - decode an instruction of a 64-bit program
 * @code: the instruction, and what follows it
 *
 * Context: any, after stackmap_user_resolve() has returned 0.
 * Return: its length in bytes; 0 if it is none, or of a machine for which none are decoded.
 */
unsigned int stackmap_instruction_length(const struct stackmap_code *code)
{
#ifdef CONFIG_X86_64
	struct insn insn;
	const int size = sizeof(code->bytes);

	if (!static_call(stackmap_insn_decode)(&insn, code->bytes, size, INSN_MODE_64))
		return insn.length;
#endif
	return 0;
}

unsigned int stackmap_this_cpu(void)
{
	return raw_smp_processor_id();
}

unsigned int stackmap_cpus(void)
{
	return nr_cpu_ids;
}

void stackmap_preempt_disable(void)
{
	preempt_disable();
}

void stackmap_preempt_enable(void)
{
	preempt_enable();
}

/*
 * Task context, may sleep; the kernel holds its SRCU. Without a trace the program is gone, which
 * deferral.c alone notices: the stack is that of settle, or none.
 */
static void deliver(struct unwind_work *work, struct unwind_stacktrace *trace, u64 cookie)
{
	struct stackmap_slot *slot = container_of(work, struct stackmap_slot, work);

	stackmap_user_bind(&slot->served, cookie,
			   trace ? stackmap_user_id(trace->entries, trace->nr, cookie) :
				   stackmap_user_known(cookie));
}

/**
 * stackmap_user_begin - make the kernel deliver user stacks to a trace array
 * @nr: its slot
 *
 * Context: process, may sleep; callers serialise.
 * Return: 0; -EBUSY if the kernel has no bit free: it has 62 for all tracers; or why exec and exit
 * cannot be watched.
 */
int stackmap_user_begin(unsigned int nr)
{
	struct stackmap_slot *slot = &stackmap_slots[nr];
	int ret = stackmap_user_probe();

	if (ret || slot->has_work)
		return ret;
	ret = static_call(stackmap_unwind_init)(&slot->work, deliver);
	if (ret)
		return ret;
	/* Release; pairs with the load in is_requested(): it sees the work, too. */
	smp_store_release(&slot->has_work, true);
	return 0;
}

/**
 * stackmap_user_ask - have stacks of a trace array request user stacks, or not any more
 * @nr: its slot
 * @on: which; they do not unless stackmap_user_begin() has returned 0
 *
 * What was requested is still delivered.
 *
 * Context: process; callers serialise.
 */
void stackmap_user_ask(unsigned int nr, bool on)
{
	/* Release; pairs with the load in stackmap_slot_asks(): it sees the work, too. */
	smp_store_release(&stackmap_slots[nr].asks, on && stackmap_slots[nr].has_work);
}

/**
 * stackmap_user_cancel - end deliveries to a trace array
 * @nr: its slot
 *
 * Nothing is requested for it any more: it does not ask, and stackmap_hook_drain() was called
 * since. When this returns no callback runs for it, and none will; its bit is free.
 *
 * Context: process, may sleep; callers serialise.
 */
void stackmap_user_cancel(unsigned int nr)
{
	struct stackmap_slot *slot = &stackmap_slots[nr];

	if (!slot->has_work)
		return;
	WRITE_ONCE(slot->has_work, false);
	stackmap_user_drain();
	/*
	 * unwind_deferred_cancel() sets the bit to -1 before its grace period, while tasks that
	 * deliver may still read the bit and shift by it. So the work leaves the list first, and a
	 * grace period passes. As a list of its own, it can be removed a second time.
	 */
	scoped_guard(mutex, works_lock)
		list_del_rcu(&slot->work.list);
	synchronize_srcu(works_srcu);
	INIT_LIST_HEAD(&slot->work.list);
	static_call(stackmap_unwind_cancel)(&slot->work);
}

/**
 * stackmap_user_end - end all deliveries
 *
 * All are cancelled, and exec and exit are not watched.
 *
 * Context: process, may sleep; callers serialise. When this returns no task delivers, and none
 * will; see stackmap_deferral_end() for what it may wait for.
 */
void stackmap_user_end(void)
{
	stackmap_late_end();
#if STACKMAP_OWN_DEFERRAL
	stackmap_deferral_end();
#endif
}

/* Makes the deferral's request. Returns -EBUSY if it is too late. */
static __always_inline int defer(struct unwind_work *work, u64 *cookie, bool may_be_late)
{
#if STACKMAP_KERNEL_DEFERRAL
	if (may_be_late && !(current->flags & PF_EXITING) && stackmap_is_too_late() &&
	    !(atomic_long_read(&current->unwind_info.unwind_mask) & BIT(work->bit)))
		return -EBUSY;
#endif
	return static_call(stackmap_unwind_request)(work, cookie);
}

/* As stackmap_user_request(). */
static __always_inline enum stackmap_request request(struct stackmap_slot *slot, u64 *cookie,
						     u64 *exec_id, bool may_be_late)
{
	const unsigned int flags = current->flags;
	int ret = -EINVAL;

	if (unlikely(flags & (PF_KTHREAD | PF_USER_WORKER))) {
		stackmap_user_count(STACKMAP_USER_NOT_USER);
		return STACKMAP_REQUEST_NONE;
	}
	/*
	 * It returns a bit of the task's mask where the request was made before; as an int that can
	 * have any sign. Errors are these three.
	 */
	if (likely(current->mm))
		ret = defer(&slot->work, cookie, may_be_late);
	if ((may_be_late || !STACKMAP_TELLS_RETURN) && ret == -EBUSY) {
		stackmap_user_count(STACKMAP_USER_LATE);
		return STACKMAP_REQUEST_NONE;
	}
	if (unlikely(ret == -EINVAL || ret == -ESRCH)) {
		if (!(flags & PF_EXITING)) {
			stackmap_user_count(STACKMAP_USER_REFUSED);
			return STACKMAP_REQUEST_NONE;
		}
		stackmap_user_count(STACKMAP_USER_EXIT_EVENTS);
		*cookie = stackmap_exit_cookie();
		return STACKMAP_REQUEST_AGAIN;
	}
	if (may_be_late && in_nmi())
		stackmap_user_count(STACKMAP_USER_IN_NMI);
	if (ret) {
		stackmap_user_count(STACKMAP_USER_REQUESTED_AGAIN);
		return STACKMAP_REQUEST_AGAIN;
	}
	if (may_be_late)
		stackmap_look_again();
	stackmap_user_count(STACKMAP_USER_REQUESTED);
	*exec_id = stackmap_exec_id();
	return STACKMAP_REQUEST_FIRST;
}

/* Apart: most requests cannot be late. */
static noinline enum stackmap_request request_late(struct stackmap_slot *slot, u64 *cookie,
						   u64 *exec_id)
{
	return request(slot, cookie, exec_id, true);
}

/**
 * stackmap_user_request - ask for the user stack of the current task
 * @served: the trace array that an event was recorded for
 * @cookie: set to the number of this entry into the kernel
 * @exec_id: set to the task's count of exec calls, where the request is the first one
 *
 * Context: any, NMI included; preemption off.
 * Return: what becomes of it.
 */
enum stackmap_request stackmap_user_request(struct stackmap_served *served, u64 *cookie,
					    u64 *exec_id)
{
	struct stackmap_slot *slot = container_of(served, struct stackmap_slot, served);

	if (stackmap_may_be_late())
		return request_late(slot, cookie, exec_id);
	return request(slot, cookie, exec_id, false);
}
