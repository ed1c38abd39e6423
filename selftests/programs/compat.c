// SPDX-License-Identifier: GPL-2.0
/*
 * A program of 32 bits, whose system calls are no events: it touches the page at 0x10000000 from
 * three nested functions that have frame pointers, and exits.
 */
#pragma GCC optimize("no-omit-frame-pointer", "no-optimize-sibling-calls")

#define NOINLINE __attribute__((__noipa__))
#define PAGE	4096

static NOINLINE long call(int nr, const void *argument)
{
	long result;

	asm volatile("int $0x80" : "=a" (result) : "a" (nr), "b" (argument) : "memory");
	return result;
}

static NOINLINE int inner(char *page)
{
	asm volatile("movb $1, (%0)" : : "r" (page) : "memory");
	return *page;
}

static NOINLINE int middle(char *page)
{
	return inner(page) + 1;
}

static NOINLINE int outer(char *page)
{
	return middle(page) + 1;
}

void _start(void)
{
	/* mmap(): readable and writable; private, fixed, of no file. */
	const long arguments[] = { 0x10000000, PAGE, 3, 0x32, -1, 0 };

	outer((char *)call(90, arguments));
	call(1, 0);
}
