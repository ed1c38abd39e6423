// SPDX-License-Identifier: GPL-2.0
/*
 * Calls the kernel from frames that are seldom: frames LOG SEED CALLS [thread].
 *
 * As callers, but in C++: large frames and such of a size that is not known before, calls of what
 * does not return at the end of a function, tail calls, handlers of exceptions, destructors while an
 * exception goes up, other stacks (ucontext), handlers of signals on a stack of their own.
 */
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "callers.h"

#define NOINLINE __attribute__((noinline))
#define STACK_SIZE (4UL << 20)

static std::jmp_buf *back;
static ucontext_t main_context;
static bool in_context;
static void *context_stack;

static void down();

/* The return address of the function that this is inlined into. */
static inline __attribute__((always_inline)) void enter()
{
	callers[depth++] = reinterpret_cast<unsigned long>(__builtin_return_address(0));
}

static NOINLINE void leaf()
{
	const long value = FIRST_FD + number;
	unsigned long ip;

	enter();
	ip = CALL(SYS_close, value, 0L, 0L, nullptr);
	tell(ip);
	number++;
	depth--;
}

static NOINLINE void of_any_size()
{
	const size_t size = 1 + next_random(5000);
	char *buffer = static_cast<char *>(alloca(size));

	asm volatile("" : : "r" (buffer) : "memory");
	enter();
	down();
	depth--;
}

static NOINLINE void large()
{
	char buffer[70000];

	asm volatile("" : : "r" (buffer) : "memory");
	enter();
	down();
	depth--;
}

[[noreturn]] static NOINLINE void never_returns()
{
	enter();
	down();
	std::longjmp(*back, 1);
}

/* The return address of the call is past the end of this function. */
[[noreturn]] static NOINLINE void ends_with_a_call()
{
	enter();
	never_returns();
}

static NOINLINE void jumps_back()
{
	std::jmp_buf here, *const outer = back;
	const unsigned int now = depth;

	enter();
	back = &here;
	if (!setjmp(here))
		ends_with_a_call();
	back = outer;
	depth = now;
}

/* Not on the stack: the one that it jumps to returns to its caller. */
static NOINLINE void jumps_on()
{
	[[clang::musttail]] return down();
}

struct Guard {
	const unsigned int at = depth;

	NOINLINE ~Guard()
	{
		depth = at;
		enter();
		leaf();
		depth--;
	}
};

static NOINLINE void throws()
{
	enter();
	Guard guard;
	down();
	throw 1;
}

static NOINLINE void catches()
{
	const unsigned int now = depth;

	enter();
	try {
		throws();
	} catch (int) {
		depth = now + 1;
		down();
	}
	depth = now;
}

static void begins_a_context()
{
	down();
}

/* What called this cannot be seen from the other stack. */
static NOINLINE void on_another_stack()
{
	const unsigned int now = depth, visible = base;
	ucontext_t context;

	enter();
	if (in_context) {
		down();
	} else {
		getcontext(&context);
		context.uc_stack.ss_sp = context_stack;
		context.uc_stack.ss_size = STACK_SIZE;
		context.uc_link = &main_context;
		makecontext(&context, begins_a_context, 0);
		in_context = true;
		base = depth;
		swapcontext(&main_context, &context);
		in_context = false;
	}
	base = visible;
	depth = now;
}

/* A context in it could be interrupted, too, and the kernel would use the same stack again. */
static void on_signal(int)
{
	const bool before = in_context;

	enter();
	in_context = true;
	down();
	in_context = before;
	depth--;
}

static NOINLINE void is_interrupted()
{
	long nr = SYS_tgkill;
	unsigned long here;

	enter();
	depth++;
	asm volatile("lea 1f(%%rip), %[here]\n\t"
		     "mov %[here], %[slot]\n\t"
		     "syscall\n"
		     "1:"
		     : [here] "=&r" (here), [slot] "=m" (callers[depth - 1]), "+a" (nr)
		     : "D" (static_cast<long>(getpid())), "S" (syscall(SYS_gettid)),
		       "d" (static_cast<long>(SIGUSR1))
		     : "rcx", "r11", "memory");
	depth -= 2;
}

static NOINLINE void down()
{
	static void (*const functions[])() = {
		of_any_size, large, jumps_back, jumps_on, catches, on_another_stack, is_interrupted,
	};

	enter();
	if (depth < DEPTH_MAX && next_random(8))
		functions[next_random(sizeof(functions) / sizeof(*functions))]();
	else
		leaf();
	depth--;
}

static NOINLINE void work()
{
	enter();
	while (number < calls)
		down();
	depth--;
}

static void *new_stack()
{
	void *stack = mmap(nullptr, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (stack == MAP_FAILED)
		exit(1);
	return stack;
}

static void *thread(void *unused)
{
	stack_t stack = {};

	tell_maps();
	stack.ss_sp = new_stack();
	stack.ss_size = STACK_SIZE;
	if (sigaltstack(&stack, nullptr))
		exit(1);
	work();
	return unused;
}

int main(int argc, char **argv)
{
	struct sigaction action = {};
	pthread_t other;

	if (argc < 4)
		return 2;
	file = fopen(argv[1], "w");
	state = strtoul(argv[2], nullptr, 10);
	calls = strtoul(argv[3], nullptr, 10);
	if (!file)
		return 1;
	context_stack = new_stack();
	action.sa_handler = on_signal;
	action.sa_flags = SA_ONSTACK | SA_NODEFER;
	if (sigaction(SIGUSR1, &action, nullptr))
		return 1;
	if (argc > 4) {
		if (pthread_create(&other, nullptr, thread, nullptr) || pthread_join(other, nullptr))
			return 1;
	} else {
		thread(nullptr);
	}
	return fclose(file) ? 1 : 0;
}
