// SPDX-License-Identifier: GPL-2.0
/*
 * A part of a function that is seldom run, after a call that does not return: it ends with the
 * instructions with which gcc's __do_global_dtors_aux does. __cold is the attribute.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <stdnoreturn.h>

#define NOIPA __attribute__((__noipa__))

int never, sink;
bool flag;

static void NOIPA work(void)
{
	for (int i = 0; i < 3; i++) {
		sink++;
		asm volatile("" : : : "memory");
	}
}

static noreturn void NOIPA __cold fail(void)
{
	work();
	exit(0);
}

static void NOIPA __cold slow(void)
{
	sink++;
}

/* Its local variables have the return address of the indirect call in innermost(). */
static int NOIPA end(void *is_last)
{
	long unused[4];

	if (is_last)
		fail();
	unused[0] = never;
	asm volatile("" : : "r" (unused) : "memory");
	return unused[0];
}

static void NOIPA last(int number)
{
	if (__builtin_expect(number == 5, 0)) {
		slow();
		flag = 1;
		return;
	}
	for (;;) {
		work();
		if (sink > 10000)
			exit(1);
	}
}

static int NOIPA leaf(void *unused)
{
	sink++;
	return 1;
}

static int NOIPA innermost(void *callee)
{
	int (*function)(void *argument) = callee;

	return function(NULL) + 1;
}

static int NOIPA inner(void *callee)
{
	int (*function)(void *argument) = callee;

	return function(leaf) + 1;
}

static int NOIPA outer(int (*function)(void *argument), void *argument)
{
	return function(argument) + 1;
}

int main(void)
{
	sink += outer(inner, innermost);
	last(5);
	sink += outer(end, main);
	return 0;
}
