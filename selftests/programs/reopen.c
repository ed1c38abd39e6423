// SPDX-License-Identifier: GPL-2.0
/*
 * Opens files that may go: reopen hold UID FILE... | reopen loop UID FILE...
 *
 * hold: takes each FILE by its path alone (O_PATH), says "ready", waits for a line on its standard
 * input, then opens each by /proc/self/fd and says how that went: "FILE: ENXIO".
 * loop: opens all FILEs, in both ways, again and again until it reads a line, then says how often
 * that went well, and each error that there was: "opened 12", "ENXIO 3".
 *
 * UID 0 stays root; another one is taken as user and group.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES	16
#define ERRORS	256

static unsigned long errors[ERRORS];

/* 0, or the error of opening what FD names. */
static int open_again(int fd)
{
	char path[64], byte;
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDONLY);
	if (again < 0)
		return errno;
	if (read(again, &byte, 1) < 0)
		perror("read");
	close(again);
	return 0;
}

static int hold(char **files, int nr)
{
	int fds[FILES], i;

	for (i = 0; i < nr; i++) {
		fds[i] = open(files[i], O_PATH);
		if (fds[i] < 0) {
			perror(files[i]);
			return 1;
		}
	}
	puts("ready");
	fflush(stdout);
	getchar();
	for (i = 0; i < nr; i++)
		printf("%s: %s\n", strrchr(files[i], '/') + 1, strerrorname_np(open_again(fds[i])));
	return 0;
}

static int loop(char **files, int nr)
{
	sigset_t term, pending;
	int i, fd;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	while (!sigpending(&pending) && !sigismember(&pending, SIGTERM)) {
		for (i = 0; i < nr; i++) {
			fd = open(files[i], O_RDONLY);
			errors[fd < 0 ? errno : 0]++;
			if (fd >= 0)
				close(fd);
			fd = open(files[i], O_PATH);
			errors[fd < 0 ? errno : open_again(fd)]++;
			if (fd >= 0)
				close(fd);
		}
		/* What loads and unloads the module runs, too. */
		usleep(1000);
	}
	printf("opened %lu\n", errors[0]);
	for (i = 1; i < ERRORS; i++)
		if (errors[i])
			printf("%s %lu\n", strerrorname_np(i), errors[i]);
	return 0;
}

int main(int argc, char **argv)
{
	int uid = argc > 2 ? atoi(argv[2]) : 0;

	if (argc < 4 || argc > 3 + FILES) {
		fprintf(stderr, "usage: reopen hold|loop UID FILE...\n");
		return 2;
	}
	if (uid && (setgroups(0, NULL) || setgid(uid) || setuid(uid))) {
		perror("setuid");
		return 1;
	}
	return (strcmp(argv[1], "hold") ? loop : hold)(argv + 3, argc - 3);
}
