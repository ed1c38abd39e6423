// SPDX-License-Identifier: GPL-2.0
/*
 * What an entry into the kernel takes: entry FRAMES COUNT.
 *
 * Calls close() of the file descriptor 1,000,000 COUNT times, below so many further frames without
 * frame pointers. Prints the mean of the CPU's time stamp counter from before a call to behind it:
 * in a guest whose time counts instructions, their number.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <x86intrin.h>

#pragma GCC optimize("no-optimize-sibling-calls")

#define NOINLINE __attribute__((__noipa__))

static int count;

static NOINLINE unsigned long long leaf(void)
{
	unsigned long long sum = 0, start;
	int i;

	for (i = 0; i < count; i++) {
		long nr = SYS_close;

		start = __rdtsc();
		asm volatile("syscall" : "+a" (nr) : "D" (1000000L) : "rcx", "r11", "memory");
		sum += __rdtsc() - start;
	}
	return sum / count;
}

static NOINLINE unsigned long long down(int frames)
{
	return frames ? down(frames - 1) : leaf();
}

int main(int argc, char **argv)
{
	const int frames = argc > 2 ? atoi(argv[1]) : 0;

	count = argc > 2 ? atoi(argv[2]) : 0;
	if (frames < 0 || count < 1)
		return 2;
	printf("%llu\n", down(frames));
	return 0;
}
