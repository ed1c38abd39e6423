// SPDX-License-Identifier: GPL-2.0
/*
 * What a walk reads of a process: mappings, files, the vDSO, registers, words of the stack.
 *
 * Nothing here does I/O: callers hold a lock that other tracers wait for. Files are read from the
 * page cache only.
 */
#include <linux/backing-dev-defs.h>
#include <linux/blkdev.h>
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/elf.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/stat.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/uprobes.h>
#include <linux/user_namespace.h>

#ifdef CONFIG_X86
#include <asm/vdso.h>
#else
/* Its vDSO is not read on other architectures: nothing has one of these. */
struct vdso_image {
	void *data;
	unsigned long size;
};
#endif

#include "../shim/shim.h"
#include "user.h"

STACKMAP_STATIC_CALL(NULL, stackmap_lock_vma, lock_vma_under_rcu);

/* Returns the 64-bit vDSO of an address space; NULL if it has another one, or none. */
static const struct vdso_image *vdso64(const struct mm_struct *mm)
{
#ifdef CONFIG_X86
	const struct vdso_image *image = READ_ONCE(mm->context.vdso_image);

	if (image && ((const char *)image->data)[EI_CLASS] == ELFCLASS64)
		return image;
#endif
	return NULL;
}

/**
 * stackmap_vdso_size - the size of a process's 64-bit vDSO
 * @process: the process
 *
 * Context: any.
 * Return: the number of bytes; 0 if it has none.
 */
u64 stackmap_vdso_size(const struct stackmap_process *process)
{
	const struct vdso_image *image = process->mm ? vdso64(process->mm) : NULL;

	return image ? image->size : 0;
}

/**
 * stackmap_vdso_read - read bytes of a process's 64-bit vDSO, as the kernel has it
 * @process: the process
 * @offset: where
 * @bytes: set to them
 * @nr: their number
 *
 * Context: any.
 * Return: whether they are all there.
 */
bool stackmap_vdso_read(const struct stackmap_process *process, u64 offset, void *bytes,
			unsigned int nr)
{
	const struct vdso_image *image = process->mm ? vdso64(process->mm) : NULL;

	if (!image || offset > image->size || nr > image->size - offset)
		return false;
	memcpy(bytes, image->data + offset, nr);
	return true;
}

/*
 * Returns a number for the medium that has the device number now. Device numbers are used again
 * when another image is attached or another file system is mounted, and files of two images can
 * have the same inode numbers and times. Without a disk, a file system with writeback has a number
 * of its own; one without has only files that are newer than the mount.
 */
static u64 medium_of(const struct super_block *sb)
{
	return sb->s_bdev ? sb->s_bdev->bd_disk->diskseq : sb->s_bdi->id;
}

/* Subvolumes of btrfs use the same inode numbers: the inode in memory distinguishes them. */
static u64 inode_of(const struct inode *inode)
{
	return inode->i_sb->s_magic == BTRFS_SUPER_MAGIC ? (uintptr_t)inode : 0;
}

static void describe(struct vm_area_struct *vma, struct stackmap_mapping *mapping)
{
	const struct mm_struct *mm __maybe_unused = vma->vm_mm;
	const struct inode *inode;
	struct timespec64 ctime;

	*mapping = (struct stackmap_mapping) {
		.start	= vma->vm_start,
		.end	= vma->vm_end,
		.offset	= (u64)vma->vm_pgoff << PAGE_SHIFT,
		.kind	= STACKMAP_MAPPING_DATA,
	};
#ifdef CONFIG_X86
	if (mm->context.vdso && vma->vm_start == (unsigned long)mm->context.vdso && !vma->vm_file) {
		mapping->offset = 0;
		mapping->kind = vdso64(mm) ? STACKMAP_MAPPING_VDSO : STACKMAP_MAPPING_VDSO32;
		return;
	}
#endif
	if (!(vma->vm_flags & VM_EXEC))
		return;
	mapping->kind = vma->vm_file || vma_is_anonymous(vma) ? STACKMAP_MAPPING_OTHER :
								STACKMAP_MAPPING_SPECIAL;
	if (!vma->vm_file)
		return;
	inode = file_inode(vma->vm_file);
	/* The number 0 does not identify a file: inodes that file systems share have it. */
	if (!S_ISREG(inode->i_mode) || !inode->i_ino)
		return;
	/* Stores through a shared mapping, of any process, may keep the ctime. */
	if (!(vma->vm_flags & VM_SHARED) && mapping_writably_mapped(vma->vm_file->f_mapping))
		return;
	ctime = inode_get_ctime(inode);
	mapping->kind = STACKMAP_MAPPING_FILE;
	/* A page that is written to privately needs one. */
	mapping->changes = vma->anon_vma || vma->vm_flags & VM_SHARED;
	mapping->file = (struct stackmap_file_key) {
		.dev		= inode->i_sb->s_dev,
		.ino		= inode->i_ino,
		.medium		= medium_of(inode->i_sb),
		.inode		= inode_of(inode),
		.ctime_sec	= ctime.tv_sec,
		.ctime_nsec	= ctime.tv_nsec,
		.generation	= inode->i_generation,
		.size		= i_size_read(inode),
		.owner		= __kuid_val(inode->i_uid),
		.type		= inode->i_sb->s_magic,
	};
}

/*
 * Returns the user who is charged for a task: in a user namespace that another user than root has
 * made, whoever made the outermost one. Such a user can have many user IDs there.
 */
static u32 user_of(struct task_struct *task)
{
	const struct user_namespace *ns;
	const struct cred *cred;
	kuid_t user;

	guard(rcu)();
	cred = __task_cred(task);
	user = cred->uid;
	for (ns = cred->user_ns; ns != &init_user_ns; ns = ns->parent)
		user = ns->owner;
	if (uid_eq(user, GLOBAL_ROOT_UID))
		user = cred->uid;
	return __kuid_val(user);
}

/**
 * stackmap_process_of - identify a task's program
 * @task: the task
 * @mm: its address space
 * @process: set to what identifies it
 *
 * Context: process.
 */
void stackmap_process_of(struct task_struct *task, struct mm_struct *mm,
			 struct stackmap_process *process)
{
	/* The leader of a thread group changes when another thread calls exec. */
	guard(rcu)();
	*process = (struct stackmap_process) {
		.task		= task,
		.mm		= mm,
		.tgid		= task->tgid,
		.user		= user_of(task),
		.start_time	= READ_ONCE(task->group_leader)->start_time,
		.exec_id	= READ_ONCE(task->self_exec_id),
		/* Asked of the current task only. */
		.in_exec	= data_race(!!task->in_execve),
		.stack		= mm ? READ_ONCE(mm->start_stack) : ULONG_MAX,
	};
}

/* Identifies the program of the current task. */
void stackmap_process_current(struct stackmap_process *process)
{
	stackmap_process_of(current, current->mm, process);
}

/*
 * Returns the mapping at an address of a process, for vma_end_read(). NULL if there is none, or
 * while it is being changed. The lock of the whole address space is not taken: its holder may
 * wait for a file system in user space, and all other tracers would wait with us.
 */
static struct vm_area_struct *lock_vma(const struct stackmap_process *process, unsigned long ip)
{
	return process->mm ? static_call(stackmap_lock_vma)(process->mm, ip) : NULL;
}

/**
 * stackmap_user_mapping - find what a user address lies in
 * @process: the process
 * @address: the address
 * @mapping: set to what is found
 *
 * Context: task context, may sleep.
 * Return: whether something is mapped there, and not just being changed.
 */
bool stackmap_user_mapping(const struct stackmap_process *process, unsigned long address,
			   struct stackmap_mapping *mapping)
{
	struct vm_area_struct *vma = lock_vma(process, address);

	if (!vma)
		return false;
	describe(vma, mapping);
	vma_end_read(vma);
	return true;
}

/**
 * stackmap_file_begin - get the file that is mapped at an address
 * @process: the process
 * @address: the address
 * @key: the file that was found there
 * @file: set to the file, for stackmap_file_end()
 *
 * Context: task context, may sleep.
 * Return: whether it is this file that is mapped there.
 */
bool stackmap_file_begin(const struct stackmap_process *process, unsigned long address,
			 const struct stackmap_file_key *key, struct stackmap_file *file)
{
	struct vm_area_struct *vma = lock_vma(process, address);
	struct stackmap_mapping mapping;
	bool same;

	if (!vma)
		return false;
	describe(vma, &mapping);
	same = mapping.kind == STACKMAP_MAPPING_FILE &&
	       !memcmp(&mapping.file, key, sizeof(*key));
	if (same) {
		file->file = get_file(vma->vm_file);
		file->folio = NULL;
	}
	vma_end_read(vma);
	return same;
}

static void put_folio(struct stackmap_file *file)
{
	if (file->folio)
		folio_put(file->folio);
	file->folio = NULL;
}

/* Gets the folio of a page, if it is in the page cache. Returns whether it is. */
static bool get_folio(struct stackmap_file *file, pgoff_t index)
{
	struct folio *folio = file->folio;

	/* One that was truncated belongs to no file any more. */
	if (folio && folio->mapping == file->file->f_mapping && folio_contains(folio, index))
		return true;
	put_folio(file);
	folio = filemap_get_folio(file->file->f_mapping, index);
	if (!IS_ERR_OR_NULL(folio))
		file->folio = folio;
	return file->folio;
}

/*
 * Reads bytes of one page of a file, if it is in the page cache. A page of memfd_secret() is not
 * mapped in the kernel.
 */
static bool read_in_page(struct stackmap_file *file, u64 offset, void *bytes, unsigned int nr)
{
	bool read;
	void *page;

	if (!get_folio(file, offset >> PAGE_SHIFT) || !folio_test_uptodate(file->folio))
		return false;
	page = kmap_local_folio(file->folio, offset_in_folio(file->folio, offset) & PAGE_MASK);
	read = !copy_from_kernel_nofault(bytes, page + offset_in_page(offset), nr);
	kunmap_local(page);
	return read;
}

/**
 * stackmap_file_read - read bytes of a file that are in the page cache
 * @file: the file
 * @offset: where
 * @bytes: set to them
 * @nr: their number
 *
 * Context: task context, may sleep.
 * Return: whether they are all there.
 */
bool stackmap_file_read(struct stackmap_file *file, u64 offset, void *bytes, unsigned int nr)
{
	while (nr) {
		const unsigned int rest = PAGE_SIZE - offset_in_page(offset);
		const unsigned int part = min(nr, rest);

		if (!read_in_page(file, offset, bytes, part))
			return false;
		offset += part;
		bytes += part;
		nr -= part;
	}
	return true;
}

/**
 * stackmap_file_end - put a file of stackmap_file_begin()
 * @file: the file
 *
 * Context: task context, may sleep.
 */
void stackmap_file_end(struct stackmap_file *file)
{
	put_folio(file);
	fput(file->file);
}

/* Where the current task left user space. */
void stackmap_user_registers(struct stackmap_registers *registers)
{
	*registers = stackmap_registers_of(task_pt_regs(current));
}

/**
 * stackmap_user_register - get a general register
 * @process: the process
 * @number: its DWARF number
 *
 * Context: task context; the task is the current one, or its kernel stack is held.
 * Return: its value where the task left user space; 0 if there is none of this number.
 */
__u64 stackmap_user_register(const struct stackmap_process *process, unsigned int number)
{
	__u64 value = 0;
#ifdef CONFIG_X86_64
	/* Another task may run: then what was read does not stay. */
	const struct pt_regs regs = data_race(*task_pt_regs(process->task));
	const __u64 general[] = {
		regs.ax, regs.dx, regs.cx, regs.bx, regs.si, regs.di, regs.bp, regs.sp,
		regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
	};

	if (number < ARRAY_SIZE(general))
		value = general[number];
#elif defined(CONFIG_ARM64)
	const struct pt_regs *regs = task_pt_regs(process->task);

	if (number < ARRAY_SIZE(regs->regs))
		/* The same. */
		value = data_race(regs->regs[number]);
#endif
	return value;
}

/**
 * stackmap_user_original - find the address that uprobes have replaced by one of theirs
 * @process: the process; of other tasks than the current one nothing is known, as the list of its
 *	return addresses may be freed
 * @ip: an address in a special mapping
 * @slot: where it is on the stack, as a return address; 0: where the task left user space
 *
 * An instruction that is probed runs in a copy, and a function whose return is probed returns to a
 * trampoline.
 *
 * Context: task context.
 * Return: the address; 0 if there is none.
 */
__u64 stackmap_user_original(const struct stackmap_process *process, __u64 ip, __u64 slot)
{
#ifdef CONFIG_UPROBES
	const struct uprobe_task *utask = process->task == current ? current->utask : NULL;
	const struct return_instance *instance;

	if (!utask)
		return 0;
	if (!slot) {
		/* The copy is followed by no other instruction of the program. */
		if (utask->active_uprobe && ip - utask->xol_vaddr < UPROBE_XOL_SLOT_BYTES)
			return utask->vaddr + (ip - utask->xol_vaddr);
		return 0;
	}
	for (instance = utask->return_instances; instance; instance = instance->next)
		if (instance->stack == slot)
			return instance->orig_ret_vaddr;
#endif
	return 0;
}

/**
 * stackmap_user_read - read words of the current task's memory, as far as they are present
 * @address: where the first one is
 * @words: set to them
 * @nr: their number
 *
 * Context: task context.
 * Return: whether all of them were read.
 */
bool stackmap_user_read(unsigned long address, __u64 *words, unsigned int nr)
{
	const u64 __user *from = (const u64 __user *)address;
	unsigned int i = 0;

	pagefault_disable();
	if (!user_read_access_begin(from, nr * sizeof(*from)))
		goto fault;
	/* Most stacks are read by many words at once. */
	for (; i + 4 <= nr; i += 4) {
		unsafe_get_user(words[i], from + i, fault_in_access);
		unsafe_get_user(words[i + 1], from + i + 1, fault_in_access);
		unsafe_get_user(words[i + 2], from + i + 2, fault_in_access);
		unsafe_get_user(words[i + 3], from + i + 3, fault_in_access);
	}
	for (; i < nr; i++)
		unsafe_get_user(words[i], from + i, fault_in_access);
	user_read_access_end();
	pagefault_enable();
	return true;

fault_in_access:
	user_read_access_end();
fault:
	pagefault_enable();
	return false;
}

/* What is read of a file at most. The kernel's own parser can take hours for a hostile file. */
#define HEADERS_MAX	64
#define NOTES_MAX	32
#define NOTES_BYTES_MAX	4096
#define FILE_OFFSET_MAX	BIT_ULL(40)

/* The type of a note with a build-id, of the owner "GNU". */
#define NOTE_BUILD_ID	3

/* Finds the build-id among the notes at @offset. Returns whether there is one. */
static bool find_note(struct stackmap_file *file, u64 offset, u64 size,
		      struct stackmap_binary *binary)
{
	const u64 end = offset + min(size, NOTES_BYTES_MAX);
	unsigned int i;

	for (i = 0; i < NOTES_MAX && offset + sizeof(struct elf64_note) < end; i++) {
		char name[sizeof("GNU")];
		struct elf64_note note;

		if (!stackmap_file_read(file, offset, &note, sizeof(note)) ||
		    note.n_namesz > NOTES_BYTES_MAX || note.n_descsz > NOTES_BYTES_MAX)
			return false;
		offset += sizeof(note);
		if (!stackmap_file_read(file, offset, name, sizeof(name)))
			return false;
		if (note.n_type == NOTE_BUILD_ID && note.n_namesz == sizeof("GNU") &&
		    !memcmp(name, "GNU", sizeof("GNU")) && note.n_descsz &&
		    note.n_descsz <= sizeof(binary->build_id)) {
			offset += sizeof("GNU");
			if (!stackmap_file_read(file, offset, binary->build_id, note.n_descsz))
				return false;
			binary->build_id_len = note.n_descsz;
			return true;
		}
		offset += ALIGN(note.n_namesz, 4) + ALIGN(note.n_descsz, 4);
	}
	return false;
}

/* Reads the build-id of a 64-bit ELF file from the page cache, in bounded time. */
static void read_build_id(struct stackmap_file *file, struct stackmap_binary *binary)
{
	struct elf64_phdr header;
	struct elf64_hdr elf;
	unsigned int i, nr;

	if (!stackmap_file_read(file, 0, &elf, sizeof(elf)) ||
	    memcmp(elf.e_ident, ELFMAG, SELFMAG) || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
	    elf.e_phoff > FILE_OFFSET_MAX)
		return;
	nr = min(elf.e_phnum, HEADERS_MAX);
	for (i = 0; i < nr; i++) {
		const u64 offset = elf.e_phoff + i * sizeof(header);

		if (!stackmap_file_read(file, offset, &header, sizeof(header)))
			return;
		if (header.p_type == PT_NOTE && header.p_offset <= FILE_OFFSET_MAX &&
		    find_note(file, header.p_offset, header.p_filesz, binary))
			return;
	}
}

/* For how long a file may change and keep a coarse ctime: servers may count in seconds. */
#define COARSE_SECONDS	2

/*
 * Makes the file system give each later change of a file another ctime, even in the same tick,
 * where it can: as stat() does. Returns whether each change has another ctime: elsewhere a file
 * that has just changed may change again, and keep it.
 */
static bool watch_ctime(struct inode *inode)
{
#if STACKMAP_HAS_MULTIGRAIN_TIME
	struct kstat stat;

	/* Inodes of such a file system can have memory for seconds alone. */
	if (is_mgtime(inode) && inode->i_sb->s_time_gran == 1) {
		fill_mg_cmtime(&stat, STATX_CTIME, inode);
		return true;
	}
#endif
	return abs(ktime_get_real_seconds() - inode_get_ctime_sec(inode)) > COARSE_SECONDS;
}

/**
 * stackmap_user_binary - get the name and build-id of the file that is mapped at an address
 * @process: the process
 * @ip: the address
 * @key: the file that was found there
 * @binary: set to its name and build-id
 *
 * The build-id has no bytes if the file has none, or if its first page is not in the page cache.
 *
 * Context: task context, may sleep.
 * Return: whether the file is still mapped there, and will have another @key when it changes. If
 * not, nothing is read, as the next delivery asks again.
 */
bool stackmap_user_binary(const struct stackmap_process *process, unsigned long ip,
			  const struct stackmap_file_key *key, struct stackmap_binary *binary)
{
	struct stackmap_file file;
	bool watched;
	char *path;

	if (!stackmap_file_begin(process, ip, key, &file))
		return false;
	watched = watch_ctime(file_inode(file.file));
	if (watched) {
		binary->build_id_len = 0;
		read_build_id(&file, binary);
		path = d_path(file_user_path(file.file), binary->path, sizeof(binary->path));
		binary->path_len = IS_ERR(path) ? 0 : strlen(path);
		memmove(binary->path, path, binary->path_len);
	}
	stackmap_file_end(&file);
	return watched;
}
