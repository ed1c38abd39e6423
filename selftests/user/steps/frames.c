// SPDX-License-Identifier: GPL-2.0
/*
 * Frames whose ends are not at a fixed offset from the stack pointer: aligned ones, with and
 * without a buffer that grows, and large ones, which may be probed page by page; the stacks of
 * contexts and of nested signals; a library that is loaded and left again. It is built without
 * inlined functions.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

static ucontext_t here, there;
/* Nothing is known of it, as it is no static variable. */
long sum;

static long leaf(const char *bytes)
{
	return sum += bytes[0];
}

/* Space that grows: where gcc aligns the stack too, the frame's end is in a register of its own. */
static long grow(int nr)
{
	alignas(64) char array[64] = { 1 };
	char *buffer = alloca(nr);

	memset(buffer, 1, nr);
	return leaf(array) + leaf(buffer);
}

static long align(int nr, long b, long c, long d, long e, long f, long on_stack)
{
	alignas(64) char array[128] = { on_stack };

	if (nr == 1)
		return on_stack;
	return grow(nr) + leaf(array) + 1;
}

static long page(int nr)
{
	char buffer[9000];

	buffer[nr] = 1;
	return align(nr, 0, 0, 0, 0, 0, nr) + leaf(buffer + nr);
}

static long large(int nr)
{
	char buffer[700 << 10];

	buffer[nr] = 1;
	return page(nr) + leaf(buffer + nr);
}

static long recurse(int depth)
{
	return depth ? recurse(depth - 1) + grow(depth) : large(100);
}

static void handle_inner(int number)
{
	recurse(1);
}

static void handle_outer(int number)
{
	raise(SIGUSR2);
	grow(number);
}

/* In a context of its own. */
static void run(void)
{
	for (;;) {
		recurse(2);
		swapcontext(&there, &here);
	}
}

int main(void)
{
	const size_t size = 4 << 20;
	/* Pages between the stacks, which nothing may touch, keep their mappings apart. */
	char *stacks = mmap(NULL, 3 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const stack_t signals = { .ss_sp = stacks + size / 2, .ss_size = size };
	struct sigaction action = { .sa_flags = SA_ONSTACK };

	mprotect(signals.ss_sp, size, PROT_READ | PROT_WRITE);
	mprotect(stacks + 2 * size, size / 2, PROT_READ | PROT_WRITE);
	sigaltstack(&signals, NULL);
	action.sa_handler = handle_outer;
	sigaction(SIGUSR1, &action, NULL);
	action.sa_handler = handle_inner;
	sigaction(SIGUSR2, &action, NULL);
	recurse(3);
	align(1, 0, 0, 0, 0, 0, 0);
	raise(SIGUSR1);
	getcontext(&there);
	there.uc_stack.ss_sp = stacks + 2 * size;
	there.uc_stack.ss_size = size / 2;
	makecontext(&there, run, 0);
	swapcontext(&here, &there);
	swapcontext(&here, &there);
	/* Calls gcc's __do_global_dtors_aux. */
	dlclose(dlopen("libgcc_s.so.1", RTLD_NOW));
	return 0;
}
