// SPDX-License-Identifier: GPL-2.0
/*
 * Waits for known times and for known tasks: waits ROUNDS MILLISECONDS.
 *
 * The task "sleeper" reads a pipe so often; each time the task "writer" sleeps for so long before
 * it writes. Then "busy-one" and "busy-two" compute on one CPU for as long as the sleeper has
 * slept, so each is preempted by the other one. Prints for each the name, its id, for how many
 * microseconds it did not run, by its own clocks, and how often it has slept, by the kernel. After
 * that each waits once more, in poll().
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int rounds, milliseconds;
static int ends[2];
static pthread_barrier_t begin;

static long long now(clockid_t clock)
{
	struct timespec time;

	if (clock_gettime(clock, &time))
		exit(1);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* How often the caller has slept. */
static long sleeps(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage))
		exit(1);
	return usage.ru_nvcsw;
}

/* How long the caller did not run until now, since it did not for so long. */
static long long idle(long long since)
{
	return now(CLOCK_MONOTONIC) - now(CLOCK_THREAD_CPUTIME_ID) - since;
}

static void on_cpu(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		exit(1);
}

static __attribute_noinline__ void wait_for_the_writer(void)
{
	char byte;

	if (read(ends[0], &byte, 1) != 1)
		exit(1);
}

static __attribute_noinline__ void wake_the_sleeper(void)
{
	if (write(ends[1], "", 1) != 1)
		exit(1);
}

/*
 * Returns for how many nanoseconds the caller did not run in here. CLOCK_MONOTONIC is read first
 * and last, so a preemption between two readings counts, too.
 */
static __attribute_noinline__ long long compute(void)
{
	long long since = now(CLOCK_MONOTONIC);
	long long began = now(CLOCK_THREAD_CPUTIME_ID), ran;

	do
		ran = now(CLOCK_THREAD_CPUTIME_ID) - began;
	while (ran < rounds * milliseconds * 500000LL);
	return now(CLOCK_MONOTONIC) - since - ran;
}

static void *task(void *name)
{
	char what = *(char *)name;
	long long since;
	long slept;
	int i;

	on_cpu(what != 's');
	pthread_setname_np(pthread_self(), name);
	pthread_barrier_wait(&begin);
	since = idle(0);
	slept = sleeps();
	for (i = 0; i < rounds && what != 'b'; i++) {
		if (what == 's') {
			wait_for_the_writer();
		} else {
			usleep(milliseconds * 1000);
			wake_the_sleeper();
		}
	}
	since = what == 'b' ? compute() : idle(since);
	slept = sleeps() - slept;
	printf("%s %d %lld %ld\n", (char *)name, gettid(), since / 1000, slept);
	poll(NULL, 0, 1);
	return NULL;
}

static void both(char *one, char *other)
{
	pthread_t threads[2];

	if (pthread_barrier_init(&begin, NULL, 2) ||
	    pthread_create(&threads[0], NULL, task, one) ||
	    pthread_create(&threads[1], NULL, task, other) ||
	    pthread_join(threads[0], NULL) || pthread_join(threads[1], NULL))
		exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 3 || pipe(ends))
		return 1;
	rounds = atoi(argv[1]);
	milliseconds = atoi(argv[2]);
	both("sleeper", "writer");
	both("busy-one", "busy-two");
	return 0;
}
