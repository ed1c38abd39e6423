// SPDX-License-Identifier: GPL-2.0
/*
 * Calls the kernel from stacks that it knows: callers LOG SEED CALLS [HOW [PROGRAM]].
 *
 * Each call is a close() of a file descriptor that is not open: 1,000,000 and the number of the
 * call, which the event of the system call shows. LOG gets a line for each: that number, the
 * address after the instruction of the call, and the return addresses up to that of main(), the
 * innermost first. The compiler's own word for them is taken, neither frame pointers nor call frame
 * information. The lines before are the thread, "thread TID", the mappings of the file, "map START
 * END OFFSET", and the entries of two functions and a nop in the first, "functions LEAF DOWN NOP".
 *
 * HOW: sleep, the call is a futex() that waits 20 ms, and its value is the number; brief, second
 * and long, it waits 1 ms, 1 s and 100 s; thread, all is done in a second thread; absent, the
 * pages of the program are unmapped before each call; absent-long, both. PROGRAM: after the last
 * call the program is replaced from the same stack.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include "callers.h"

#ifdef WITHOUT_FRAME_POINTERS
#pragma GCC optimize("omit-frame-pointer", "no-optimize-sibling-calls")
#else
#pragma GCC optimize("no-omit-frame-pointer", "no-optimize-sibling-calls")
#endif

#define NOINLINE __attribute__((__noipa__))

static const char *how = "", *program;

/* A nop of 10 bytes, of which an optimised uprobe of x86 makes a call. */
#ifdef __x86_64__
#define TEN_BYTES ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0"
#else
#define TEN_BYTES "nop"
#endif
extern char nop[];

static NOINLINE void leaf(void)
{
	extern char __executable_start[], etext[];
	const int sleeps = strcmp(how, "brief") ? strcmp(how, "sleep") ? 0 : 20000000 : 1000000;
	const int seconds = strstr(how, "long") ? 100 : !strcmp(how, "second");
	const struct timespec time = { .tv_sec = seconds, .tv_nsec = sleeps };
	const unsigned int value = FIRST_FD + number;
	unsigned long ip;

	callers[depth++] = (unsigned long)__builtin_return_address(0);
	asm volatile("nop: " TEN_BYTES);
	if (strstr(how, "absent") &&
	    madvise(__executable_start, etext - __executable_start, MADV_DONTNEED))
		exit(1);
	if (seconds || sleeps)
		ip = CALL(SYS_futex, &value, (long)FUTEX_WAIT, (long)value, &time);
	else
		ip = CALL(SYS_close, (long)value, 0L, 0L, NULL);
	tell(ip);
	number++;
	depth--;
}

static NOINLINE void replace(void)
{
	const char *const args[] = { program, NULL }, *const none[] = { NULL };

	fclose(file);
	CALL(SYS_execve, program, args, none, NULL);
	exit(1);
}

static void down(void);

/* As many functions, so that stacks differ by more than their length. */
#define FUNCTION(name, bytes)						\
static NOINLINE void name(void)						\
{									\
	char buffer[bytes];						\
									\
	asm volatile("" : : "r" (buffer) : "memory");			\
	callers[depth++] = (unsigned long)__builtin_return_address(0);	\
	down();								\
	depth--;							\
}

FUNCTION(one, 8)
FUNCTION(two, 40)
FUNCTION(three, 200)
FUNCTION(four, 1000)
FUNCTION(five, 4096)

static NOINLINE void down(void)
{
	static void (*const functions[])(void) = { one, two, three, four, five };

	callers[depth++] = (unsigned long)__builtin_return_address(0);
	if (depth < DEPTH_MAX && next_random(8))
		functions[next_random(5)]();
	else
		leaf();
	depth--;
}

static NOINLINE void work(void)
{
	callers[depth++] = (unsigned long)__builtin_return_address(0);
	while (number < calls)
		down();
	if (program)
		replace();
	depth--;
}

static void *thread(void *unused)
{
	tell_maps();
	work();
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t other;

	if (argc < 4)
		return 2;
	file = fopen(argv[1], "w");
	state = strtoul(argv[2], NULL, 10);
	calls = strtoul(argv[3], NULL, 10);
	if (argc > 4)
		how = argv[4];
	if (argc > 5)
		program = argv[5];
	if (!file)
		return 1;
	fprintf(file, "functions %lx %lx %lx\n", (unsigned long)leaf, (unsigned long)down,
		(unsigned long)nop);
	if (!strcmp(how, "thread")) {
		if (pthread_create(&other, NULL, thread, NULL) || pthread_join(other, NULL))
			return 1;
	} else {
		tell_maps();
		work();
	}
	return fclose(file) ? 1 : 0;
}
