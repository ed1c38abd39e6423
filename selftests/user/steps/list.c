// SPDX-License-Identifier: GPL-2.0
/*
 * A list of which each element is in a frame of a recursive function, which does not return: the
 * compiler keeps its address in the frame pointer. main() alone has CFI.
 */
#include <stdlib.h>
#include <stdnoreturn.h>

#define NOIPA __attribute__((__noipa__))

struct list {
	struct list *outer;
	long number;
};

int sink;

static void NOIPA work(struct list *element, long number)
{
	for (int i = 0; i < 2; i++) {
		sink += element->number + number;
		asm volatile("" : : : "memory");
	}
}

static noreturn void NOIPA run(struct list *outer, long depth, long number)
{
	struct list here = { outer, depth }, *element;

	asm volatile("" : : "r" (&here) : "memory");
	if (depth > 0)
		run(&here, depth - 1, number + 1);
	for (element = &here; element; element = element->outer) {
		for (long i = number; i > 0; i--)
			work(element, i);
	}
	exit(0);
}

void program(void)
{
	run(NULL, 4, 2);
}

asm(".text; .globl main; .type main, @function\n"
	"main: .cfi_startproc\n"
	"sub $8, %rsp; .cfi_adjust_cfa_offset 8\n"
	"call program; xor %eax, %eax\n"
	"add $8, %rsp; .cfi_adjust_cfa_offset -8; ret\n"
	".cfi_endproc");
