// SPDX-License-Identifier: GPL-2.0
/*
 * A library that libraries.c opens, with NAME, and with frames of other sizes for each ROTATION:
 * the code of all has the same addresses, and other rules.
 */
#include <sys/syscall.h>

#include "call.h"
#include "library.h"

#define NOINLINE __attribute__((__noipa__))
/* The constants of all of these sizes take one byte in an instruction. */
#define BUFFER(nr) (8 + ((nr) + ROTATION) % 7 * 16)

extern const struct library library;

#define FUNCTION(name, nr)						\
static NOINLINE void name(void)						\
{									\
	char buffer[BUFFER(nr)];						\
									\
	asm volatile("" : : "r" (buffer) : "memory");			\
	enter(__builtin_return_address(0));				\
	down();								\
	leave();							\
}

FUNCTION(one, 0)
FUNCTION(two, 1)
FUNCTION(three, 2)
FUNCTION(four, 3)

static NOINLINE void leaf(void)
{
	char buffer[BUFFER(4)];
	unsigned long ip;

	asm volatile("" : : "r" (buffer) : "memory");
	enter(__builtin_return_address(0));
	ip = CALL(SYS_close, next_call(), 0L, 0L, (void *)0);
	called(ip);
	leave();
}

static NOINLINE void from_outside(void)
{
	char buffer[BUFFER(5)];

	asm volatile("" : : "r" (buffer) : "memory");
	hide(&library);
	enter(__builtin_return_address(0));
	leaf();
	leave();
	unhide();
}

static __attribute__((constructor)) void begin(void)
{
	from_outside();
}

static __attribute__((destructor)) void end(void)
{
	from_outside();
}

const struct library library = {
	.name		= NAME,
	.functions	= { one, two, three, four },
	.leaf		= leaf,
};
