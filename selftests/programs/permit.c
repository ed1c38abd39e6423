// SPDX-License-Identifier: GPL-2.0
/*
 * Is asked for permission when a file is opened, and takes its time: permit FILE.
 *
 * Prints "ready", then "asked" when a process opens FILE. No process gets an answer; a process that
 * waits goes on when this program ends, at the end of its standard input.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct pollfd polled[] = { { .fd = -1, .events = POLLIN }, { .fd = 0, .events = POLLIN } };

	polled[0].fd = fanotify_init(FAN_CLASS_CONTENT, O_RDONLY);
	if (argc != 2 || polled[0].fd < 0 ||
	    fanotify_mark(polled[0].fd, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, argv[1])) {
		perror("fanotify");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	/* To read the event would open the file. */
	while (!polled[1].revents) {
		if (poll(polled, 2, -1) < 0)
			return 1;
		if (polled[0].revents) {
			puts("asked");
			fflush(stdout);
			polled[0].fd = -1;
		}
	}
	return 0;
}
