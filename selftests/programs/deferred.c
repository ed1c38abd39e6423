// SPDX-License-Identifier: GPL-2.0
/*
 * A tracer of its own, beside the module: deferred EVENT CALLS [PROGRAM ARGUMENT...].
 *
 * perf has its own stacks of this process recorded at the tracepoint with the number EVENT, its
 * user stacks deferred, while the process calls close() so often. Prints a line for each record:
 * "asked COOKIE" for an event, "stack COOKIE IP" for a user stack, with the innermost return
 * address. A cookie is written as ftrace:user_stack_id has it. With a program, the process calls
 * exec instead, and perf goes on with nobody reading.
 */
#include <linux/perf_event.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From Linux 6.19 on; headers may be older. */
#define DEFER_CALLCHAIN		0x4000000000ULL
#define DEFER_OUTPUT		0x8000000000ULL
#define CONTEXT_USER_DEFERRED	((__u64)-640)
#define RECORD_CALLCHAIN_DEFERRED	22

#define PAGES	64
#define PAGE	4096

struct record {
	struct perf_event_header header;
	__u64 words[];
};

static void print(const char *what, __u64 cookie)
{
	printf("%s %u:%u", what, (unsigned int)cookie, (unsigned int)(cookie >> 32));
}

/* Words: of a sample the number of entries and these; of a stack the cookie before both. */
static void show(const struct record *record)
{
	const __u64 *words = record->words;
	__u64 i;

	if (record->header.type == PERF_RECORD_SAMPLE) {
		for (i = 0; i + 1 < words[0]; i++) {
			if (words[1 + i] == CONTEXT_USER_DEFERRED) {
				print("asked", words[2 + i]);
				putchar('\n');
			}
		}
	} else if (record->header.type == RECORD_CALLCHAIN_DEFERRED) {
		/* The first word may say that addresses of user space follow. */
		i = words[1] && words[2] >= (__u64)PERF_CONTEXT_MAX;
		print("stack", words[0]);
		printf(" %llx\n", words[1] > i ? (unsigned long long)words[2 + i] : 0);
	}
}

int main(int argc, char **argv)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN,
	};
	/* All flags are one word. */
	__u64 *flags = (__u64 *)&attr + offsetof(struct perf_event_attr, read_format) / 8 + 1;
	struct perf_event_mmap_page *page;
	__u64 at, head;
	char *data;
	int fd, i;

	if (argc < 3)
		return 2;
	attr.config = strtoul(argv[1], NULL, 10);
	*flags |= DEFER_CALLCHAIN | DEFER_OUTPUT;
	fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (fd < 0) {
		perror("perf_event_open");
		return 1;
	}
	page = mmap(NULL, (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	if (argc > 3) {
		execv(argv[3], argv + 3);
		return 1;
	}
	for (i = 0; i < atoi(argv[2]); i++)
		close(1000000 + i);
	ioctl(fd, PERF_EVENT_IOC_DISABLE, 0);
	data = (char *)page + PAGE;
	head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
	for (at = 0; at < head; ) {
		const struct record *record = (void *)(data + at % (PAGES * PAGE));

		show(record);
		at += record->header.size;
	}
	return 0;
}
