// SPDX-License-Identifier: GPL-2.0
/*
 * Calls getpriority() from functions whose names are known: known COUNT HOW.
 *
 * plain: from inner(), which middle(), outer() and main() call; folded() is inlined into inner().
 * handler: from a signal handler that interrupts inner().
 * generated: from code in no file, which /tmp/perf-PID.map calls "generated code".
 * asleep: the call is followed by one of futex() that waits for 100 s.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *how;
static int sink;

static __always_inline int folded(void)
{
	return getpriority(PRIO_PROCESS, 0) + sink;
}

static void handler(int signal)
{
	(void)signal;
	sink = folded();
}

static __attribute_noinline__ int inner(void)
{
	struct timespec wait = { .tv_sec = 100 };
	int word = 0;

	if (!strcmp(how, "handler"))
		sink = raise(SIGUSR1);
	else
		sink = folded();
	if (!strcmp(how, "asleep"))
		sink = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &wait);
	return sink + 1;
}

static __attribute_noinline__ int middle(void)
{
	return inner() + 2;
}

static __attribute_noinline__ int outer(void)
{
	return middle() + 3;
}

/* push rbp; mov rbp, rsp; getpriority(0, 0); pop rbp; ret */
static const unsigned char code[] = {
	0x55, 0x48, 0x89, 0xe5, 0xb8, 140, 0, 0, 0, 0x31, 0xff, 0x31, 0xf6, 0x0f, 0x05, 0x5d, 0xc3,
};

static void (*generate(void))(void)
{
	char path[64];
	void *made;
	FILE *map;

	made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		exit(1);
	memcpy(made, code, sizeof(code));
	if (mprotect(made, 4096, PROT_READ | PROT_EXEC))
		exit(1);
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	map = fopen(path, "w");
	if (!map)
		exit(1);
	fprintf(map, "%lx %zx generated code\n", (unsigned long)made, sizeof(code));
	if (fclose(map))
		exit(1);
	return (void (*)(void))made;
}

int main(int argc, char **argv)
{
	void (*generated)(void) = NULL;
	int i;

	if (argc != 3)
		return 2;
	how = argv[2];
	signal(SIGUSR1, handler);
	if (!strcmp(how, "generated"))
		generated = generate();
	for (i = 0; i < atoi(argv[1]); i++) {
		if (generated)
			generated();
		else
			sink = outer();
	}
	return 0;
}
