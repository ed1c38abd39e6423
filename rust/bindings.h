/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's C side, as the facade uses it. Functions that are macros or inline in some kernel
 * are in rust/helpers.c. Upstream: rust/bindings/bindings_helper.h.
 */
#ifndef STACKMAP_RUST_BINDINGS_H
#define STACKMAP_RUST_BINDINGS_H

#include <linux/delay.h>
#include <linux/dcache.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/limits.h>
#include <linux/mm_types.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/threads.h>

/* Values that are macros. */
enum stackmap_rust_gfp {
	STACKMAP_RUST_GFP_KERNEL = (__force unsigned int)GFP_KERNEL,
	STACKMAP_RUST_GFP_NOWAIT = (__force unsigned int)GFP_NOWAIT,
};

void rust_helper_BUG(void) __noreturn;
void *stackmap_rust_kmalloc(size_t size, unsigned int flags);
void *stackmap_rust_kvmalloc(size_t size, unsigned int flags);
void *stackmap_rust_vmalloc(size_t size, unsigned int flags);
void stackmap_rust_kvfree(const void *memory);
void stackmap_rust_mutex_init(struct mutex *mutex, struct lock_class_key *key);
void stackmap_rust_mutex_lock(struct mutex *mutex);
void stackmap_rust_rcu_read_lock(void);
void stackmap_rust_rcu_read_unlock(void);
void stackmap_rust_printk(int level, const char *text, int len);
unsigned long stackmap_rust_copy_from_user(void *to, const void __user *from, unsigned long len);
bool stackmap_rust_signal_pending(void);
void stackmap_rust_put_task(struct task_struct *task);

#endif /* STACKMAP_RUST_BINDINGS_H */
