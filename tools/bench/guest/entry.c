// SPDX-License-Identifier: GPL-2.0
/*
 * What an entry into the kernel takes: entry FRAMES COUNT [HOW].
 *
 * Calls close() of the file descriptor 1,000,000 COUNT times, below FRAMES further frames without
 * frame pointers: one function that calls itself, or with "calls" up to 16 others. The outermost of
 * them is called by a function of assembly: with "decoded", without call frame information; with
 * "undecodable", also with a stack pointer that its instructions do not say; with "tracked", whose
 * frame ends at an offset from %rbx. Prints the
 * median of the CPU's time stamp counter from before a call to after it: in a guest whose time
 * counts instructions, their number. Interrupts fall into few calls. Its addresses are always the
 * same, as the number of instructions depends on where mappings lie.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

NOINLINE unsigned long long down(int frames);
unsigned long long down(int frames)
{
	return frames ? down(frames - 1) : leaf();
}

/* The same, each frame by a call of its own, for which there is a rule of its own. */
#define DOWN(nr, next)							\
static NOINLINE unsigned long long down_##nr(int frames)		\
{									\
	return frames ? next(frames - 1) : leaf();			\
}

DOWN(16, down)
DOWN(15, down_16)
DOWN(14, down_15)
DOWN(13, down_14)
DOWN(12, down_13)
DOWN(11, down_12)
DOWN(10, down_11)
DOWN(9, down_10)
DOWN(8, down_9)
DOWN(7, down_8)
DOWN(6, down_7)
DOWN(5, down_6)
DOWN(4, down_5)
DOWN(3, down_4)
DOWN(2, down_3)
DOWN(1, down_2)

unsigned long long decoded(int frames), undecodable(int frames), tracked(int frames);
asm(".pushsection .text\n"
	"decoded: sub $24, %rsp\n"
	"call down\n"
	"add $24, %rsp\n"
	"ret\n"
	"undecodable: push %rbx\n"
	"mov %rsp, %rbx\n"
	"mov $8192, %eax\n"
	"sub %rax, %rsp\n"
	"call down\n"
	"mov %rbx, %rsp\n"
	"pop %rbx\n"
	"ret\n"
	"tracked: .cfi_startproc\n"
	"push %rbx\n"
	".cfi_def_cfa_offset 16\n"
	".cfi_offset %rbx, -16\n"
	"mov %rsp, %rbx\n"
	".cfi_def_cfa_register %rbx\n"
	"and $-64, %rsp\n"
	"call down\n"
	"mov %rbx, %rsp\n"
	".cfi_def_cfa_register %rsp\n"
	"pop %rbx\n"
	".cfi_def_cfa_offset 8\n"
	"ret\n"
	".cfi_endproc\n"
	".popsection");

int main(int argc, char **argv)
{
	const char *const how = argc > 3 ? argv[3] : "";
	const int frames = argc > 2 ? atoi(argv[1]) : 0;

	if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) {
		if (personality(ADDR_NO_RANDOMIZE) != -1)
			execv("/proc/self/exe", argv);
		return 1;
	}
	count = argc > 2 ? atoi(argv[2]) : 0;
	if (frames < 0 || count < 1 || count > COUNT_MAX)
		return 2;
	printf("%llu\n", !strcmp(how, "calls") ? down_1(frames) :
			!strcmp(how, "decoded") ? decoded(frames) :
			!strcmp(how, "undecodable") ? undecodable(frames) :
			!strcmp(how, "tracked") ? tracked(frames) : down(frames));
	return 0;
}
