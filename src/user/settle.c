// SPDX-License-Identifier: GPL-2.0
/*
 * User stacks of tasks that stay in the kernel, read by another task.
 *
 * A task delivers its user stack when it returns to user space, and one that sleeps may never
 * return. While it does not run, its user registers and its stack stay as they are. That it has not
 * run shows afterwards: it has not been switched to, its request is still pending, and its cookie
 * is the same.
 *
 * Nothing here waits for the task, nor for a file system in user space.
 */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <linux/userfaultfd_k.h>

#include <asm/syscall.h>
#include <asm/unistd.h>

#include "../record/slot.h"
#include "../shim/shim.h"
#include "user.h"

STACKMAP_STATIC_CALL(NULL, stackmap_put_task_stack, put_task_stack);

/* The bits of our works; with @asked, only of the trace arrays that ask for user stacks now. */
static unsigned long works(bool asked)
{
	const struct stackmap_slot *slot;
	unsigned long ours = 0;

	for (slot = stackmap_slots; slot < stackmap_slots + STACKMAP_SLOTS; slot++)
		if (slot->has_work && (!asked || stackmap_slot_asks(slot)))
			ours |= BIT(slot->work.bit);
	return ours;
}

/* The bits of our works that a task has requested and not delivered. */
static unsigned long requested(struct task_struct *task)
{
	struct unwind_task_info *info = stackmap_unwind_info(task);
	unsigned long mask = atomic_long_read(&info->unwind_mask);
	/* It stays until the task is freed. */
	const struct unwind_cache *cache = READ_ONCE(info->cache);

	if (!(mask & UNWIND_PENDING))
		return 0;
	/* A delivery changes it after the bit of pending requests. */
	return mask & works(false) & ~(cache ? data_race(cache->unwind_completed) : 0);
}

#if STACKMAP_OWN_DEFERRAL
/* The numbers of these calls in other ABIs. */
#define COMPAT_EXECVE		11
#ifdef CONFIG_X86_64
#define COMPAT_EXECVEAT		358
#define X32_EXECVE		(__X32_SYSCALL_BIT + 520)
#define X32_EXECVEAT		(__X32_SYSCALL_BIT + 545)
#else
#define COMPAT_EXECVEAT		387
#define X32_EXECVE		__NR_execve
#define X32_EXECVEAT		__NR_execveat
#endif

/*
 * Whether the current task is in a call of exec, or has called nothing since. exec sets the number
 * with the ABI of the new program, while the registers still are the old program's.
 */
bool stackmap_user_in_exec(void)
{
	struct pt_regs *regs = task_pt_regs(current);
	int nr = syscall_get_nr(current, regs);
#ifdef CONFIG_ARM64
	/* The ABI is that of the caller. A signal has the number forgotten, not its register. */
	const bool is_compat = compat_user_mode(regs);

	if (nr == NO_SYSCALL)
		nr = regs->regs[is_compat ? 7 : 8];
#else
	const bool is_compat = in_ia32_syscall();
#endif

	if (is_compat)
		return nr == COMPAT_EXECVE || nr == COMPAT_EXECVEAT;
	return nr == __NR_execve || nr == __NR_execveat || nr == X32_EXECVE || nr == X32_EXECVEAT;
}
#endif

/*
 * Whether a task with a request of ours pending is inside exec, or may be: the numbers of other
 * ABIs, which 64-bit programs can call, too, are not looked at.
 */
bool stackmap_user_execs(void)
{
	struct task_struct *group, *task;

	guard(rcu)();
	for_each_process_thread(group, task) {
		int nr;

		/* A task that has ended since has no stack. */
		if (!requested(task) || !try_get_task_stack(task))
			continue;
		nr = syscall_get_nr(task, task_pt_regs(task));
		static_call(stackmap_put_task_stack)(task);
		if (nr == __NR_execve || nr == __NR_execveat || nr >= NR_syscalls ||
		    (nr >= 0 && !(syscall_get_arch(task) & __AUDIT_ARCH_64BIT)))
			return true;
	}
	return false;
}

/**
 * stackmap_sleepers - find the other tasks that have a request of ours pending
 * @tasks: set to the first @max of them, with a reference each
 * @max: the size of @tasks
 * @pid: if not 0, find only this thread, with or without a request; @max must not be 0
 *
 * Context: process; callers serialise with stackmap_user_begin() and stackmap_user_cancel().
 * Return: the number of tasks that there are.
 */
unsigned int stackmap_sleepers(struct task_struct **tasks, unsigned int max, pid_t pid)
{
	struct task_struct *group, *task;
	unsigned int nr = 0;

	guard(rcu)();
	if (pid) {
		task = pid_task(find_pid_ns(pid, &init_pid_ns), PIDTYPE_PID);
		if (!task || task == current)
			return 0;
		tasks[0] = get_task_struct(task);
		return 1;
	}
	for_each_process_thread(group, task) {
		if (task == current || !requested(task))
			continue;
		if (nr < max)
			tasks[nr] = get_task_struct(task);
		nr++;
	}
	return nr;
}

/* Reads what must not change. Returns whether the stack can be read. */
static bool look(struct task_struct *task, const struct mm_struct *mm,
		 struct stackmap_sleeper *sleeper)
{
	struct pt_regs *regs = task_pt_regs(task);
	/*
	 * Before all else: if the task has run and does not run any more, its switch is counted.
	 * Pairs with the kernel's release in finish_task(). While it runs, nothing can be read.
	 */
	const bool runs = smp_load_acquire(&task->on_cpu);

	/* The task may run: then this is not what stackmap_sleeper_stays() finds. */
	sleeper->switches = data_race(task->nvcsw + task->nivcsw);
	sleeper->requested = sleeper->unasked ? works(true) : requested(task);
	/* No CPU number has bit 30. */
	sleeper->cookie = sleeper->unasked ? (u64)(u32)task->pid << 32 | BIT(30) :
					     READ_ONCE(stackmap_unwind_info(task)->id.id);
	/* The same. */
	sleeper->registers = data_race(stackmap_registers_of(regs));
	/* Inside exec, registers and memory are not of one program. */
	if (data_race(!!task->in_execve))
		return false;
	return !runs && sleeper->requested && sleeper->cookie && sleeper->registers.word &&
	       !(READ_ONCE(task->flags) & (PF_EXITING | PF_USER_WORKER)) &&
	       READ_ONCE(task->mm) == mm;
}

/**
 * stackmap_sleeper_begin - look at a task that has a request of ours pending, or needs none
 * @task: the task
 * @sleeper: set to what is found
 *
 * Context: process, may sleep. If it returns true, stackmap_sleeper_end() must follow.
 * Return: whether the task does not run, and has a user stack that can be read.
 */
bool stackmap_sleeper_begin(struct task_struct *task, struct stackmap_sleeper *sleeper)
{
	struct mm_struct *mm = get_task_mm(task);

	cond_resched();
	if (!mm)
		return false;
	if (try_get_task_stack(task)) {
		stackmap_process_of(task, mm, &sleeper->process);
		if (look(task, mm, sleeper)) {
			/* All else is read afterwards. */
			smp_rmb();
			return true;
		}
		static_call(stackmap_put_task_stack)(task);
	}
	mmput_async(mm);
	return false;
}

/**
 * stackmap_sleeper_stays - whether a task has not run since stackmap_sleeper_begin()
 * @sleeper: the task
 *
 * Context: process.
 * Return: whether all that was read meanwhile is of the stack that was requested.
 */
bool stackmap_sleeper_stays(const struct stackmap_sleeper *sleeper)
{
	const struct stackmap_process *process = &sleeper->process;
	struct stackmap_sleeper now = { .unasked = sleeper->unasked };

	/*
	 * What was read comes before what shows whether it changed. Pairs with the full barrier of
	 * the kernel's switch to the task, before the task is in user space.
	 */
	smp_rmb();
	return look(process->task, process->mm, &now) && now.switches == sleeper->switches &&
	       (now.requested & sleeper->requested) == sleeper->requested &&
	       now.cookie == sleeper->cookie &&
	       now.registers.ip == sleeper->registers.ip &&
	       now.registers.sp == sleeper->registers.sp &&
	       now.registers.fp == sleeper->registers.fp &&
	       now.registers.word == sleeper->registers.word &&
	       READ_ONCE(process->task->self_exec_id) == process->exec_id;
}

void stackmap_sleeper_end(struct stackmap_sleeper *sleeper)
{
	static_call(stackmap_put_task_stack)(sleeper->process.task);
	mmput_async(sleeper->process.mm);
}

/*
 * Returns whether a page that is not present may be waited for: one from swap. Pages of files, and
 * pages that a process provides, may never arrive. A stack that nothing has asked for is not worth
 * the wait.
 */
static bool may_wait(const struct stackmap_sleeper *sleeper, struct vm_area_struct *vma)
{
	return !sleeper->unasked && vma_is_anonymous(vma) && !userfaultfd_armed(vma);
}

/**
 * stackmap_sleeper_word - read a word of a task's memory
 * @sleeper: the task
 * @address: where, a multiple of the size of a word
 * @word: set to it
 *
 * Context: process, may sleep.
 * Return: 0; -ENXIO if nothing is mapped there; -EBUSY while the address space is being changed;
 * -EFAULT if it cannot be read for another reason.
 */
int stackmap_sleeper_word(const struct stackmap_sleeper *sleeper, unsigned long address,
			  __u64 *word)
{
	struct mm_struct *mm = sleeper->process.mm;
	struct vm_area_struct *vma;
	struct page *page;
	void *mapped;
	long nr;

	if (!IS_ALIGNED(address, sleeper->registers.word))
		return -EFAULT;
	if (!mmap_read_trylock(mm))
		return -EBUSY;
	vma = vma_lookup(mm, address);
	nr = !vma ? -ENXIO : get_user_pages_remote(mm, address, 1,
						   may_wait(sleeper, vma) ? 0 : FOLL_NOFAULT, &page,
						   NULL);
	mmap_read_unlock(mm);
	if (nr != 1)
		return nr == -ENXIO ? -ENXIO : -EFAULT;
	mapped = kmap_local_page(page) + offset_in_page(address);
	/* Other threads of the process may write there. */
	if (sleeper->registers.word == sizeof(u32))
		*word = READ_ONCE(*(u32 *)mapped);
	else
		*word = READ_ONCE(*(u64 *)mapped);
	kunmap_local(mapped);
	put_page(page);
	return 0;
}

/**
 * stackmap_sleeper_bind - bind the stack of a task in each trace array that has requested it
 * @sleeper: the task
 * @id: the id of its user stack
 *
 * Context: process; callers serialise as for stackmap_sleepers().
 * Return: whether a ring buffer took the event.
 */
bool stackmap_sleeper_bind(const struct stackmap_sleeper *sleeper, unsigned int id)
{
	struct stackmap_slot *slot;
	bool bound = false;

	for (slot = stackmap_slots; slot < stackmap_slots + STACKMAP_SLOTS; slot++)
		if (slot->has_work && sleeper->requested & BIT(slot->work.bit))
			bound |= stackmap_user_bind(&slot->served, sleeper->cookie, id);
	return bound;
}
