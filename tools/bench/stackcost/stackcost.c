// SPDX-License-Identifier: GPL-2.0
/*
 * What a stack costs, and what each part of that costs, at a depth of one's choice.
 *
 * Time is that of the CPU's time stamp counter. In a guest whose time counts instructions it is
 * their number.
 *
 * In debugfs, under stackcost/:
 *
 *	measure	write "WHAT DEPTH FIRST COUNT [STEP]": does WHAT, COUNT times, below DEPTH
 *		further frames, on the stacks numbered FIRST, FIRST + STEP ...; STEP is 1 if it is
 *		not said, and 16^DEPTH stacks are distinct. WHAT is one of
 *		dump	records the stack
 *		event	records the event stackcost:stackcost_hit
 *		unwind	captures the stack and records nothing
 *		id	reserves and commits an event as large as an id, in a buffer of its own
 *		full	the same with the stack's frames
 *		nothing	the cost of measuring itself, which is subtracted from all others
 *	cost	read: "COUNT SUM MIN MAX" of the last write to "measure", without the way to the
 *		stack and back, and with interrupts off
 *	together write "DEPTH FIRST COUNT CPUS": the same as dump, by a thread on each of CPUS CPUs
 *		at once, each COUNT times
 *	took	read: nanoseconds that the last write to "together" took
 *	clock	read: the counter
 *	million	read: what a million instructions take
 */
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/irqflags.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/ring_buffer.h>
#include <linux/slab.h>
#include <linux/stacktrace.h>
#include <linux/string.h>
#include <linux/timex.h>
#include <linux/uaccess.h>

#define CREATE_TRACE_POINTS
#include "stackcost_trace.h"

#define DEPTH_MAX	250
#define FRAMES_MAX	(DEPTH_MAX + 64)

/* The event of an id, and that of a stack up to its frames: what all events have, and an int. */
#define ID_BYTES	(sizeof(struct trace_entry) + sizeof(int))
#define FULL_BYTES	ALIGN(ID_BYTES, sizeof(long))

enum what {
	DUMP,
	EVENT,
	UNWIND,
	ID,
	FULL,
	NOTHING,
};

static const char *const names[] = {
	[DUMP] = "dump",
	[EVENT] = "event",
	[UNWIND] = "unwind",
	[ID] = "id",
	[FULL] = "full",
	[NOTHING] = "nothing",
};

struct order {
	enum what what;
	unsigned int depth;
	unsigned int first;
	unsigned int count;
	unsigned int step;
};

struct cost {
	u64 count;
	u64 sum;
	u64 min;
	u64 max;
};

struct worker {
	struct task_struct *task;
	struct completion done;
	const struct order *order;
	atomic_t *waited_for;
};

static DEFINE_MUTEX(lock);
static struct dentry *dir;
static struct trace_buffer *buffer;
static unsigned long frames[FRAMES_MAX];
static struct cost cost;
static u64 nothing;
static u64 took;

static void write_event(const void *data, size_t size, size_t header)
{
	struct ring_buffer_event *event = ring_buffer_lock_reserve(buffer, header + size);

	if (!event)
		return;
	memcpy(ring_buffer_event_data(event) + header, data, size);
	ring_buffer_unlock_commit(buffer);
}

static __always_inline void act(enum what what, unsigned int number, unsigned int nr)
{
	switch (what) {
	case DUMP:
		trace_dump_stack(0);
		break;
	case EVENT:
		trace_stackcost_hit(number);
		break;
	case UNWIND:
		stack_trace_save(frames, FRAMES_MAX, 0);
		break;
	case ID:
		write_event(&number, sizeof(number), ID_BYTES - sizeof(number));
		break;
	case FULL:
		write_event(frames, nr * sizeof(*frames), FULL_BYTES);
		break;
	case NOTHING:
		break;
	}
}

/* Not inlined, so that nothing is between the counter's two readings but what is measured. */
static noinline u64 leaf(enum what what, unsigned int number)
{
	unsigned int nr = what == FULL ? stack_trace_save(frames, FRAMES_MAX, 0) : 0;
	unsigned long flags;
	u64 start, end;
	int i;

	/* As in the scheduler: a request with interrupts off alone raises one. */
	for (i = 0; i < 3; i++)
		preempt_disable();
	local_irq_save(flags);
	start = get_cycles();
	act(what, number, nr);
	end = get_cycles();
	local_irq_restore(flags);
	for (i = 0; i < 3; i++)
		preempt_enable();
	return end - start;
}

/* The assembly differs, before the call and after it, or the compiler would make one of all. */
#define CALL(n)								\
	do {								\
		enum { AT = (n) };					\
		asm volatile("# %0" : : "i" (AT));			\
		spent = branch(what, number, path >> 4, depth - 1);	\
		asm volatile("# %0" : : "i" (AT));			\
	} while (0)

/* A frame that returns to one of 16 addresses, by four bits of the number. */
static noinline u64 branch(enum what what, unsigned int number, unsigned int path,
			   unsigned int depth)
{
	u64 spent;

	if (!depth)
		return leaf(what, number);
	switch (path & 15) {
	case 0:
		CALL(0);
		break;
	case 1:
		CALL(1);
		break;
	case 2:
		CALL(2);
		break;
	case 3:
		CALL(3);
		break;
	case 4:
		CALL(4);
		break;
	case 5:
		CALL(5);
		break;
	case 6:
		CALL(6);
		break;
	case 7:
		CALL(7);
		break;
	case 8:
		CALL(8);
		break;
	case 9:
		CALL(9);
		break;
	case 10:
		CALL(10);
		break;
	case 11:
		CALL(11);
		break;
	case 12:
		CALL(12);
		break;
	case 13:
		CALL(13);
		break;
	case 14:
		CALL(14);
		break;
	default:
		CALL(15);
		break;
	}
	return spent;
}

static void add(u64 spent)
{
	cost.count++;
	cost.sum += spent;
	cost.min = min(cost.min, spent);
	cost.max = max(cost.max, spent);
}

static int copy_order(const char __user *buf, size_t len, char *text, size_t size)
{
	if (len >= size)
		return -EINVAL;
	if (copy_from_user(text, buf, len))
		return -EFAULT;
	text[len] = 0;
	return 0;
}

static ssize_t measure_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	struct order order = { .step = 1 };
	char text[64], name[8];
	unsigned int i;
	int what, ret = copy_order(buf, len, text, sizeof(text));

	if (ret)
		return ret;
	if (sscanf(text, "%7s %u %u %u %u", name, &order.depth, &order.first, &order.count,
		   &order.step) < 4)
		return -EINVAL;
	what = match_string(names, ARRAY_SIZE(names), name);
	if (what < 0)
		return what;
	order.what = what;
	if (order.depth > DEPTH_MAX)
		return -ERANGE;

	mutex_lock(&lock);
	cost = (struct cost) { .min = U64_MAX };
	for (i = 0; i < order.count; i++) {
		unsigned int number = order.first + i * order.step;
		u64 spent = branch(order.what, number, number, order.depth);

		add(what == NOTHING ? spent : spent - min(spent, nothing));
		cond_resched();
	}
	mutex_unlock(&lock);
	return len;
}

static const struct file_operations measure_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = measure_write,
};

static int cost_show(struct seq_file *m, void *unused)
{
	mutex_lock(&lock);
	seq_printf(m, "%llu %llu %llu %llu\n", cost.count, cost.sum, cost.min, cost.max);
	mutex_unlock(&lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(cost);

/* All begin at once. */
static int work(void *data)
{
	struct worker *me = data;
	unsigned int i;

	atomic_dec(me->waited_for);
	while (atomic_read(me->waited_for))
		cpu_relax();
	for (i = 0; i < me->order->count; i++) {
		unsigned int number = me->order->first + i;

		branch(DUMP, number, number, me->order->depth);
		cond_resched();
	}
	complete(&me->done);
	return 0;
}

static int work_together(const struct order *order, unsigned int nr_cpus)
{
	struct worker *workers = kcalloc(nr_cpus, sizeof(*workers), GFP_KERNEL);
	atomic_t waited_for = ATOMIC_INIT(nr_cpus);
	unsigned int nr = 0, cpu, i;
	int ret = 0;
	u64 start;

	if (!workers)
		return -ENOMEM;
	for_each_online_cpu(cpu) {
		struct worker *worker = &workers[nr];

		if (nr == nr_cpus)
			break;
		worker->order = order;
		worker->waited_for = &waited_for;
		init_completion(&worker->done);
		worker->task = kthread_create(work, worker, "stackcost/%u", cpu);
		if (IS_ERR(worker->task)) {
			ret = PTR_ERR(worker->task);
			break;
		}
		kthread_bind(worker->task, cpu);
		nr++;
	}
	if (!ret && nr < nr_cpus)
		ret = -ERANGE;
	start = ktime_get_ns();
	for (i = 0; i < nr; i++) {
		if (ret)
			kthread_stop(workers[i].task);
		else
			wake_up_process(workers[i].task);
	}
	for (i = 0; !ret && i < nr; i++)
		wait_for_completion(&workers[i].done);
	took = ktime_get_ns() - start;
	kfree(workers);
	return ret;
}

static ssize_t together_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	struct order order = { .what = DUMP };
	unsigned int nr_cpus;
	char text[64];
	int ret = copy_order(buf, len, text, sizeof(text));

	if (ret)
		return ret;
	if (sscanf(text, "%u %u %u %u", &order.depth, &order.first, &order.count, &nr_cpus) != 4)
		return -EINVAL;
	if (order.depth > DEPTH_MAX || !nr_cpus || nr_cpus > nr_cpu_ids)
		return -ERANGE;
	cpus_read_lock();
	mutex_lock(&lock);
	ret = work_together(&order, nr_cpus);
	mutex_unlock(&lock);
	cpus_read_unlock();
	return ret ?: len;
}

static const struct file_operations together_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = together_write,
};

static int clock_get(void *data, u64 *value)
{
	*value = get_cycles();
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(clock_fops, clock_get, NULL, "%llu\n");

static int million_get(void *data, u64 *value)
{
	unsigned long flags, n = 500000;
	u64 start;

	local_irq_save(flags);
	start = get_cycles();
#ifdef CONFIG_ARM64
	asm volatile("1: subs %0, %0, #1; b.ne 1b" : "+r" (n) : : "cc");
#else
	asm volatile("1: dec %0; jnz 1b" : "+r" (n));
#endif
	*value = get_cycles() - start;
	local_irq_restore(flags);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(million_fops, million_get, NULL, "%llu\n");

/* The fewest instructions that the frame around them takes. */
static u64 cost_of_nothing(void)
{
	u64 least = U64_MAX;
	int i;

	for (i = 0; i < 100; i++)
		least = min(least, leaf(NOTHING, 0));
	return least;
}

static int __init stackcost_init(void)
{
	buffer = ring_buffer_alloc(1 << 20, RB_FL_OVERWRITE);
	if (!buffer)
		return -ENOMEM;
	nothing = cost_of_nothing();
	dir = debugfs_create_dir("stackcost", NULL);
	debugfs_create_file("measure", 0200, dir, NULL, &measure_fops);
	debugfs_create_file("cost", 0400, dir, NULL, &cost_fops);
	debugfs_create_file("together", 0200, dir, NULL, &together_fops);
	debugfs_create_u64("took", 0400, dir, &took);
	debugfs_create_file_unsafe("clock", 0400, dir, NULL, &clock_fops);
	debugfs_create_file_unsafe("million", 0400, dir, NULL, &million_fops);
	return 0;
}
module_init(stackcost_init);

static void __exit stackcost_exit(void)
{
	debugfs_remove(dir);
	ring_buffer_free(buffer);
}
module_exit(stackcost_exit);

MODULE_DESCRIPTION("stackmap selftests: what a stack costs");
MODULE_LICENSE("GPL");
