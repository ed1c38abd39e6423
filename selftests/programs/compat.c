// SPDX-License-Identifier: GPL-2.0
/*
 * A program of 32 bits, whose system calls are no events: it touches the page at 0x10000000 from
 * three nested functions that have frame pointers, and exits. The return address of the outermost
 * one is the last word of their stack, and of what is mapped there.
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

static NOINLINE int outer(void)
{
	return middle((char *)0x10000000) + 1;
}

void _start(void)
{
	/* mmap(): readable and writable; private, fixed, of no file. */
	const long page[] = { 0x10000000, PAGE, 3, 0x32, -1, 0 };
	const long stack[] = { 0x20000000, PAGE, 3, 0x32, -1, 0 };
	long sp = 0x20000000 + PAGE;

	call(90, page);
	call(90, stack);
	asm volatile("xchg %0, %%esp\n\tcall *%1\n\txchg %0, %%esp"
		     : "+b" (sp) : "S" (outer) : "eax", "ecx", "edx", "memory", "cc");
	call(1, 0);
}
