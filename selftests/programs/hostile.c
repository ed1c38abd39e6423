// SPDX-License-Identifier: GPL-2.0
/*
 * Files that ask much of their readers: hostile broken FILE, hostile notes FILE MIB HEADERS.
 *
 * broken: an ELF file whose second segment cannot be mapped, so that execve() of it fails when the
 * old program is gone. notes: a file of so many MiB that as many program headers call notes from
 * end to end; it is mapped, and a close() is called from it.
 */
#include <fcntl.h>
#include <linux/elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CODE_AT	0x8000
#define NOTES_AT	0x10000

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

static int broken(int fd)
{
	const struct elf64_phdr segments[] = {
		segment(0x400000, 0x200000), segment(1UL << 63, 4096),
	};
	struct elf64_hdr head = elf;

	head.e_phnum = 2;
	return write(fd, &head, sizeof(head)) < 0 || write(fd, segments, sizeof(segments)) < 0 ||
	       ftruncate(fd, 0x200000);
}

static int notes(int fd, size_t size, unsigned int headers)
{
	/* push rbp; mov rbp, rsp; close(1000000); pop rbp; ret */
	static const unsigned char code[] = {
		0x55, 0x48, 0x89, 0xe5, 0xb8, 3, 0, 0, 0, 0xbf, 0x40, 0x42, 0x0f, 0, 0x0f, 0x05,
		0x5d, 0xc3,
	};
	const struct elf64_phdr note = {
		.p_type = PT_NOTE, .p_offset = NOTES_AT, .p_filesz = size - NOTES_AT,
	};
	struct elf64_hdr head = elf;
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
	if (mprotect(file, size, PROT_READ | PROT_EXEC))
		return 1;
	((void (*)(void))(file + CODE_AT))();
	return 0;
}

int main(int argc, char **argv)
{
	int fd = argc > 2 ? open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0755) : -1;

	if (fd < 0)
		return 2;
	if (!strcmp(argv[1], "broken"))
		return broken(fd);
	return argc < 5 || notes(fd, strtoul(argv[3], NULL, 10) << 20, atoi(argv[4]));
}
