// SPDX-License-Identifier: GPL-2.0
/*
 * Opens files and keeps some of them: keeps CLOSED KEPT SLEEPS MILLISECONDS.
 *
 * Opens and closes a number of files, opens more that stay open, and sleeps a number of times.
 * Prints for how many microseconds it slept, by its own clock, in all and in the middle one of its
 * sleeps, and waits for the end of its standard input.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
	struct timespec time;

	if (clock_gettime(CLOCK_MONOTONIC, &time))
		exit(1);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
	long long a = *(const long long *)one, b = *(const long long *)other;

	return (a > b) - (a < b);
}

static __attribute_noinline__ int open_one(void)
{
	int file = open("/dev/null", O_RDONLY);

	if (file < 0)
		exit(1);
	return file;
}

static __attribute_noinline__ void open_and_close(void)
{
	int file = open_one();

	/* One that is not there has no file. */
	if (close(file) || open("/nowhere", O_RDONLY) >= 0)
		exit(1);
}

static __attribute_noinline__ void open_and_keep(void)
{
	int file = open_one();

	/* It is kept: nobody closes it. */
	__asm__ volatile("" : : "r"(file));
}

int main(int argc, char **argv)
{
	struct timespec time = {0};
	long long slept = 0, each[100];
	int i, nr;
	char byte;

	if (argc < 5)
		return 1;
	nr = atoi(argv[3]);
	if (nr < 1 || nr > 100)
		return 1;
	for (i = atoi(argv[1]); i > 0; i--)
		open_and_close();
	for (i = atoi(argv[2]); i > 0; i--)
		open_and_keep();
	time.tv_nsec = atoi(argv[4]) * 1000000L;
	for (i = 0; i < nr; i++) {
		long long since = now();

		if (nanosleep(&time, NULL))
			return 1;
		each[i] = now() - since;
		slept += each[i];
	}
	qsort(each, nr, sizeof(*each), compare);
	printf("%lld %lld\n", slept / 1000, each[(nr - 1) / 2] / 1000);
	fflush(stdout);
	return read(0, &byte, 1) < 0;
}
