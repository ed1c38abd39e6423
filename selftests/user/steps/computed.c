// SPDX-License-Identifier: GPL-2.0

/* Callers whose registers are computed from others, as in libcrypto, libgcrypt and libc. */

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

void indexed(void);
void displaced(void);
void stored(void);

/* Where the stack pointer was, and rbp of the caller, are kept on the aligned stack. */
asm(".text\n"
	"inner:\n"
	".cfi_startproc\n"
	"	ret\n"
	".cfi_endproc\n"

	/* At 8 + r9 * 8 bytes. */
	".globl indexed\n"
	"indexed:\n"
	".cfi_startproc\n"
	"	mov %rsp, %rax\n"
	".cfi_def_cfa_register %rax\n"
	"	mov $5, %r9d\n"
	"	sub $128, %rsp\n"
	"	and $-1024, %rsp\n"
	"	mov %rax, 8(%rsp, %r9, 8)\n"
	".cfi_escape 0x0f, 10, 0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22, 0x06, 0x23, 8\n"
	"	xor %eax, %eax\n"
	"	call inner\n"
	"	mov 8(%rsp, %r9, 8), %rsp\n"
	".cfi_def_cfa %rsp, 8\n"
	"	ret\n"
	".cfi_endproc\n"

	/* rbp is in r11. */
	".globl displaced\n"
	"displaced:\n"
	".cfi_startproc\n"
	"	mov %rbp, %r11\n"
	".cfi_register %rbp, %r11\n"
	"	xor %ebp, %ebp\n"
	"	call inner\n"
	"	mov %r11, %rbp\n"
	".cfi_restore %rbp\n"
	"	ret\n"
	".cfi_endproc\n"

	/* At 152 and 160 bytes; the offsets of the expressions have four bytes. */
	".globl stored\n"
	"stored:\n"
	".cfi_startproc\n"
	"	mov %rsp, %rax\n"
	".cfi_def_cfa_register %rax\n"
	"	sub $320, %rsp\n"
	"	and $-64, %rsp\n"
	"	mov %rax, 152(%rsp)\n"
	".cfi_escape 0x0f, 11, 0x77, 0x98, 0x81, 0x80, 0, 0x06, 0x23, 0x88, 0x80, 0x80, 0\n"
	"	mov %rbp, 160(%rsp)\n"
	".cfi_escape 0x10, 6, 5, 0x77, 0xa0, 0x81, 0x80, 0\n"
	"	xor %ebp, %ebp\n"
	"	call inner\n"
	"	mov 160(%rsp), %rbp\n"
	".cfi_restore %rbp\n"
	"	mov 152(%rsp), %rsp\n"
	".cfi_def_cfa %rsp, 8\n"
	"	ret\n"
	".cfi_endproc\n");

static jmp_buf before;

static void __attribute__((__noipa__, optimize("omit-frame-pointer"))) large(void)
{
	char bytes[3 << 20];

	asm volatile("" : : "r"(bytes) : "memory");
	stored();
	longjmp(before, 1);
}

int main(void)
{
	sigset_t signals;
	int child;

	/* The child's end interrupts nothing. */
	sigfillset(&signals);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	indexed();
	displaced();
	stored();
	if (!setjmp(before))
		large();
	child = vfork();
	if (!child)
		_exit(0);
	waitpid(child, &child, 0);
	return child;
}
