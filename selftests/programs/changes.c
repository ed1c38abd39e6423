// SPDX-License-Identifier: GPL-2.0
/*
 * Calls the kernel from code without CFI that changes: changes LOG SEED ROUNDS [unreadable]. LOG is
 * as that of callers.c; a round is up to two calls.
 *
 * The code goes on at the same address with the same registers and with the same words on its
 * stack, but has another frame: it is that of another file with the same build-id, or is written to
 * a private or a shared mapping, where nothing changes the time of the file.
 *
 * unreadable: the code differs from that of its file, and can be executed alone. Its callers cannot
 * be known.
 */
#define _GNU_SOURCE
#include <linux/elf.h>
#include <sys/mman.h>

#include "callers.h"

#pragma GCC optimize("no-omit-frame-pointer")

#define NOINLINE __attribute__((__noipa__))

#define PAGE	4096
#define NOTE_AT	0x200
/* Instructions that push a word, at most. */
#define PUSHES	3

static const unsigned char note[] = {
	4, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 'G', 'N', 'U', 0, 'c', 'h', 'a', 'n', 'g', 'e', 's', 0,
};

struct code {
	unsigned char push[PUSHES][3];
	/* syscall; lea 8 * pushes(%rsp), %rsp; ret */
	unsigned char syscall[2], lea[4], bytes, ret;
};

static struct code code(unsigned int pushes)
{
	struct code code = { .syscall = { 0x0f, 0x05 }, .lea = { 0x48, 0x8d, 0x64, 0x24 },
			     .bytes = 8 * pushes, .ret = 0xc3 };
	unsigned int i;

	/* push (%rsp), so that each word is the return address; or a nop */
	for (i = 0; i < PUSHES; i++)
		memcpy(code.push[i], i < pushes ? "\xff\x34\x24" : "\x0f\x1f\x00", 3);
	return code;
}

/* A file with this code in its second page. */
static int made(unsigned int pushes)
{
	static unsigned char content[2 * PAGE];
	const struct elf64_phdr header = { .p_type = PT_NOTE, .p_offset = NOTE_AT,
				    .p_filesz = sizeof(note) };
	const struct elf64_hdr elf = {
		.e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
		.e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = EV_CURRENT,
		.e_ehsize = sizeof(elf), .e_phoff = sizeof(elf), .e_phentsize = sizeof(header),
		.e_phnum = 1,
	};
	int fd = memfd_create("changes", 0);

	memcpy(content, &elf, sizeof(elf));
	memcpy(content + sizeof(elf), &header, sizeof(header));
	memcpy(content + NOTE_AT, note, sizeof(note));
	*(struct code *)(content + PAGE) = code(pushes);
	if (fd < 0 || write(fd, content, sizeof(content)) != sizeof(content))
		exit(1);
	return fd;
}

/* Maps the code of a file instead of what was mapped there. */
static struct code *map(int fd, int protection, int flags)
{
	static void *at;

	at = mmap(at, PAGE, protection, flags | (at ? MAP_FIXED : 0), fd, PAGE);
	if (at == MAP_FAILED)
		exit(1);
	return at;
}

static void protect(struct code *at, int protection)
{
	if (mprotect(at, PAGE, protection))
		exit(1);
}

extern const char skipped[];
/* Calls what r8 points to. Its frame, unlike that of call_code(), is left by the stack pointer. */
asm("enter: .cfi_startproc\n\t"
	"sub $8, %rsp\n\t"
	".cfi_adjust_cfa_offset 8\n\t"
	"call *%r8\n"
	"skipped: add $8, %rsp\n\t"
	".cfi_adjust_cfa_offset -8\n\t"
	"ret\n\t"
	".cfi_endproc");

/* Calls code that pushes this number of words, to always the same address. */
static NOINLINE void call_code(const struct code *at, unsigned long pushes)
{
	register const void *target asm("r8") = at;
	long result = SYS_close;
	unsigned long here;

	asm volatile("lea 1f(%%rip), %[here]\n\t"
		     "mov %%rsp, %%rbx\n\t"
		     "lea -1024(%%rsp, %[pushes], 8), %%rsp\n\t"
		     "call enter\n"
		     "1: mov %%rbx, %%rsp"
		     : [here] "=&r" (here), "+a" (result)
		     : [pushes] "r" (pushes), "r" (target), "D" (FIRST_FD + number)
		     : "rbx", "rcx", "r11", "memory", "cc");
	callers[depth++] = (unsigned long)__builtin_return_address(0);
	callers[depth++] = here;
	callers[depth++] = (unsigned long)skipped;
	tell((unsigned long)at->lea);
	number++;
	depth -= 3;
}

static NOINLINE void unreadable(int fd)
{
	struct code *at = map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE);

	*at = code(3);
	protect(at, PROT_EXEC);
	base = 3;
	call_code(at, 3);
}

/* The second call is of other code. */
static void another_file(const int *files)
{
	call_code(map(files[0], PROT_READ | PROT_EXEC, MAP_PRIVATE), 1);
	call_code(map(files[1], PROT_READ | PROT_EXEC, MAP_PRIVATE), 3);
}

static void written_privately(int fd)
{
	struct code *at = map(fd, PROT_READ | PROT_EXEC, MAP_PRIVATE);

	call_code(at, 1);
	protect(at, PROT_READ | PROT_WRITE);
	*at = code(3);
	protect(at, PROT_READ | PROT_EXEC);
	call_code(at, 3);
}

static void written_elsewhere(int fd, struct code *writable)
{
	const struct code *at = map(fd, PROT_READ | PROT_EXEC, MAP_SHARED);

	*writable = code(1);
	call_code(at, 1);
	*writable = code(3);
	call_code(at, 3);
}

int main(int argc, char **argv)
{
	const int files[] = { made(1), made(3) }, shared = made(1);
	struct code *writable;
	unsigned long at;

	if (argc < 4)
		return 2;
	file = fopen(argv[1], "w");
	state = strtoul(argv[2], NULL, 10);
	writable = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, shared, PAGE);
	if (!file || writable == MAP_FAILED)
		return 1;
	/* What is written to this page from now on does not change the time of the file. */
	*writable = code(1);
	tell_maps();
	at = (unsigned long)map(files[0], PROT_READ | PROT_EXEC, MAP_PRIVATE);
	fprintf(file, "map %lx %lx %x\n", at, at + PAGE, PAGE);
	if (argc > 4)
		fprintf(file, "cut\n");
	/* Files that have just changed have no index. */
	sleep(4);
	for (calls = strtoul(argv[3], NULL, 10); calls; calls--) {
		if (argc > 4)
			unreadable(files[0]);
		else if (next_random(3))
			another_file(files);
		else if (next_random(2))
			written_privately(files[0]);
		else
			written_elsewhere(shared, writable);
	}
	return fclose(file) ? 1 : 0;
}
