// SPDX-License-Identifier: GPL-2.0
/*
 * Calls the kernel through code in libraries that come and go:
 * libraries FILES LOGS SEED CALLS [thread].
 *
 * As callers, with a log for each thread, LOGS/TID.log, which also has the mapping of each library
 * that the thread opens: "map START END OFFSET NAME", where NAME is that of its content. FILES has
 * libraries; more are made in FILES/TID: one is replaced at its path before each time that it is
 * opened, another one is overwritten. Libraries are opened and closed at any depth of the stack,
 * but not while they are in it, and call the kernel also while they are loaded and unloaded.
 *
 * thread: a second thread does the same at the same time.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

/* A function for those who probe the instruction. */
#define CALL_LABEL ".type probed, @function; .size probed, 2\nprobed:"
#define PER_THREAD __thread
#include "callers.h"
#include "library.h"

#define NOINLINE __attribute__((__noipa__))
#define SLOTS 4
#define FILES_MAX 64
#define FILE_MAX 65536

/* How a library is opened: that of all, the thread's copy, or one that is made before. */
enum how { OF_ALL, OWN, REPLACED, OVERWRITTEN, HOWS };

struct slot {
	void *handle;
	const struct library *library;
	enum how how;
	/* How often it is in the stack. */
	unsigned int used;
};

static const char *files, *logs;
static char *names[FILES_MAX];
static unsigned int nr_names;
static unsigned long seed, calls_of_each;

static PER_THREAD struct slot slots[SLOTS];
static PER_THREAD char directory[128];

static void die(const char *what)
{
	fprintf(stderr, "libraries: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The mapping of an address, which is of a library of this name. */
static void tell_map(unsigned long address, const char *name)
{
	unsigned long start, end, offset;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	if (!maps)
		die("/proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 &&
		    start <= address && address < end)
			fprintf(file, "map %lx %lx %lx %s\n", start, end, offset, name);
	fclose(maps);
}

void enter(void *caller)
{
	callers[depth++] = (unsigned long)caller;
}

void leave(void)
{
	depth--;
}

long next_call(void)
{
	return FIRST_FD + number;
}

void called(unsigned long ip)
{
	tell(ip);
	number++;
}

static PER_THREAD unsigned int visible;

void hide(const struct library *library)
{
	visible = base;
	base = depth;
	tell_map((unsigned long)library->leaf, library->name);
}

void unhide(void)
{
	base = visible;
}

/* Copies a file to a path: into the file that is there, or into a new one. */
static void copy(const char *from, const char *to, int flags)
{
	static PER_THREAD char content[FILE_MAX];
	const int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | flags, 0755);
	const ssize_t size = in < 0 ? -1 : read(in, content, sizeof(content));

	if (size <= 0 || size == sizeof(content))
		die(from);
	if (out < 0 || write(out, content, size) != size || ftruncate(out, size))
		die(to);
	close(in);
	close(out);
}

static int is_open(enum how how)
{
	unsigned int i;

	for (i = 0; i < SLOTS; i++)
		if (slots[i].handle && slots[i].how == how)
			return 1;
	return 0;
}

static void close_library(struct slot *slot)
{
	if (slot->handle && dlclose(slot->handle))
		die(dlerror());
	slot->handle = NULL;
}

static void open_library(struct slot *slot)
{
	char from[256], to[256], new[256];

	slot->how = next_random(HOWS);
	/* What is open is not opened again by its path. */
	if (slot->how >= REPLACED && is_open(slot->how))
		slot->how = OWN;
	snprintf(from, sizeof(from), "%s/%s", slot->how == OF_ALL ? files : directory,
		 names[next_random(nr_names)]);
	snprintf(new, sizeof(new), "%s/new", directory);
	switch (slot->how) {
	case REPLACED:
		snprintf(to, sizeof(to), "%s/replaced", directory);
		copy(from, new, O_EXCL);
		if (rename(new, to))
			die(to);
		break;
	case OVERWRITTEN:
		snprintf(to, sizeof(to), "%s/overwritten", directory);
		copy(from, to, next_random(2) ? O_TRUNC : 0);
		break;
	default:
		snprintf(to, sizeof(to), "%s", from);
		break;
	}
	slot->handle = dlopen(to, next_random(2) ? RTLD_NOW : RTLD_LAZY);
	if (!slot->handle)
		die(dlerror());
	slot->library = dlsym(slot->handle, "library");
	if (!slot->library)
		die(dlerror());
	/* Another thread may have had it loaded. */
	tell_map((unsigned long)slot->library->leaf, slot->library->name);
}

static NOINLINE void in_library(void)
{
	struct slot *slot = &slots[next_random(SLOTS)];

	enter(__builtin_return_address(0));
	if (!slot->handle)
		open_library(slot);
	slot->used++;
	if (depth < DEPTH_MAX && next_random(6))
		slot->library->functions[next_random(FUNCTIONS)]();
	else
		slot->library->leaf();
	slot->used--;
	depth--;
}

static NOINLINE void in_another_one(void)
{
	struct slot *slot = &slots[next_random(SLOTS)];

	enter(__builtin_return_address(0));
	if (!slot->used) {
		close_library(slot);
		open_library(slot);
	}
	down();
	depth--;
}

/* Its argument is its return address, which a uretprobe replaces on the stack. */
static NOINLINE void leaf(void *caller)
{
	unsigned long ip;

	enter(caller);
	ip = CALL(SYS_close, next_call(), 0L, 0L, NULL);
	called(ip);
	depth--;
}

NOINLINE void down(void)
{
	static void (*const functions[])(void) = {
		in_library, in_library, in_library, in_another_one
	};

	enter(__builtin_return_address(0));
	if (depth < DEPTH_MAX && next_random(8))
		functions[next_random(sizeof(functions) / sizeof(*functions))]();
	else
		asm volatile("lea 1f(%%rip), %%rdi\n\t"
			     "call %P[leaf]\n"
			     "1:"
			     : : [leaf] "i" (leaf)
			     : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11",
			       "cc", "memory");
	depth--;
}

/* One after the other without a pause: for the file system, at the same time. */
static void copy_all(void)
{
	char from[256], to[256];
	unsigned int i;

	for (i = 0; i < nr_names; i++) {
		snprintf(from, sizeof(from), "%s/%s", files, names[i]);
		snprintf(to, sizeof(to), "%s/%s", directory, names[i]);
		copy(from, to, O_EXCL);
	}
}

static NOINLINE void work(void)
{
	const int id = syscall(SYS_gettid);
	char path[160];
	unsigned int i;

	enter(__builtin_return_address(0));
	snprintf(path, sizeof(path), "%s/%d.log", logs, id);
	file = fopen(path, "w");
	if (!file)
		die(path);
	snprintf(directory, sizeof(directory), "%s/%d", files, id);
	if (mkdir(directory, 0700))
		die(directory);
	copy_all();
	tell_maps();
	state = seed + id;
	calls = calls_of_each;
	while (number < calls)
		down();
	for (i = 0; i < SLOTS; i++)
		close_library(&slots[i]);
	if (fclose(file))
		die(path);
	depth--;
}

static void *thread(void *unused)
{
	work();
	return unused;
}

static void find_names(void)
{
	DIR *all = opendir(files);
	struct dirent *entry;

	while (all && nr_names < FILES_MAX) {
		entry = readdir(all);
		if (!entry)
			break;
		if (strstr(entry->d_name, ".so"))
			names[nr_names++] = strdup(entry->d_name);
	}
	if (!nr_names)
		die(files);
	closedir(all);
}

int main(int argc, char **argv)
{
	pthread_t other;

	if (argc < 5)
		return 2;
	files = argv[1];
	logs = argv[2];
	seed = strtoul(argv[3], NULL, 10);
	calls_of_each = strtoul(argv[4], NULL, 10);
	find_names();
	if (argc > 5 && pthread_create(&other, NULL, thread, NULL))
		die("pthread_create");
	work();
	return argc > 5 && pthread_join(other, NULL) ? 1 : 0;
}
