// SPDX-License-Identifier: GPL-2.0
/*
 * Parts of files that rules are in and that are not in memory: read ahead, and not waited for.
 *
 * Callers hold a lock that other tracers wait for. So the task does it afterwards, on its way back
 * to user space, and the rule is learnt when the next stack leads there.
 */
#include <linux/atomic.h>
#include <linux/fadvise.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/major.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/uaccess.h>
#include <linux/wait_bit.h>

#include "../shim/shim.h"

#define READAHEAD_BYTES	(128 << 10)

struct readahead {
	struct callback_head work;
	struct file *file;
	loff_t offset;
};

static atomic_t pending;

/*
 * Only disks and 9p, which root alone mounts: the servers of others may never answer, and unloading
 * waits for this. Those of FUSE and nbd are programs, which the module may be tracing.
 */
static bool may_read(const struct file *file)
{
	const struct super_block *sb = file_inode(file)->i_sb;

	return (sb->s_type->fs_flags & FS_REQUIRES_DEV || sb->s_magic == V9FS_MAGIC) &&
	       sb->s_magic != FUSE_SUPER_MAGIC && MAJOR(sb->s_dev) != NBD_MAJOR;
}

/* Reads pages one by one, where the file system reads none ahead, such as 9p without a cache. */
static void read_pages(struct file *file, loff_t offset)
{
	struct address_space *mapping = file->f_mapping;
	const loff_t end = min(offset + READAHEAD_BYTES, i_size_read(mapping->host));

	if (!mapping->a_ops->read_folio)
		return;
	for (; offset < end && !fatal_signal_pending(current); offset += PAGE_SIZE) {
		struct folio *folio;

		/* Truncation and hole punching wait for the read. */
		filemap_invalidate_lock_shared(mapping);
		folio = read_mapping_folio(mapping, offset >> PAGE_SHIFT, file);
		filemap_invalidate_unlock_shared(mapping);
		if (IS_ERR(folio))
			return;
		folio_put(folio);
	}
}

static void read_ahead(struct callback_head *work)
{
	struct readahead *readahead = container_of(work, struct readahead, work);
	struct file *file = readahead->file;

	if (file->f_ra.ra_pages)
		vfs_fadvise(file, readahead->offset, READAHEAD_BYTES, POSIX_FADV_WILLNEED);
	else
		read_pages(file, readahead->offset);
	fput(file);
	kfree(readahead);
	if (atomic_dec_and_test(&pending))
		wake_up_var(&pending);
}

/**
 * stackmap_file_want - have a part of a file read into memory, if that is possible
 * @file: the file
 * @offset: where the part begins
 *
 * Context: task context, on the way back to user space or in a system call of the module's files:
 * it is done when that ends.
 */
void stackmap_file_want(struct file *file, u64 offset)
{
	struct readahead *readahead;

	/* Probes of exec and exit: the task may stay in the kernel. */
	if (pagefault_disabled() || !may_read(file))
		return;
	readahead = kmalloc_obj(*readahead, GFP_NOWAIT);
	if (!readahead)
		return;
	init_task_work(&readahead->work, read_ahead);
	readahead->file = get_file(file);
	readahead->offset = round_down(offset, PAGE_SIZE);
	atomic_inc(&pending);
	if (task_work_add(current, &readahead->work, TWA_RESUME)) {
		fput(file);
		kfree(readahead);
		atomic_dec(&pending);
	}
}

/**
 * stackmap_readahead_drain - wait until no task reads ahead
 *
 * No stack is delivered any more. Tasks may still be in the text of read_ahead() until
 * stackmap_hook_drain() was called.
 *
 * Context: process, may sleep.
 */
void stackmap_readahead_drain(void)
{
	wait_var_event(&pending, !atomic_read(&pending));
}
