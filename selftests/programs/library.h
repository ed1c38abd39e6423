/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What libraries.c and the libraries that it opens know of each other.
 */
#ifndef LIBRARY_H
#define LIBRARY_H

#define FUNCTIONS 4

/* What a library is, as "library" in it. */
struct library {
	/* Another one for each content. */
	const char *name;
	/* They go down, and come back. */
	void (*functions[FUNCTIONS])(void);
	/* It calls the kernel. */
	void (*leaf)(void);
};

/* Of the program. A function of a library goes in, with its return address, and out again. */
void enter(void *caller);
void leave(void);
/* Goes on, in a library or in the program. */
void down(void);
/* The number of the next call, and the address after its instruction. */
long next_call(void);
void called(unsigned long ip);
/* A library that is just being loaded or unloaded calls the kernel: what called it is not seen. */
void hide(const struct library *library);
void unhide(void);

#endif /* LIBRARY_H */
