/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What programs that know their own stacks have in common: they keep the return addresses that they
 * are in, and leave them for selftests/user-oracle. See callers.c for the form.
 */
#ifndef CALLERS_H
#define CALLERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call.h"

/* Whose they are: the program's, or each thread's. */
#ifndef PER_THREAD
#define PER_THREAD
#endif

#define FIRST_FD 1000000
#define DEPTH_MAX 24

/* The return addresses, the outermost first; a function adds up to three, and then goes down. */
static PER_THREAD unsigned long callers[DEPTH_MAX + 8];
/* Where those begin that can be seen from here, and where they end. */
static PER_THREAD unsigned int base, depth;
static PER_THREAD unsigned long number, calls, state;
static PER_THREAD FILE *file;

static unsigned int next_random(unsigned int below)
{
	state = state * 6364136223846793005UL + 1442695040888963407UL;
	return (state >> 33) % below;
}

static void tell(unsigned long ip)
{
	unsigned int i;

	fprintf(file, "%lu %lx", number, ip);
	for (i = depth; i > base; i--)
		fprintf(file, " %lx", callers[i - 1]);
	fputc('\n', file);
}

/* The thread whose calls these are, and the lines of /proc/self/maps that are of this program. */
static void tell_maps(void)
{
	unsigned long start, end, offset;
	char line[512], self[256] = "";
	FILE *maps = fopen("/proc/self/maps", "r");

	if (!maps || readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		exit(1);
	fprintf(file, "thread %ld\n", syscall(SYS_gettid));
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, self) &&
		    sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3)
			fprintf(file, "map %lx %lx %lx\n", start, end, offset);
	fclose(maps);
}

#endif /* CALLERS_H */
