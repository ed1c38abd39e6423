/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A system call whose return address is known.
 */
#ifndef CALL_H
#define CALL_H

/* What is before the instruction. */
#ifndef CALL_LABEL
#define CALL_LABEL ""
#endif

/* System call nr with four arguments; the address after its instruction. */
#define CALL(nr, a, b, c, d) ({						\
	register const void *fourth asm("r10") = (d);			\
	long number_or_result = (nr);					\
	unsigned long here;						\
									\
	asm volatile("lea 1f(%%rip), %[here]\n\t"			\
		     CALL_LABEL "syscall\n"				\
		     "1:"						\
		     : [here] "=&r" (here), "+a" (number_or_result)	\
		     : "D" (a), "S" (b), "d" (c), "r" (fourth)		\
		     : "rcx", "r11", "memory");				\
	here;								\
})

#endif /* CALL_H */
