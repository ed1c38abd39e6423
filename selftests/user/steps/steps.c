// SPDX-License-Identifier: GPL-2.0
/*
 * Stacks of several kinds: calls that leave their return addresses in a buffer of a later one,
 * whose address the compiler may keep in the frame pointer; code without call frame information;
 * signals on another stack, nested, and left by a jump; calls back; the dynamic linker.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef ASSEMBLY
long my_read(int fd, void *buffer, long size);
long framed(long (*callee)(long), long argument);
long padded(long (*callee)(long), long argument);
extern const char padded_end[];
/*
 * Without call frame information: a leaf, a function with a frame pointer, and one without, which
 * is padded like code that V8 has generated.
 */
asm(".text\n"
	"my_read: xor %eax, %eax\n"
	"	syscall\n"
	"	ret\n"
	"framed: push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	mov %rdi, %rax\n"
	"	mov %rsi, %rdi\n"
	"	call *%rax\n"
	"	pop %rbp\n"
	"	ret\n"
	"	.fill 8192, 1, 0xcc\n"
	"	.balign 64, 0xcc\n"
	"padded: sub $8, %rsp\n"
	"	mov %rdi, %rax\n"
	"	mov %rsi, %rdi\n"
	"	call *%rax\n"
	"	add $8, %rsp\n"
	"	ret\n"
	"padded_end:\n");

/* The same in memory of no file. */
static long in_memory(long (*callee)(long), long argument)
{
	const size_t size = padded_end - (const char *)padded;
	void *code = mmap(NULL, size, PROT_READ | PROT_WRITE | PROT_EXEC,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(code, padded, size);
	return ((long (*)(long (*)(long), long))code)(callee, argument) + 1;
}

#else
#define my_read read
static __attribute__((noipa)) long framed(long (*callee)(long), long argument)
{
	return callee(argument) + 1;
}

#define padded framed
#define in_memory framed
#endif

struct node {
	struct node *next;
	long value;
};

static sigjmp_buf before;
static long sum;

static __attribute__((noipa)) long eval(const struct node *node)
{
	return node ? eval(node->next) + node->value : 0;
}

static __attribute__((noipa)) long copy(long fd)
{
	char buffer[512];
	long total = 0, nr;

	while (total < 2048 && (nr = my_read(fd, buffer, sizeof(buffer))) > 0)
		total += buffer[0] + nr;
	return total;
}

static __attribute__((noipa)) void grow(int nr)
{
	char buffer[nr];

	memset(buffer, 1, nr);
	sum += buffer[nr - 1];
}

/* What looks like return addresses is in its frame. */
static __attribute__((noipa)) long misleading(long (*callee)(long), long argument)
{
	void *words[] = { grow, grow, grow, grow };

	asm volatile("" : : "r" (words) : "memory");
	return callee(argument) + (words[1] == words[2]);
}

static void handle_inner(int number)
{
	grow(number);
}

static void handle_outer(int number)
{
	raise(SIGUSR2);
	grow(number);
}

static void handle_jump(int number)
{
	grow(number);
	siglongjmp(before, 1);
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static void handle(int signal, void (*handler)(int), int flags)
{
	sigaction(signal, &(struct sigaction) { .sa_handler = handler, .sa_flags = flags }, NULL);
}

int main(void)
{
	struct node nodes[40];
	int numbers[20];
	char text[64];
	const stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
	FILE *zero = fopen("/dev/zero", "r");

	for (int i = 0; i < 40; i++)
		nodes[i] = (struct node) { i ? &nodes[i - 1] : NULL, i };
	sum = eval(&nodes[39]) + copy(fileno(zero)) + framed(copy, fileno(zero));
	sum += padded(copy, fileno(zero)) + in_memory(copy, fileno(zero));
	sum += misleading(copy, fileno(zero));
	sigaltstack(&stack, NULL);
	handle(SIGUSR1, handle_outer, SA_ONSTACK);
	handle(SIGUSR2, handle_inner, SA_ONSTACK);
	handle(SIGHUP, handle_jump, 0);
	raise(SIGUSR1);
	if (!sigsetjmp(before, 1))
		raise(SIGHUP);
	for (int i = 0; i < 20; i++)
		numbers[i] = 7 * i % 20;
	qsort(numbers, 20, sizeof(*numbers), compare);
	snprintf(text, sizeof(text), "%ld %s %f", sum, "text", 1.5);
	puts(text);
	return numbers[0];
}
