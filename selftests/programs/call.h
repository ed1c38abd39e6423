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
#ifdef __aarch64__
#define CALL(nr, a, b, c, d) ({						\
	register long number_ asm("x8") = (nr);				\
	register long first asm("x0") = (long)(a);			\
	register long second asm("x1") = (long)(b);			\
	register long third asm("x2") = (long)(c);			\
	register long fourth asm("x3") = (long)(d);			\
	unsigned long here;						\
									\
	asm volatile("adr %[here], 1f\n\t"				\
		     CALL_LABEL "svc #0\n"				\
		     "1:"						\
		     : [here] "=&r" (here), "+r" (first)		\
		     : "r" (number_), "r" (second), "r" (third),	\
		       "r" (fourth)					\
		     : "memory");					\
	here;								\
})
#else
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
#endif

#endif /* CALL_H */
