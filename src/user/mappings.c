// SPDX-License-Identifier: GPL-2.0
/*
 * What user addresses of the current task lie in: which file, and at which offset.
 *
 * Nothing here does I/O: callers hold a lock that other tracers wait for. The build-id of a file is
 * read from the page cache only.
 */
#include <linux/buildid.h>
#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "../shim/shim.h"
#include "user.h"

DEFINE_STATIC_CALL_NULL(stackmap_build_id, build_id_parse_nofault);
DEFINE_STATIC_CALL_NULL(stackmap_lock_vma, lock_vma_under_rcu);

static void describe(const struct vm_area_struct *vma, struct stackmap_mapping *mapping)
{
	const struct mm_struct *mm = vma->vm_mm;
	const struct inode *inode;
	struct timespec64 ctime;

	*mapping = (struct stackmap_mapping) {
		.start	= vma->vm_start,
		.end	= vma->vm_end,
		.offset	= (u64)vma->vm_pgoff << PAGE_SHIFT,
		.kind	= STACKMAP_MAPPING_OTHER,
	};
#ifdef CONFIG_X86
	if (mm->context.vdso && vma->vm_start == (unsigned long)mm->context.vdso) {
		mapping->offset = 0;
		mapping->kind = test_thread_flag(TIF_ADDR32) ? STACKMAP_MAPPING_VDSO32
							     : STACKMAP_MAPPING_VDSO;
		return;
	}
#endif
	if (!vma->vm_file || !(vma->vm_flags & VM_EXEC))
		return;
	inode = file_inode(vma->vm_file);
	if (!S_ISREG(inode->i_mode))
		return;
	ctime = inode_get_ctime(inode);
	mapping->kind = STACKMAP_MAPPING_FILE;
	mapping->file = (struct stackmap_file_key) {
		.dev		= inode->i_sb->s_dev,
		.ino		= inode->i_ino,
		.ctime_sec	= ctime.tv_sec,
		.ctime_nsec	= ctime.tv_nsec,
		.generation	= inode->i_generation,
		.size		= i_size_read(inode),
	};
}

/**
 * stackmap_user_task - tell the current task's program from all others
 * @task: set to what tells it
 *
 * Context: task context.
 */
void stackmap_user_task(struct stackmap_task *task)
{
	*task = (struct stackmap_task) {
		.tgid		= current->tgid,
		.start_time	= current->group_leader->start_time,
		.exec_id	= current->self_exec_id,
	};
}

/*
 * The mapping at an address of the current task, for vma_end_read(). NULL if there is none, or
 * while it is being changed. The lock of the whole address space is not taken: its holder may
 * wait for a file system in user space, and all other tracers would wait with us.
 */
static struct vm_area_struct *lock_vma(unsigned long ip)
{
	struct mm_struct *mm = current->mm;

	return mm ? static_call(stackmap_lock_vma)(mm, ip) : NULL;
}

/**
 * stackmap_user_mappings - find what user addresses of the current task lie in
 * @ips: the addresses
 * @nr: their number
 * @mappings: room for STACKMAP_MAPPINGS mappings
 * @which: set for each address to the index of its mapping, STACKMAP_MAPPINGS if it has none
 *
 * Context: task context, may sleep.
 * Return: the number of mappings that were set.
 */
unsigned int stackmap_user_mappings(const unsigned long *ips, unsigned int nr,
				    struct stackmap_mapping *mappings, u8 *which)
{
	unsigned int i, k, last = 0, found = 0;

	memset(which, STACKMAP_MAPPINGS, nr);
	for (i = 0; i < nr; i++) {
		struct vm_area_struct *vma;

		/* Callers are often in the same file as their callees. */
		if (last < found && ips[i] >= mappings[last].start && ips[i] < mappings[last].end) {
			which[i] = last;
			continue;
		}
		for (k = 0; k < found; k++)
			if (ips[i] >= mappings[k].start && ips[i] < mappings[k].end)
				break;
		if (k == found) {
			if (found == STACKMAP_MAPPINGS)
				continue;
			vma = lock_vma(ips[i]);
			if (!vma)
				continue;
			describe(vma, &mappings[found++]);
			vma_end_read(vma);
		}
		last = k;
		which[i] = k;
	}
	return found;
}

/**
 * stackmap_user_binary - say what the file that is mapped at an address is called
 * @ip: the address
 * @key: the file that was found there
 * @binary: set to its name and build-id
 *
 * The build-id has no bytes if the file has none, or if its first page is not in the page cache.
 *
 * Context: task context, may sleep.
 * Return: whether the file is still mapped there.
 */
bool stackmap_user_binary(unsigned long ip, const struct stackmap_file_key *key,
			  struct stackmap_binary *binary)
{
	struct vm_area_struct *vma = lock_vma(ip);
	struct stackmap_mapping mapping;
	struct file *file = NULL;
	char *path;

	if (!vma)
		return false;
	describe(vma, &mapping);
	if (mapping.kind == STACKMAP_MAPPING_FILE && !memcmp(&mapping.file, key, sizeof(*key))) {
		file = get_file(vma->vm_file);
		binary->build_id_len = BUILD_ID_SIZE_MAX;
		if (static_call(stackmap_build_id)(vma, binary->build_id, &binary->build_id_len))
			binary->build_id_len = 0;
	}
	vma_end_read(vma);
	if (!file)
		return false;
	path = d_path(file_user_path(file), binary->path, sizeof(binary->path));
	binary->path_len = 0;
	if (!IS_ERR(path)) {
		binary->path_len = strlen(path);
		memmove(binary->path, path, binary->path_len);
	}
	fput(file);
	return true;
}
