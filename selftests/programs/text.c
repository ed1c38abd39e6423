// SPDX-License-Identifier: GPL-2.0
/*
 * Writes the text of the running kernel to the standard output: text START END, which are the
 * addresses of _text and _etext. With FILE after that, says how many bytes differ from that file's.
 */
#include <err.h>
#include <linux/elf.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *kcore;

static void get(long offset, void *to, size_t size)
{
	if (fseek(kcore, offset, SEEK_SET) || fread(to, size, 1, kcore) != 1)
		err(1, "/proc/kcore");
}

/* Says how many bytes of the text differ from those of a file. */
static void compare(const char *path, const char *text, size_t size)
{
	char *const before = malloc(size);
	FILE *file = fopen(path, "r");
	size_t i, differ = 0;

	if (!file || !before || fread(before, size, 1, file) != 1)
		err(1, "%s", path);
	for (i = 0; i < size; i++)
		differ += before[i] != text[i];
	printf("%zu\n", differ);
}

int main(int argc, char **argv)
{
	const unsigned long start = argc > 2 ? strtoul(argv[1], NULL, 16) : 0;
	const unsigned long size = argc > 2 ? strtoul(argv[2], NULL, 16) - start : 0;
	char *const text = malloc(size);
	struct elf64_phdr segment;
	struct elf64_hdr elf;

	if (!start || (long)size <= 0)
		errx(1, "no addresses");
	kcore = fopen("/proc/kcore", "r");
	if (!kcore || !text)
		err(1, "/proc/kcore");
	get(0, &elf, sizeof(elf));
	for (int i = 0; i < elf.e_phnum; i++) {
		get(elf.e_phoff + i * sizeof(segment), &segment, sizeof(segment));
		if (segment.p_type == PT_LOAD && start - segment.p_vaddr < segment.p_memsz) {
			get(segment.p_offset + (start - segment.p_vaddr), text, size);
			if (argc == 3)
				return fwrite(text, size, 1, stdout) != 1;
			compare(argv[3], text, size);
			return 0;
		}
	}
	errx(1, "the text is not in /proc/kcore");
}
