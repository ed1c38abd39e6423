// SPDX-License-Identifier: GPL-2.0
/* Writes the text of the running kernel, from _text to _etext, to the standard output. */
#include <err.h>
#include <linux/elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *kcore;

/* Returns the address of a symbol. */
static unsigned long address_of(const char *name)
{
	FILE *symbols = fopen("/proc/kallsyms", "r");
	unsigned long address;
	char symbol[512];

	if (!symbols)
		err(1, "/proc/kallsyms");
	while (fscanf(symbols, "%lx %*c %511s%*[^\n]", &address, symbol) == 2)
		if (!strcmp(symbol, name))
			break;
	if (feof(symbols) || !address)
		errx(1, "no address of %s", name);
	fclose(symbols);
	return address;
}

static void get(long offset, void *to, size_t size)
{
	if (fseek(kcore, offset, SEEK_SET) || fread(to, size, 1, kcore) != 1)
		err(1, "/proc/kcore");
}

int main(void)
{
	const unsigned long start = address_of("_text"), size = address_of("_etext") - start;
	char *const text = malloc(size);
	struct elf64_phdr segment;
	struct elf64_hdr elf;

	kcore = fopen("/proc/kcore", "r");
	if (!kcore || !text)
		err(1, "/proc/kcore");
	get(0, &elf, sizeof(elf));
	for (int i = 0; i < elf.e_phnum; i++) {
		get(elf.e_phoff + i * sizeof(segment), &segment, sizeof(segment));
		if (segment.p_type == PT_LOAD && start - segment.p_vaddr < segment.p_memsz) {
			get(segment.p_offset + (start - segment.p_vaddr), text, size);
			return fwrite(text, size, 1, stdout) != 1;
		}
	}
	errx(1, "the text is not in /proc/kcore");
}
