// SPDX-License-Identifier: GPL-2.0
/*
 * Functions of the kernel that are macros or inline, for the facade. Upstream: rust/helpers/.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bug.h>
#include <linux/kern_levels.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "bindings.h"

/* objtool's list of functions that do not return has this name. */
void rust_helper_BUG(void)
{
	BUG();
}

void *stackmap_rust_kmalloc(size_t size, unsigned int flags)
{
	return kmalloc(size, (__force gfp_t)flags);
}

void *stackmap_rust_kvmalloc(size_t size, unsigned int flags)
{
	return kvmalloc(size, (__force gfp_t)flags);
}

void *stackmap_rust_vmalloc(size_t size, unsigned int flags)
{
	return __vmalloc(size, (__force gfp_t)flags);
}

void stackmap_rust_kvfree(const void *memory)
{
	kvfree(memory);
}

void stackmap_rust_mutex_init(struct mutex *mutex, struct lock_class_key *key)
{
	__mutex_init(mutex, KBUILD_MODNAME, key);
}

/* A macro with CONFIG_DEBUG_LOCK_ALLOC. */
void stackmap_rust_mutex_lock(struct mutex *mutex)
{
	mutex_lock(mutex);
}

void stackmap_rust_rcu_read_lock(void)
{
	rcu_read_lock();
}

void stackmap_rust_rcu_read_unlock(void)
{
	rcu_read_unlock();
}

void stackmap_rust_printk(int level, const char *text, int len)
{
	switch (level) {
	case LOGLEVEL_EMERG:
		pr_emerg("%.*s", len, text);
		break;
	case LOGLEVEL_ERR:
		pr_err("%.*s", len, text);
		break;
	case LOGLEVEL_WARNING:
		pr_warn("%.*s", len, text);
		break;
	case LOGLEVEL_NOTICE:
		pr_notice("%.*s", len, text);
		break;
	default:
		pr_info("%.*s", len, text);
	}
}

unsigned long stackmap_rust_copy_from_user(void *to, const void __user *from, unsigned long len)
{
	return copy_from_user(to, from, len);
}

bool stackmap_rust_signal_pending(void)
{
	return signal_pending(current);
}

void stackmap_rust_put_task(struct task_struct *task)
{
	put_task_struct(task);
}
