// SPDX-License-Identifier: GPL-2.0
/*
 * What user stacks can be made of: hostile HOW ARGUMENT...
 *
 * broken FILE: an ELF file whose second segment cannot be mapped, so that execve() of it fails when
 * the old program is gone. notes FILE MIB HEADERS: a file of MIB MiB that as many program
 * headers call notes from end to end.
 *
 * All others call close() of the file descriptor 1,000,000. notes: from that file. described FILE
 * COUNT: from that file as often, with call frame information; from the third time on, some bytes
 * of the file are random. deleted FILE: from a file that is deleted. jit: from memory of no file.
 * memfd COUNT USER: from COUNT files without a name, as this user; with OLD in the environment
 * they are not changed for four seconds before. written: from one that can be written through a
 * shared mapping. mapped COUNT USER: the same by each of eight users
 * of a user namespace that this user has made. copies COUNT USER: from COUNT files with one
 * build-id, of which each third has a frame of another size, as this user. vdso: not close(), but
 * clock_gettime(), by the vDSO. forged-vdso: by one that it has changed. forged: with frame
 * pointers that lead to the kernel. absent: with a frame pointer that leads to memory that nobody
 * ever provides. fuse DIR: from a file that is mounted at DIR and never read; the file is served by
 * a process of its own. asleep FILE: not close(), but a futex() with the value 1,000,000 that waits
 * 100 s, with a frame pointer that leads to a page of this file, which is not read.
 *
 * exec HOW PROGRAM: runs a program by "spawn", "vfork", from a "thread" or a signal "handler".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/auxvec.h>
#include <linux/elf.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* <sys/auxv.h> has another <elf.h>. */
unsigned long getauxval(unsigned long type);

#define PAGE	4096
#define CODE_AT	0x8000
#define NOTES_AT	0x10000

/* push rbp; mov rbp, rsp; close(1000000); pop rbp; ret */
static const unsigned char code[] = {
	0x55, 0x48, 0x89, 0xe5, 0xb8, 3, 0, 0, 0, 0xbf, 0x40, 0x42, 0x0f, 0, 0x0f, 0x05, 0x5d, 0xc3,
};

static const struct elf64_hdr elf = {
	.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
	.e_type = ET_EXEC,
	.e_machine = EM_X86_64,
	.e_version = EV_CURRENT,
	.e_entry = 0x400000,
	.e_phoff = sizeof(struct elf64_hdr),
	.e_ehsize = sizeof(struct elf64_hdr),
	.e_phentsize = sizeof(struct elf64_phdr),
};

static struct elf64_phdr segment(unsigned long address, unsigned long size)
{
	return (struct elf64_phdr) {
		.p_type = PT_LOAD,
		.p_flags = PF_R | PF_X,
		.p_vaddr = address,
		.p_filesz = size,
		.p_memsz = size,
		.p_align = 4096,
	};
}

static int created(const char *path)
{
	return open(path, O_RDWR | O_CREAT | O_TRUNC, 0755);
}

/* Calls the code at an offset of a file. */
static int call_file(int fd, size_t offset)
{
	char *file = mmap(NULL, offset + PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

	if (file == MAP_FAILED)
		return 1;
	((void (*)(void))(file + offset))();
	return munmap(file, offset + PAGE);
}

static int broken(char **arguments)
{
	const struct elf64_phdr segments[] = {
		segment(0x400000, 0x200000), segment(1UL << 63, 4096),
	};
	struct elf64_hdr head = elf;
	int fd = created(arguments[0]);

	head.e_phnum = 2;
	return write(fd, &head, sizeof(head)) < 0 || write(fd, segments, sizeof(segments)) < 0 ||
	       ftruncate(fd, 0x200000);
}

static int notes(char **arguments)
{
	const size_t size = strtoul(arguments[1], NULL, 10) << 20;
	const unsigned int headers = atoi(arguments[2]);
	const struct elf64_phdr note = {
		.p_type = PT_NOTE, .p_offset = NOTES_AT, .p_filesz = size - NOTES_AT,
	};
	struct elf64_hdr head = elf;
	int fd = created(arguments[0]);
	unsigned int i;
	char *file;

	head.e_phnum = headers;
	if (ftruncate(fd, size))
		return 1;
	file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		return 1;
	/* Only what is in the page cache is read. */
	memset(file, 0, size);
	memcpy(file, &head, sizeof(head));
	for (i = 0; i < headers; i++)
		memcpy(file + sizeof(head) + i * sizeof(note), &note, sizeof(note));
	memcpy(file + CODE_AT, code, sizeof(code));
	if (munmap(file, size))
		return 1;
	return call_file(fd, CODE_AT);
}

#define TABLE_AT	0x300
#define FRAMES_AT	0x400
#define NAMES_AT	0x600
#define SECTIONS_AT	0x700
#define FORGED_END	0x800

/* .eh_frame_hdr with one function, and .eh_frame: the head, and the program of the code. */
static const unsigned char table[] = {
	1, 0x1b, 0x03, 0x3b, 0xfc, 0, 0, 0, 1, 0, 0, 0, 0, 0x7d, 0, 0, 0x18, 1, 0, 0,
};

static const unsigned char frames[] = {
	20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
	28, 0, 0, 0, 0x1c, 0, 0, 0, 0xe0, 0x7b, 0, 0, sizeof(code), 0, 0, 0, 0,
	0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0, 0, 0, 0, 0, 0, 0,
};

static const char names[] = "\0.eh_frame\0";

/* A file with code and the description of its frame, the table of which may be missing. */
static void describe(char *file, int has_table)
{
	const struct elf64_phdr segments[] = {
		segment(0, CODE_AT + PAGE),
		{ .p_type = PT_GNU_EH_FRAME, .p_offset = TABLE_AT, .p_vaddr = TABLE_AT,
		  .p_filesz = sizeof(table) },
	};
	const struct elf64_shdr sections[] = {
		{ },
		{ .sh_name = 1, .sh_addr = FRAMES_AT, .sh_offset = FRAMES_AT,
		  .sh_size = sizeof(frames) },
		{ .sh_offset = NAMES_AT, .sh_size = sizeof(names) },
	};
	struct elf64_hdr head = elf;

	head.e_phnum = 1 + has_table;
	head.e_shoff = SECTIONS_AT;
	head.e_shentsize = sizeof(*sections);
	head.e_shnum = 3;
	head.e_shstrndx = 2;
	memset(file, 0, FORGED_END);
	memcpy(file, &head, sizeof(head));
	memcpy(file + head.e_phoff, segments, sizeof(segments));
	memcpy(file + TABLE_AT, table, sizeof(table));
	memcpy(file + FRAMES_AT, frames, sizeof(frames));
	memcpy(file + NAMES_AT, names, sizeof(names));
	memcpy(file + SECTIONS_AT, sections, sizeof(sections));
	memcpy(file + CODE_AT, code, sizeof(code));
}

static int described(char **arguments)
{
	static char file[CODE_AT + PAGE];
	static const size_t places[] = {
		0, sizeof(elf), TABLE_AT, FRAMES_AT, FRAMES_AT, NAMES_AT, SECTIONS_AT,
	};
	int i, fd, flip, failed = 0;

	srandom(1);
	for (i = 0; i < atoi(arguments[1]) && !failed; i++) {
		describe(file, i % 2);
		/* The first two as they are. */
		for (flip = 0; i > 1 && flip < 1 + i % 5; flip++)
			file[places[random() % 7] + random() % 64] = random();
		fd = created(arguments[0]);
		failed = fd < 0 || write(fd, file, sizeof(file)) < 0 || call_file(fd, CODE_AT) ||
			 close(fd);
	}
	return failed;
}

static int deleted(char **arguments)
{
	int fd = created(arguments[0]);

	return write(fd, code, sizeof(code)) < 0 || unlink(arguments[0]) || call_file(fd, 0);
}

static int jit(char **arguments)
{
	char *made = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)arguments;
	if (made == MAP_FAILED)
		return 1;
	memcpy(made, code, sizeof(code));
	if (mprotect(made, PAGE, PROT_READ | PROT_EXEC))
		return 1;
	((void (*)(void))made)();
	return 0;
}

static int memfd(char **arguments)
{
	const int count = atoi(arguments[0]);
	const struct rlimit files = { count + 16, count + 16 };
	int *fds = calloc(count, sizeof(*fds));
	int i, failed = !fds || setrlimit(RLIMIT_NOFILE, &files) || setuid(atoi(arguments[1]));

	for (i = 0; i < count && !failed; i++) {
		fds[i] = memfd_create("hostile", 0);
		failed = fds[i] < 0 || write(fds[i], code, sizeof(code)) < 0;
	}
	if (getenv("OLD"))
		sleep(4);
	for (i = 0; i < count && !failed; i++)
		failed = call_file(fds[i], 0) || close(fds[i]);
	return failed;
}

static int written(char **arguments)
{
	int fd = memfd_create("hostile", 0);

	(void)arguments;
	return fd < 0 || write(fd, code, sizeof(code)) < 0 ||
	       mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED || call_file(fd, 0);
}

/* sub rsp, 24; close(1000000); add rsp, 24; ret: goes on where the other code does. */
static const unsigned char other_code[] = {
	0x48, 0x83, 0xec, 24, 0xb8, 3, 0, 0, 0, 0xbf, 0x40, 0x42, 0x0f, 0, 0x0f, 0x05, 0x48, 0x83,
	0xc4, 24, 0xc3,
};

static const unsigned char other_frame[] = { 0x44, 0x0e, 32, 0, 0, 0, 0, 0 };

#define NOTE_AT	0x200

static const unsigned char build_id[] = {
	4, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 'G', 'N', 'U', 0, 'c', 'o', 'p', 'i', 'e', 'd', 0, 0,
};

static int copies(char **arguments)
{
	static char file[CODE_AT + PAGE];
	const struct elf64_phdr note = {
		.p_type = PT_NOTE, .p_offset = NOTE_AT, .p_filesz = sizeof(build_id),
	};
	int i, fd, failed = setuid(atoi(arguments[1]));

	for (i = 0; i < atoi(arguments[0]) && !failed; i++) {
		describe(file, 1);
		if (i % 3 == 2) {
			memcpy(file + FRAMES_AT + 41, other_frame, sizeof(other_frame));
			file[FRAMES_AT + 36] = sizeof(other_code);
			memcpy(file + CODE_AT, other_code, sizeof(other_code));
		}
		memcpy(file + NOTE_AT, build_id, sizeof(build_id));
		memcpy(file + sizeof(elf) + 2 * sizeof(note), &note, sizeof(note));
		((struct elf64_hdr *)file)->e_phnum = 3;
		fd = memfd_create("copy", 0);
		failed = fd < 0 || write(fd, file, sizeof(file)) < 0 || call_file(fd, CODE_AT) ||
			 close(fd);
	}
	return failed;
}

/* As in a rootless container: who makes it has many user IDs there, which root gives. */
static int mapped(char **arguments)
{
	int user, status, failed = 0, child = fork();
	char path[64], name[16];
	FILE *map;

	if (!child) {
		if (setuid(atoi(arguments[1])) || unshare(CLONE_NEWUSER) || raise(SIGSTOP))
			_exit(1);
		for (user = 1; user <= 8; user++) {
			snprintf(name, sizeof(name), "%d", user);
			if (!fork())
				_exit(memfd((char *[]) { arguments[0], name }));
			failed |= wait(&status) < 0 || status;
		}
		_exit(failed);
	}
	if (child < 0 || waitpid(child, &status, WUNTRACED) < 0 || !WIFSTOPPED(status))
		return 1;
	snprintf(path, sizeof(path), "/proc/%d/uid_map", child);
	map = fopen(path, "w");
	if (map)
		failed = fprintf(map, "0 100000 65536") < 0 || fclose(map);
	kill(child, SIGCONT);
	return !map || failed || waitpid(child, &status, 0) < 0 || status;
}

static int vdso_time(char **arguments)
{
	struct timespec time;

	(void)arguments;
	/* A clock that the vDSO has to ask the kernel for. */
	return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
}

/* The same, by a vDSO with damaged call frame information: a process can write there. */
static int forged_vdso(char **arguments)
{
	char *vdso = (char *)getauxval(AT_SYSINFO_EHDR);
	const struct elf64_hdr *head = (const struct elf64_hdr *)vdso;
	const struct elf64_phdr *headers = (const void *)(vdso + sizeof(*head));
	size_t size = PAGE;
	int i;

	/* As many pages as it has: all of it at once. */
	while (mprotect(vdso, size, PROT_READ | PROT_WRITE | PROT_EXEC)) {
		size += PAGE;
		if (size > 16 * PAGE)
			return 1;
	}
	for (i = 0; i < head->e_phnum; i++)
		if (headers[i].p_type == PT_GNU_EH_FRAME)
			memset(vdso + headers[i].p_offset, 1, headers[i].p_filesz);
	return vdso_time(arguments);
}

/* Calls close() with another frame pointer. */
static void call_with(const void *frame)
{
	long nr = SYS_close;

	asm volatile("push %%rbp\n\t"
		     "mov %[frame], %%rbp\n\t"
		     "syscall\n\t"
		     "pop %%rbp"
		     : "+a" (nr)
		     : "D" (1000000), [frame] "r" (frame)
		     : "rcx", "r11", "memory");
}

static int forged(char **arguments)
{
	unsigned long *chain;

	(void)arguments;
	/* Above the stack pointer, where frames can only be: the stack grows down. */
	chain = alloca(4 * sizeof(*chain));
	chain[0] = (unsigned long)(chain + 2);
	chain[1] = (unsigned long)__builtin_return_address(0);
	chain[2] = 0;
	chain[3] = 0xffffffff81000000;
	call_with(chain);
	return 0;
}

static int absent(char **arguments)
{
	struct uffdio_register area = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_api api = { .api = UFFD_API };
	int fd = syscall(SYS_userfaultfd, 0);
	/* Above the stack. */
	void *memory = mmap((void *)0x7ffffff00000, PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	(void)arguments;
	if (fd < 0 || memory == MAP_FAILED || ioctl(fd, UFFDIO_API, &api))
		return 1;
	area.range.start = (unsigned long)memory;
	area.range.len = PAGE;
	if (ioctl(fd, UFFDIO_REGISTER, &area))
		return 1;
	call_with(memory);
	return 0;
}

/* A request of a file system, and memory for what follows it. */
struct request {
	struct fuse_in_header head;
	char data[65536];
};

static int answer(int fd, const struct request *request, const void *data, size_t size, int error)
{
	char message[sizeof(struct fuse_out_header) + 256];
	const struct fuse_out_header head = {
		.len = sizeof(head) + size, .error = error, .unique = request->head.unique,
	};

	memcpy(message, &head, sizeof(head));
	memcpy(message + sizeof(head), data, size);
	return write(fd, message, head.len) < 0;
}

static struct fuse_attr attributes(unsigned long node)
{
	return (struct fuse_attr) {
		.ino = node,
		.size = node == FUSE_ROOT_ID ? 0 : 16 * PAGE,
		.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0755,
		.nlink = 1,
		.blksize = PAGE,
	};
}

/*
 * Serves a directory in which every name is a file. The page with the code can be read; a read of
 * any other page is never answered.
 */
static void serve(int fd)
{
	static struct request request;

	while (read(fd, &request, sizeof(request)) > 0) {
		const struct fuse_read_in *wanted = (void *)request.data;
		struct fuse_init_out ready = {
			.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE,
			.max_readahead = 0,	/* only the page that is asked for */
		};
		struct fuse_entry_out entry = {
			.nodeid = 2, .attr_valid = 1000, .entry_valid = 1000, .attr = attributes(2),
		};
		struct fuse_attr_out about = { .attr_valid = 1000 };
		struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE };

		switch (request.head.opcode) {
		case FUSE_INIT:
			answer(fd, &request, &ready, sizeof(ready), 0);
			break;
		case FUSE_LOOKUP:
			answer(fd, &request, &entry, sizeof(entry), 0);
			break;
		case FUSE_GETATTR:
			about.attr = attributes(request.head.nodeid);
			answer(fd, &request, &about, sizeof(about), 0);
			break;
		case FUSE_OPEN:
		case FUSE_OPENDIR:
			answer(fd, &request, &opened, sizeof(opened), 0);
			break;
		case FUSE_READ:
			if (wanted->offset == CODE_AT)
				answer(fd, &request, code, sizeof(code), 0);
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			break;
		default:
			answer(fd, &request, NULL, 0, -38);
		}
	}
}

static int from_fuse(char **arguments)
{
	int fd = open("/dev/fuse", O_RDWR), file;
	char options[64], path[256];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	if (fd < 0 || mount("hostile", arguments[0], "fuse", 0, options))
		return 1;
	if (!fork()) {
		serve(fd);
		_exit(0);
	}
	snprintf(path, sizeof(path), "%s/file", arguments[0]);
	file = open(path, O_RDONLY);
	if (file < 0)
		return 1;
	return call_file(file, CODE_AT);
}

/*
 * Waits 100 s, and returns by a frame pointer. No call names it, so that only the frame pointer
 * says where the caller is.
 */
void wait_and_leave(const void *frame, const unsigned int *value, const struct timespec *time);
asm("wait_and_leave:\n\t"
	"push %rbp\n\t"
	"mov %rdi, %rbp\n\t"
	"mov %rsi, %rdi\n\t"
	"mov %rdx, %r10\n\t"
	"mov (%rdi), %edx\n\t"
	"xor %esi, %esi\n\t"	/* FUTEX_WAIT */
	"mov $202, %eax\n\t"	/* futex() */
	"syscall\n\t"
	"leave\n\t"
	"ret");

static int asleep(char **arguments)
{
	const struct timespec time = { .tv_sec = 100 };
	const unsigned int value = 1000000;
	typeof(wait_and_leave) *wait = wait_and_leave;
	int fd = open(arguments[0], O_RDONLY);
	/* Above the stack. */
	void *page = mmap((void *)0x7ffffff00000, PAGE, PROT_READ,
			  MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);

	if (page == MAP_FAILED)
		return 1;
	/* By a pointer. */
	asm("" : "+r" (wait));
	wait(page, &value, &time);
	return 0;
}

static char *program[2];

static void run_program(int unused)
{
	execve(program[0], program, NULL);
	_exit(unused);
}

static void *run_program_in_thread(void *unused)
{
	run_program(1);
	return unused;
}

static int exec(char **arguments)
{
	const char *how = arguments[0];
	pthread_t thread;
	pid_t child = 0;

	program[0] = arguments[1];
	if (!strcmp(how, "spawn")) {
		if (posix_spawn(&child, program[0], NULL, NULL, program, NULL))
			return 1;
	} else if (!strcmp(how, "vfork")) {
		child = vfork();
		if (!child)
			run_program(1);
	} else if (!strcmp(how, "thread")) {
		return pthread_create(&thread, NULL, run_program_in_thread, NULL) ||
		       pthread_join(thread, NULL);
	} else if (!strcmp(how, "handler")) {
		signal(SIGUSR1, run_program);
		return raise(SIGUSR1);
	}
	return waitpid(child, NULL, 0) < 0;
}

static const struct {
	const char *name;
	int arguments;
	int (*run)(char **arguments);
} hows[] = {
	{ "broken", 1, broken },
	{ "notes", 3, notes },
	{ "described", 2, described },
	{ "deleted", 1, deleted },
	{ "jit", 0, jit },
	{ "memfd", 2, memfd },
	{ "written", 0, written },
	{ "copies", 2, copies },
	{ "mapped", 2, mapped },
	{ "vdso", 0, vdso_time },
	{ "forged-vdso", 0, forged_vdso },
	{ "forged", 0, forged },
	{ "absent", 0, absent },
	{ "fuse", 1, from_fuse },
	{ "asleep", 1, asleep },
	{ "exec", 2, exec },
};

int main(int argc, char **argv)
{
	unsigned int i;

	for (i = 0; i < sizeof(hows) / sizeof(*hows); i++)
		if (argc > 1 && !strcmp(argv[1], hows[i].name) && argc - 2 == hows[i].arguments)
			return hows[i].run(argv + 2);
	return 2;
}
