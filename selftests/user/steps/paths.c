// SPDX-License-Identifier: GPL-2.0
/*
 * Paths that meet at different depths, after calls that do not return, with arguments on the stack.
 * main() alone has CFI: each stack could be complete.
 */
#include <stdlib.h>
#include <stdnoreturn.h>

#define NOIPA __attribute__((__noipa__))

int never, sink;

static void NOIPA work(void)
{
	for (int i = 0; i < 2; i++) {
		sink++;
		asm volatile("" : : : "memory");
	}
}

static noreturn void NOIPA fail(long a, long b, long c, long d, long e, long f, long g)
{
	work();
	exit(0);
}

/* Its frame is as large as what two calls that do not return have pushed. */
static long NOIPA recurse(long depth, long last)
{
	long sum = 0;

	if (never > sum)
		fail(sum, last, depth, depth, last, sum, depth);
	for (int i = 0; i < 2; i++) {
		sink += i;
		work();
	}
	if (never > last)
		fail(depth, last, last, never, never, depth, never);
	if (depth > 1)
		sum += recurse(depth - 2, sum);
	if (depth > 0)
		sum += recurse(depth - 1, depth);
	if (never > 4)
		fail(depth, last, last, sum, depth, 6, 7);
	return sum;
}

/* What the last call in recurse() seems to go on with returns at another depth. */
static int NOIPA returns(int number)
{
	work();
	return number + sink;
}

void program(void)
{
	for (int i = 0; i < 3; i++)
		sink += recurse(3, 1);
	sink += returns(never);
}

asm(".text; .globl main; .type main, @function\n"
	"main: .cfi_startproc\n"
	"sub $8, %rsp; .cfi_adjust_cfa_offset 8\n"
	"call program; xor %eax, %eax\n"
	"add $8, %rsp; .cfi_adjust_cfa_offset -8; ret\n"
	".cfi_endproc");
