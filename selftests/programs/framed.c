// SPDX-License-Identifier: GPL-2.0
/*
 * Calls getpriority() from functions whose frames have BUFFER bytes, below 96: such programs are
 * the same byte for byte, but for sizes of frames. They are built with one build-id.
 */
#define _GNU_SOURCE
#include <sys/resource.h>

static __attribute_noinline__ int inner(void)
{
	char buffer[BUFFER];

	asm volatile("" : : "r"(buffer) : "memory");
	return getpriority(PRIO_PROCESS, 0) + buffer[0];
}

static __attribute_noinline__ int outer(void)
{
	char buffer[BUFFER];

	asm volatile("" : : "r"(buffer) : "memory");
	return inner() + buffer[0];
}

int main(void)
{
	return outer() + 1 == 0;
}
