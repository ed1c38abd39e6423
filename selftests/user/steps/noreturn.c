// SPDX-License-Identifier: GPL-2.0
/*
 * Calls that do not return, with arguments on the stack: what follows them in the text has another
 * depth.
 */
#include <stdlib.h>
#include <stdnoreturn.h>

#define NOIPA __attribute__((__noipa__))

int never, sink;

static void NOIPA work(void)
{
	for (int i = 0; i < 3; i++) {
		sink++;
		asm volatile("" : : : "memory");
	}
}

static noreturn void NOIPA fail(long a, long b, long c, long d, long e, long f, long g, long h)
{
	work();
	exit(0);
}

static int NOIPA recurse(int depth)
{
	if (never > depth)
		fail(1, 2, 3, 4, 5, 6, depth, never);
	return depth ? recurse(depth - 1) + 1 : never;
}

/* Its local variables have the return address of the indirect call in inner(). */
static int NOIPA end(void *is_last)
{
	long unused[4];

	if (is_last)
		fail(1, 2, 3, 4, 5, 6, never, never);
	unused[0] = never;
	asm volatile("" : : "r" (unused) : "memory");
	return unused[0];
}

static int NOIPA leaf(void *unused)
{
	sink++;
	return 1;
}

static int NOIPA inner(void *callee)
{
	int (*function)(void *argument) = callee;

	return function(NULL) + 1;
}

static int NOIPA outer(int (*function)(void *argument), void *argument)
{
	return function(argument) + 1;
}

int main(void)
{
	for (int i = 0; i < 10; i++)
		sink += recurse(10);
	sink += outer(inner, leaf);
	sink += outer(end, main);
	return 0;
}
