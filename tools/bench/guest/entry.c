// SPDX-License-Identifier: GPL-2.0
/*
 * What an entry into the kernel takes: entry FRAMES COUNT.
 *
 * Calls close() of the file descriptor 1,000,000 COUNT times, below so many further frames without
 * frame pointers. Prints the median of the CPU's time stamp counter from before a call to behind
 * it: in a guest whose time counts instructions, their number. Interrupts fall into few calls. Its
 * addresses are always the same, as the number of instructions depends on where mappings lie.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#pragma GCC optimize("no-optimize-sibling-calls")

#define NOINLINE __attribute__((__noipa__))

#define COUNT_MAX 10000

static int count;
static unsigned long long counts[COUNT_MAX];

static int ascending(const void *one, const void *other)
{
	const unsigned long long a = *(const unsigned long long *)one;
	const unsigned long long b = *(const unsigned long long *)other;

	return (a > b) - (a < b);
}

static NOINLINE unsigned long long leaf(void)
{
	unsigned long long start;
	int i;

	for (i = 0; i < count; i++) {
		long nr = SYS_close;

		start = __rdtsc();
		asm volatile("syscall" : "+a" (nr) : "D" (1000000L) : "rcx", "r11", "memory");
		counts[i] = __rdtsc() - start;
	}
	qsort(counts, count, sizeof(*counts), ascending);
	return counts[count / 2];
}

static NOINLINE unsigned long long down(int frames)
{
	return frames ? down(frames - 1) : leaf();
}

int main(int argc, char **argv)
{
	const int frames = argc > 2 ? atoi(argv[1]) : 0;

	if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) {
		if (personality(ADDR_NO_RANDOMIZE) != -1)
			execv("/proc/self/exe", argv);
		return 1;
	}
	count = argc > 2 ? atoi(argv[2]) : 0;
	if (frames < 0 || count < 1 || count > COUNT_MAX)
		return 2;
	printf("%llu\n", down(frames));
	return 0;
}
