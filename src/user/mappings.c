// SPDX-License-Identifier: GPL-2.0
/*
 * What user addresses of the current task lie in: which file, and at which offset.
 *
 * Nothing here does I/O: callers hold a lock that other tracers wait for. The build-id of a file is
 * read from the page cache only.
 */
#include <linux/buildid.h>
#include <linux/dcache.h>
#include <linux/elf.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "../shim/shim.h"
#include "user.h"

DEFINE_STATIC_CALL_NULL(stackmap_freader_init, freader_init_from_file);
DEFINE_STATIC_CALL_NULL(stackmap_freader_fetch, freader_fetch);
DEFINE_STATIC_CALL_NULL(stackmap_freader_cleanup, freader_cleanup);
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
	if (mm->context.vdso && vma->vm_start == (unsigned long)mm->context.vdso && !vma->vm_file) {
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
		.owner		= __kuid_val(inode->i_uid),
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

/* What is read of a file at most. The kernel's own parser can take hours for a hostile file. */
#define HEADERS_MAX	64
#define NOTES_MAX	32
#define NOTES_BYTES_MAX	4096
#define FILE_OFFSET_MAX	BIT_ULL(40)

/* The type of a note with a build-id, of the owner "GNU". */
#define NOTE_BUILD_ID	3

/* The build-id among the notes at @offset. Returns whether there is one. */
static bool find_note(struct freader *reader, u64 offset, u64 size, struct stackmap_binary *binary)
{
	const u64 end = offset + min(size, NOTES_BYTES_MAX);
	unsigned int i;

	for (i = 0; i < NOTES_MAX && offset + sizeof(struct elf64_note) < end; i++) {
		const struct elf64_note *fetched;
		const char *name, *id;
		struct elf64_note note;

		fetched = static_call(stackmap_freader_fetch)(reader, offset, sizeof(*fetched));
		if (!fetched)
			return false;
		note = *fetched;
		if (note.n_namesz > NOTES_BYTES_MAX || note.n_descsz > NOTES_BYTES_MAX)
			return false;
		offset += sizeof(note);
		name = static_call(stackmap_freader_fetch)(reader, offset, sizeof("GNU"));
		if (!name)
			return false;
		if (note.n_type == NOTE_BUILD_ID && note.n_namesz == sizeof("GNU") &&
		    !memcmp(name, "GNU", sizeof("GNU")) && note.n_descsz &&
		    note.n_descsz <= sizeof(binary->build_id)) {
			id = static_call(stackmap_freader_fetch)(reader, offset + sizeof("GNU"),
								 note.n_descsz);
			if (!id)
				return false;
			memcpy(binary->build_id, id, note.n_descsz);
			binary->build_id_len = note.n_descsz;
			return true;
		}
		offset += ALIGN(note.n_namesz, 4) + ALIGN(note.n_descsz, 4);
	}
	return false;
}

/* Reads the build-id of a 64-bit ELF file from the page cache, in bounded time. */
static void read_build_id(struct file *file, struct stackmap_binary *binary)
{
	char buffer[sizeof(struct elf64_hdr)];
	struct freader reader;
	const struct elf64_hdr *elf;
	const struct elf64_phdr *header;
	unsigned int i, nr;
	u64 headers;

	static_call(stackmap_freader_init)(&reader, buffer, sizeof(buffer), file, false);
	elf = static_call(stackmap_freader_fetch)(&reader, 0, sizeof(*elf));
	if (!elf || memcmp(elf->e_ident, ELFMAG, SELFMAG) ||
	    elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_phoff > FILE_OFFSET_MAX)
		goto out;
	headers = elf->e_phoff;
	nr = min(elf->e_phnum, HEADERS_MAX);
	for (i = 0; i < nr; i++) {
		header = static_call(stackmap_freader_fetch)(&reader,
							     headers + i * sizeof(*header),
							     sizeof(*header));
		if (!header)
			break;
		if (header->p_type == PT_NOTE && header->p_offset <= FILE_OFFSET_MAX &&
		    find_note(&reader, header->p_offset, header->p_filesz, binary))
			break;
	}
out:
	static_call(stackmap_freader_cleanup)(&reader);
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
	if (mapping.kind == STACKMAP_MAPPING_FILE && !memcmp(&mapping.file, key, sizeof(*key)))
		file = get_file(vma->vm_file);
	vma_end_read(vma);
	if (!file)
		return false;
	binary->build_id_len = 0;
	read_build_id(file, binary);
	path = d_path(file_user_path(file), binary->path, sizeof(binary->path));
	binary->path_len = 0;
	if (!IS_ERR(path)) {
		binary->path_len = strlen(path);
		memmove(binary->path, path, binary->path_len);
	}
	fput(file);
	return true;
}
