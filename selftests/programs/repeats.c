// SPDX-License-Identifier: GPL-2.0
/*
 * Calls getppid() from the same address with the same registers: repeats COUNT.
 */
#include <stdlib.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	unsigned long left = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;

	if (!left)
		return 1;
#ifdef __aarch64__
	register long nr asm("x8") = SYS_getppid;

	asm volatile("1: mov x1, #0\n\t"
		     "svc #0\n\t"
		     "ldr x1, %[left]\n\t"
		     "subs x1, x1, #1\n\t"
		     "str x1, %[left]\n\t"
		     "b.ne 1b"
		     : [left] "+m" (left)
		     : "r" (nr)
		     : "x0", "x1", "cc", "memory");
#else
	asm volatile("1: mov %[nr], %%eax\n\t"
		     "syscall\n\t"
		     "decq %[left]\n\t"
		     "jnz 1b"
		     : [left] "+m" (left)
		     : [nr] "i" (SYS_getppid)
		     : "rax", "rcx", "r11", "cc", "memory");
#endif
	return 0;
}
