// SPDX-License-Identifier: GPL-2.0
/*
 * Calls exec with an argument that the kernel waits for: slow-exec GO [HOW]. Prints "waits" when
 * it does. When the file GO exists, the argument is there, and exec goes on. The argument is at
 * 0x20000000.
 *
 * compat: the call is that of 32-bit programs. signal: a signal comes meanwhile, which the new
 * program ignores.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE	4096

static int faults;
static pthread_t main_thread;
static const char *how = "";

static void ignore(int number)
{
	(void)number;
}

static void *give_page(void *go)
{
	struct uffd_msg fault;
	struct uffdio_zeropage zero = { .range.len = PAGE };

	if (read(faults, &fault, sizeof(fault)) != sizeof(fault))
		err(1, "userfaultfd");
	puts("waits");
	fflush(stdout);
	while (access(go, F_OK))
		usleep(10000);
	if (!strcmp(how, "signal") && pthread_kill(main_thread, SIGWINCH))
		errx(1, "pthread_kill");
	zero.range.start = fault.arg.pagefault.address & -PAGE;
	if (ioctl(faults, UFFDIO_ZEROPAGE, &zero))
		err(1, "UFFDIO_ZEROPAGE");
	return NULL;
}

int main(int argc, char **argv)
{
	void *page = mmap((void *)0x20000000, PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { .start = (unsigned long)page, .len = PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	char *const arguments[] = { "true", page, NULL };
	pthread_t thread;

	if (argc > 2)
		how = argv[2];
	main_thread = pthread_self();
	signal(SIGWINCH, ignore);
	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (argc < 2 || page == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &range) ||
	    pthread_create(&thread, NULL, give_page, argv[1]))
		err(1, "userfaultfd");
	if (!strcmp(how, "compat")) {
		/* The program is linked to low addresses. */
		static unsigned int low[] = { 0, 0, 0 };
		long nr = 11;

		low[0] = (long)arguments[0];
		low[1] = (long)page;
		asm volatile("int $0x80" : "+a" (nr) : "b" ("/bin/true"), "c" (low), "d" (0L)
			     : "memory");
		errx(1, "execve: %ld", nr);
	}
	execve("/bin/true", arguments, NULL);
	err(1, "execve");
}
