// SPDX-License-Identifier: GPL-2.0
/*
 * Deferred delivery of user stacks for kernels without it: what linux/unwind_deferred.h offers.
 *
 * A task that has requested has an entry in a table, with a task work that delivers when the task
 * returns to user space. With that the entry is free again. What the task requests between the
 * delivery and user space may be of the same entry into the kernel, see delivery.c.
 *
 * An NMI may come while an entry is claimed or freed. It does not see that entry, and may claim
 * another one: then the task has two cookies in this entry into the kernel, and both are delivered.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "unwind.h"

#if STACKMAP_OWN_DEFERRAL
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/jiffies.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/printk.h>
#include <linux/random.h>
#include <linux/rculist.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/static_call.h>
#include <linux/vmalloc.h>

#include "../shim/shim.h"
#include "delivery.h"
#include "user.h"

/* The entry is free, or just being claimed or freed. Works have the other bits. */
#define ENTRY_FREE	BIT(1)
#define RESERVED_BITS	(UNWIND_PENDING | ENTRY_FREE)

/* Entries that a task may have. */
#define PROBES		16
#define TABLE_BITS_MAX	16

/* How long unloading waits for tasks whose works cannot be cancelled. */
#define PATIENCE	(5 * HZ)

/* A function of the kernel that does nothing: as a task work, unless kCFI compares its type. */
#define NOTHING		((task_work_func_t)(void *)noop_fsync)
#define HAS_NOTHING	(!IS_ENABLED(CONFIG_CFI_CLANG) && !IS_ENABLED(CONFIG_CFI))

/* How a task is made to run its works, without an allocation. */
#if STACKMAP_HAS_TASK_WORK_NO_ALLOC
#define NOTIFY		(TWA_RESUME | TWAF_NO_ALLOC)
#else
#define NOTIFY		TWA_RESUME
#endif
#if STACKMAP_HAS_TASK_WORK_NMI
#define NOTIFY_NMI	TWA_NMI_CURRENT
#else
#define NOTIFY_NMI	NOTIFY
#endif

struct entry {
	struct unwind_task_info info;
	struct unwind_cache cache;
	u64 exec_id;	/* stackmap_exec_id() when it was claimed */
	bool repeats;	/* as stackmap_may_repeat() said */
	struct stackmap_registers registers;	/* at the request; unless STACKMAP_TELLS_RETURN */
};

/* Whose entry each one is; NULL: it is free. Apart, as a search reads many. */
static struct task_struct **owners;
static struct entry *entries;
static unsigned int table_bits;

/* Held when the list of works changes; readers hold the SRCU. */
DEFINE_MUTEX(stackmap_deferral_lock);
DEFINE_STATIC_SRCU(works_srcu);
struct srcu_struct *const stackmap_deferral_srcu = &works_srcu;
static LIST_HEAD(works);
static unsigned long bits_used = RESERVED_BITS;

static DEFINE_PER_CPU(u32, entry_count);

static unsigned int slot_of(const struct task_struct *task, unsigned int probe)
{
	return (hash_ptr(task, table_bits) + probe) & (BIT(table_bits) - 1);
}

/* Finds an entry of a task. Context: any. */
static struct entry *find_entry(const struct task_struct *task)
{
	unsigned int i;

	if (!entries)
		return NULL;
	for (i = 0; i < PROBES; i++) {
		const unsigned int slot = slot_of(task, i);

		if (READ_ONCE(owners[slot]) == task &&
		    !(atomic_long_read(&entries[slot].info.unwind_mask) & ENTRY_FREE))
			return &entries[slot];
	}
	return NULL;
}

struct unwind_task_info *stackmap_deferral_info(const struct task_struct *task)
{
	static struct unwind_task_info none;
	struct entry *entry = find_entry(task);

	return entry ? &entry->info : &none;
}

/* Claims an entry for the current task. Interrupts are off. */
static struct entry *claim_entry(const struct stackmap_delivery *delivery, bool repeats)
{
	unsigned int i;

	for (i = 0; i < PROBES; i++) {
		const unsigned int slot = slot_of(current, i);
		struct entry *entry = &entries[slot];
		struct task_struct *owner = NULL;

		/* Acquire; pairs with the release in free_entry(). */
		if (READ_ONCE(owners[slot]) || !try_cmpxchg(&owners[slot], &owner, current))
			continue;
		if (delivery) {
			entry->info.id.id = delivery->id;
			/* Without those of works that were cancelled meanwhile. */
			entry->cache.unwind_completed =
				delivery->completed & READ_ONCE(bits_used);
			entry->cache.nr_entries = 1;
		} else {
			/* As the kernel's; see unwind_deferred_types.h. */
			const u32 count = this_cpu_add_return(entry_count, 2) | 1;

			entry->info.id.id = (u64)count << 32 | (raw_smp_processor_id() + 1);
		}
		entry->exec_id = stackmap_exec_id();
		entry->repeats = repeats;
		if (!STACKMAP_TELLS_RETURN)
			entry->registers = stackmap_registers_of(task_pt_regs(current));
		/* Release: who finds the entry sees its number. */
		atomic_long_set_release(&entry->info.unwind_mask, 0);
		return entry;
	}
	return NULL;
}

/* Frees an entry whose mask is ENTRY_FREE. */
static void free_entry(struct entry *entry)
{
	entry->info.id.id = 0;
	entry->cache.unwind_completed = 0;
	entry->cache.nr_entries = 0;
	/* Release; pairs with the cmpxchg in claim_entry(). */
	smp_store_release(&owners[entry - entries], NULL);
}

/*
 * Whether the program that has requested may be gone: nothing was delivered at exec, which could
 * not be watched; or the request came inside exec afterwards, when others had run the work.
 */
static bool is_stale(const struct entry *entry)
{
	const bool stale = !entry->cache.nr_entries && entry->exec_id != current->self_exec_id;

	if (stale)
		stackmap_user_count(STACKMAP_USER_EXEC_STALE);
	return stale;
}

/*
 * Whether the task may have been in user space since the request. A signal that is delivered in
 * between changes the registers, too. A system call that is to be restarted goes back by its
 * instruction.
 */
static bool is_late(const struct entry *entry)
{
	const struct stackmap_registers now = stackmap_registers_of(task_pt_regs(current));
	const bool late = !STACKMAP_TELLS_RETURN && !entry->cache.nr_entries &&
			  (entry->registers.ip - now.ip > 4 || entry->registers.sp != now.sp ||
			   entry->registers.fp != now.fp);

	if (late)
		stackmap_user_count(STACKMAP_USER_LATE);
	return late;
}

/* Delivers those of these requests that are not delivered yet; no stack if stale. Task context. */
static void deliver(struct entry *entry, unsigned long bits, bool stale)
{
	struct unwind_stacktrace trace = { };
	struct unwind_work *work;

	guard(srcu)(&works_srcu);
	list_for_each_entry_srcu(work, &works, list, srcu_read_lock_held(&works_srcu)) {
		const int bit = work->bit;

		if (!(bits & BIT(bit)) || test_bit(bit, &entry->cache.unwind_completed))
			continue;
		work->func(work, stale ? NULL : &trace, entry->info.id.id);
		/* Only here: stackmap_deferral_cancel() clears it after a grace period. */
		set_bit(bit, &entry->cache.unwind_completed);
		entry->cache.nr_entries |= !stale;
	}
}

static void deliver_work(struct callback_head *head)
{
	struct entry *entry = container_of(head, struct entry, info.work);
	unsigned long bits = atomic_long_fetch_andnot(UNWIND_PENDING, &entry->info.unwind_mask);
	const bool exits = current->flags & PF_EXITING;
	const unsigned long done = READ_ONCE(entry->cache.unwind_completed) | RESERVED_BITS;
	const unsigned long left = bits & ~done;

	if (left && !exits)
		deliver(entry, bits, is_stale(entry) || is_late(entry));
	else if (left)
		stackmap_user_count(STACKMAP_USER_EXIT_LATE);

	guard(irqsave)();
	/* If exec has lost it, events that follow are of another program: of another cookie. */
	if (!exits && entry->cache.nr_entries)
		stackmap_delivery_remember(entry->info.id.id,
					   READ_ONCE(entry->cache.unwind_completed) &
						   READ_ONCE(bits_used),
					   entry->repeats);
	/* Unless another work has been requested meanwhile, in an interrupt or while it slept. */
	bits = atomic_long_read(&entry->info.unwind_mask);
	do {
		if (bits & UNWIND_PENDING)
			return;
	} while (!atomic_long_try_cmpxchg(&entry->info.unwind_mask, &bits, ENTRY_FREE));
	free_entry(entry);
}

/**
 * stackmap_deferral_flush - deliver what the current task has requested, before it returns
 *
 * The entry stays until the task returns to user space or exits: requests up to then are of it,
 * even if the task is switched out.
 *
 * Context: task context, where user memory may be read.
 */
void stackmap_deferral_flush(void)
{
	struct entry *entry = find_entry(current);

	/* At exec, the program that has requested is still there. */
	if (entry)
		deliver(entry, atomic_long_read(&entry->info.unwind_mask),
			(current->flags & PF_EXITING && is_stale(entry)) || is_late(entry));
}

/**
 * stackmap_deferral_walked - whether the current task's stack was walked in this entry
 *
 * Context: task context.
 * Return: the cookie that it was delivered for; 0 if it was not, or that is not known any more.
 */
u64 stackmap_deferral_walked(void)
{
	const struct entry *entry = find_entry(current);
	const struct stackmap_delivery *delivery;

	if (entry && entry->cache.nr_entries)
		return entry->info.id.id;
	guard(irqsave)();
	delivery = stackmap_delivery_here();
	return delivery ? delivery->id : 0;
}

/* As unwind_deferred_request(), or -EBUSY: too late. Context: any, NMI included. */
int stackmap_deferral_request(struct unwind_work *work, u64 *cookie)
{
	const unsigned long bit = BIT(work->bit);
	const bool may_be_late = stackmap_may_be_late();
	const struct stackmap_delivery *delivery;
	bool repeats = false;
	struct entry *entry;
	unsigned long old;

	*cookie = 0;
	if ((current->flags & (PF_KTHREAD | PF_EXITING)) || !user_mode(task_pt_regs(current)) ||
	    (in_nmi() && !STACKMAP_HAS_TASK_WORK_NMI))
		return -EINVAL;
	guard(irqsave)();
	delivery = stackmap_delivery_here();
	if (delivery && delivery->completed & bit) {
		*cookie = delivery->id;
		return 1;
	}
	entry = find_entry(current);
	if (!entry) {
		repeats = stackmap_may_repeat(may_be_late);
		if ((unlikely(may_be_late) && stackmap_is_too_late()) ||
		    (repeats && this_cpu_ptr(&stackmap_deliveries)->repeats))
			return -EBUSY;
		entry = claim_entry(delivery, repeats);
	}
	if (!entry)
		return -EINVAL;
	*cookie = entry->info.id.id;
	/* It is pending, or is being delivered. */
	if (atomic_long_read(&entry->info.unwind_mask) & bit)
		return 1;
	old = atomic_long_fetch_or(UNWIND_PENDING | bit, &entry->info.unwind_mask);
	if (old & UNWIND_PENDING)
		return !!(old & bit);
	init_task_work(&entry->info.work, deliver_work);
	if (task_work_add(current, &entry->info.work, in_nmi() ? NOTIFY_NMI : NOTIFY)) {
		/* It exits. */
		atomic_long_set(&entry->info.unwind_mask, ENTRY_FREE);
		free_entry(entry);
		return -ESRCH;
	}
	return 0;
}

/* As unwind_deferred_init(). */
int stackmap_deferral_init(struct unwind_work *work,
			   void (*func)(struct unwind_work *work, struct unwind_stacktrace *trace,
					u64 cookie))
{
	guard(mutex)(&stackmap_deferral_lock);
	if (bits_used == ~0UL)
		return -EBUSY;
	work->func = func;
	work->bit = ffz(bits_used);
	WRITE_ONCE(bits_used, bits_used | BIT(work->bit));
	list_add_rcu(&work->list, &works);
	return 0;
}

/* As unwind_deferred_cancel(). */
void stackmap_deferral_cancel(struct unwind_work *work)
{
	const int bit = work->bit;
	unsigned int i;

	guard(mutex)(&stackmap_deferral_lock);
	list_del_rcu(&work->list);
	synchronize_srcu(&works_srcu);
	/* First, so that no delivery copies the bit after it was removed here. */
	WRITE_ONCE(bits_used, bits_used & ~BIT(bit));
	stackmap_delivery_forget(bit);
	for (i = 0; i < BIT(table_bits); i++) {
		atomic_long_andnot(BIT(bit), &entries[i].info.unwind_mask);
		clear_bit(bit, &entries[i].cache.unwind_completed);
	}
}

/**
 * stackmap_deferral_begin - allocate what requests need, unless that is done
 *
 * There are as many entries as the kernel lets threads be by default.
 *
 * Context: process, may sleep; callers serialise.
 * Return: 0 or an errno.
 */
int stackmap_deferral_begin(void)
{
	const unsigned long threads = totalram_pages() * PAGE_SIZE / (THREAD_SIZE * 8);
	unsigned int i, bits = clamp(order_base_2(threads), 10, TABLE_BITS_MAX);
	struct entry *table;
	int cpu, ret;

	if (entries)
		return 0;
	owners = vcalloc(BIT(bits), sizeof(*owners));
	table = vcalloc(BIT(bits), sizeof(*table));
	/* Events of an earlier load have other cookies. */
	for_each_possible_cpu(cpu)
		per_cpu(entry_count, cpu) = get_random_u32() & ~1;
	ret = owners && table ? stackmap_delivery_begin() : -ENOMEM;
	if (ret) {
		vfree(owners);
		vfree(table);
		return ret;
	}
	for (i = 0; i < BIT(bits); i++) {
		atomic_long_set(&table[i].info.unwind_mask, ENTRY_FREE);
		table[i].info.cache = &table[i].cache;
	}
	table_bits = bits;
	entries = table;
	return 0;
}

/* Takes our works off the lists of tasks. Returns the number of entries that are left. */
static unsigned int cancel_all(void)
{
	struct task_struct *group, *task;
	unsigned int i, left = 0;

	scoped_guard(rcu) {
		for_each_process_thread(group, task) {
			struct entry *entry = find_entry(task);

			if (entry && static_call(stackmap_task_work_cancel)(task,
									    &entry->info.work)) {
				atomic_long_set(&entry->info.unwind_mask, ENTRY_FREE);
				free_entry(entry);
			}
		}
	}
	for (i = 0; i < BIT(table_bits); i++)
		left += !!READ_ONCE(owners[i]);
	return left;
}

/**
 * stackmap_deferral_end - cancel all deliveries, and free what stackmap_deferral_begin() allocated
 *
 * All works are cancelled, and nothing is requested: no delivery finds a callback, and none sleeps.
 * The works of tasks that sleep, are stopped, traced or frozen are taken off their lists. Those of
 * a task that has begun to run its list cannot be: works of others before ours may wait without
 * bound, a file that is closed for a server, say. After five seconds such a work is given a
 * function of the kernel in the place of ours, and its entry is never freed. The task reads the
 * function once, and calls it at once: after a grace period of RCU tasks it is not in ours, and
 * will not be. With kCFI there is no such function, and the task is waited for.
 *
 * Notifiers of CPUs need no task: the callback of CPU hotplug removes them.
 *
 * Context: process, may sleep; callers serialise. When this returns no function of this file runs,
 * and none will.
 */
void stackmap_deferral_end(void)
{
	const unsigned long deadline = jiffies + PATIENCE;
	unsigned int i, left;

	if (!entries)
		return;
	while ((left = cancel_all()) && !(HAS_NOTHING && time_after(jiffies, deadline)))
		msleep(20);
	for (i = 0; left && i < BIT(table_bits); i++)
		WRITE_ONCE(entries[i].info.work.func, NOTHING);
	/* A task may have been preempted in deliver_work(): it does not sleep there any more. */
	synchronize_rcu_tasks();
	stackmap_delivery_end();
	vfree(owners);
	if (left)
		pr_info("user stacks: for tasks in works of others (%u), %zu bytes are never freed\n",
			left, BIT(table_bits) * sizeof(*entries));
	else
		vfree(entries);
	entries = NULL;
}
#endif /* STACKMAP_OWN_DEFERRAL */
