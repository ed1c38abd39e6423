// SPDX-License-Identifier: GPL-2.0
/*
 * Tasks that stay in the kernel: pending HOW [ARGUMENT...]. All of them end with the first process.
 *
 * sleep: waits for a signal. vfork: waits, uninterruptibly, for a child that waits for a signal.
 * traced: its child is stopped at a system call. exits: its child is stopped where it exits. crowd
 * COUNT: that number of threads waits. debugs: its child calls exec, is stopped there until 1 is
 * written to FILE, and goes on. execs: replaces itself from a second thread, repeatedly.
 * lingers: waits for half a minute on its way to user space, where a socket is closed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK	16384

static int vforks(void)
{
	if (!vfork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	return 0;
}

static int traces(long options, const char *program, const char *file)
{
	const pid_t child = fork();
	int status;

	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		if (program)
			execl(program, program, NULL);
		close(1000000);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0 ||
	    ptrace(PTRACE_SETOPTIONS, child, 0, options | PTRACE_O_EXITKILL) ||
	    ptrace(options ? PTRACE_CONT : PTRACE_SYSCALL, child, 0, 0) ||
	    waitpid(child, &status, 0) < 0)
		err(1, "ptrace");
	if (file && (!freopen(file, "w", stdout) || puts("1") < 0 || fflush(stdout)))
		err(1, "%s", file);
	if (program)
		return ptrace(PTRACE_CONT, child, 0, 0) || waitpid(child, &status, 0) < 0;
	return pause();
}

static void *wait_there(void *unused)
{
	(void)unused;
	pause();
	return NULL;
}

static int crowd(int threads)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK);
	while (threads--)
		if (pthread_create(&thread, &attributes, wait_there, NULL))
			errx(1, "%d threads are missing", threads + 1);
	return pause();
}

static char **arguments;

static void *exec_itself(void *unused)
{
	(void)unused;
	execv("/proc/self/exe", arguments);
	err(1, "exec");
}

static int execs(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, exec_itself, NULL))
		err(1, "a thread");
	return pause();
}

static int lingers(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	const struct linger linger = { 1, 30 };
	socklen_t size = sizeof(address);
	const int listens = socket(AF_INET, SOCK_STREAM, 0);
	const int sends = socket(AF_INET, SOCK_STREAM, 0);
	static char data[STACK];

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listens, (struct sockaddr *)&address, size) || listen(listens, 1) ||
	    getsockname(listens, (struct sockaddr *)&address, &size) ||
	    connect(sends, (struct sockaddr *)&address, size) ||
	    setsockopt(sends, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		err(1, "a socket");
	while (send(sends, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	/* close() would wait itself. */
	return dup2(0, sends) < 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	arguments = argv;
	if (!strcmp(how, "sleep"))
		return pause();
	if (!strcmp(how, "vfork"))
		return vforks();
	if (!strcmp(how, "traced"))
		return traces(0, NULL, NULL);
	if (!strcmp(how, "exits"))
		return traces(PTRACE_O_TRACEEXIT, NULL, NULL);
	if (!strcmp(how, "debugs") && argc > 2)
		return traces(PTRACE_O_TRACEEXEC, argv[2], argv[3]);
	if (!strcmp(how, "crowd") && argc > 2)
		return crowd(atoi(argv[2]));
	if (!strcmp(how, "execs"))
		return execs();
	if (!strcmp(how, "lingers"))
		return lingers();
	fputs("Usage: pending sleep|vfork|traced|exits|crowd COUNT|debugs PROGRAM|execs|lingers\n",
	      stderr);
	return 1;
}
