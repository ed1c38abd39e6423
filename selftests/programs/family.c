// SPDX-License-Identifier: GPL-2.0
/*
 * A process with threads and children, each of which calls getpriority() with a number that says
 * which: family BASE MILLISECONDS [THREADS]. To each number BASE is added.
 *
 *	1  its first thread, on CPU 0
 *	2  a second one, on CPU 1
 *	3  threads that are started all the time, and end
 *	4  children, which are started all the time, and end
 *	5  the children of these
 *	6  a child that is as old as the process
 *	7  THREADS threads, one more each ten milliseconds, which stay
 *
 * It ends when that time has passed, or at SIGTERM: first all THREADS threads are started, and
 * each of 1 to 5 and 7 calls once more. The second thread and the old child run when it prints
 * "ready".
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int base;
static atomic_llong end;

static long long now(void)
{
	struct timespec time;

	if (clock_gettime(CLOCK_MONOTONIC, &time))
		exit(1);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static void call(int who)
{
	getpriority(PRIO_PROCESS, base + who);
}

static void on_cpu(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		exit(1);
}

static void end_now(int signal)
{
	(void)signal;
	end = 0;
}

/* Calls with a number every PAUSE milliseconds, and once more at the end. */
static void keep_calling(int who, int pause)
{
	while (now() < end) {
		call(who);
		usleep(pause * 1000);
	}
	call(who);
}

static void *second(void *barrier)
{
	on_cpu(1);
	pthread_barrier_wait(barrier);
	keep_calling(2, 50);
	return NULL;
}

static void *short_thread(void *unused)
{
	call(3);
	return unused;
}

static void *staying_thread(void *unused)
{
	keep_calling(7, 1000);
	return unused;
}

static pthread_t start(void *(*function)(void *), void *argument)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, function, argument))
		exit(1);
	return thread;
}

static pid_t child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		exit(1);
	/* Nobody outlives the process. */
	if (!pid && prctl(PR_SET_PDEATHSIG, SIGKILL))
		exit(1);
	return pid;
}

/* Runs a thread that calls, and a child that does and has a child that does, too. */
static void generations(void)
{
	pid_t pid;

	pthread_join(start(short_thread, NULL), NULL);
	pid = child();
	if (!pid) {
		call(4);
		if (!child()) {
			call(5);
			_exit(0);
		}
		wait(NULL);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

int main(int argc, char **argv)
{
	int threads = argc > 3 ? atoi(argv[3]) : 0, started = 0;
	pthread_t staying[threads + 1];
	pthread_barrier_t ready;

	if (argc < 3)
		return 1;
	base = atoi(argv[1]);
	end = now() + atoi(argv[2]);
	if (!child()) {
		keep_calling(6, 50);
		_exit(0);
	}
	signal(SIGTERM, end_now);
	pthread_barrier_init(&ready, NULL, 2);
	staying[threads] = start(second, &ready);
	pthread_barrier_wait(&ready);
	on_cpu(0);
	puts("ready");
	fflush(stdout);
	while (now() < end || started < threads) {
		call(1);
		if (started < threads) {
			staying[started++] = start(staying_thread, NULL);
			usleep(10 * 1000);
		} else {
			generations();
			usleep(150 * 1000);
		}
	}
	call(1);
	generations();
	for (int i = 0; i <= threads; i++)
		pthread_join(staying[i], NULL);
	return 0;
}
