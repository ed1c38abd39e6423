// SPDX-License-Identifier: GPL-2.0
/*
 * Makes kernel stacks to order, and shows the text that a hook changes.
 *
 * In debugfs, under stackgen/:
 *
 *	record	write "DEPTH FIRST COUNT": records COUNT stacks of DEPTH further frames, numbered
 *		from FIRST; two numbers make two stacks that differ in their outermost frames
 *	race	write "DEPTH FIRST COUNT": the same, by a thread on each CPU at the same time
 *	cost	read: nanoseconds that the last write to "record" took
 *	probe	write 1 or 0: puts a kprobe on __ftrace_trace_stack(), or removes it
 *	probe_at	write N: puts a kprobe N bytes from its entry, and removes it
 *	keep_at	write N: puts a kprobe N bytes from its entry that may become a jump, and
 *		removes the last one; 99 puts none
 *	break_at	write ADDRESS: records a stack wherever that is about to be executed; 0
 *		ends it
 *	end_probe	write N: puts a kprobe N bytes before the end of the kernel's text, or
 *		removes it with 0 (arm64 only)
 *	astray	write N: records a stack with a frame pointer that leads astray, in one of
 *		NR_ASTRAY ways (arm64 only)
 *	text	read: the 32 bytes around the entry of __ftrace_trace_stack()
 *	leak	write 1: allocates memory and forgets it
 *	foreign	write 1: prints into the instance "foreign" from inside the kernel
 */
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/debugfs.h>
#include <linux/hw_breakpoint.h>
#include <linux/kernel.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/trace.h>
#include <linux/uaccess.h>
#ifdef CONFIG_ARM64
#include <linux/sched/task_stack.h>

#if __has_include("asm/stacktrace/frame.h")
#include <asm/stacktrace/frame.h>
#define HAS_FRAME_TYPES
#endif
#endif

#define DEPTH_MAX	250

struct order {
	unsigned int depth;
	unsigned int first;
	unsigned int count;
};

struct racer {
	struct task_struct *task;
	struct completion done;
	const struct order *order;
	atomic_t *arrived;
	unsigned int nr_racers;
};

static struct dentry *dir;
static u64 cost;

/* A deliberate data race, which KCSAN must report. */
static unsigned long raced_for;

/* Each frame returns to one of four addresses, by two bits of the number. */
static noinline void left(unsigned int number, unsigned int depth);
static noinline void right(unsigned int number, unsigned int depth);

static __always_inline void descend(unsigned int number, unsigned int depth)
{
	if (!depth)
		trace_dump_stack(0);
	else if (number & 1)
		left(number >> 1, depth - 1);
	else
		right(number >> 1, depth - 1);
	/* No tail call. */
	barrier();
}

static noinline void left(unsigned int number, unsigned int depth)
{
	descend(number, depth);
}

static noinline void right(unsigned int number, unsigned int depth)
{
	/* Not the same code as left(), or the compiler makes one function of both. */
	barrier();
	descend(number, depth);
}

static int parse(const char __user *buf, size_t len, struct order *order)
{
	char text[64];

	if (len >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, buf, len))
		return -EFAULT;
	text[len] = 0;
	if (sscanf(text, "%u %u %u", &order->depth, &order->first, &order->count) != 3)
		return -EINVAL;
	return order->depth > DEPTH_MAX ? -ERANGE : 0;
}

static ssize_t record_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	struct order order;
	unsigned int i;
	u64 start;
	int ret = parse(buf, len, &order);

	if (ret)
		return ret;
	start = ktime_get_ns();
	for (i = 0; i < order.count; i++) {
		left(order.first + i, order.depth);
		cond_resched();
	}
	cost = ktime_get_ns() - start;
	return len;
}

static const struct file_operations record_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = record_write,
};

/* All racers meet before each stack, then each records it at once. */
static int race(void *data)
{
	struct racer *me = data;
	unsigned int i, j;

	for (i = 0; i < me->order->count; i++) {
		for (j = 0; j < 64; j++) {
			raced_for++;
			barrier();
		}
		atomic_inc(me->arrived);
		while (atomic_read(me->arrived) < (i + 1) * me->nr_racers)
			cpu_relax();
		left(me->order->first + i, me->order->depth);
		cond_resched();
	}
	complete(&me->done);
	return 0;
}

static ssize_t race_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	atomic_t arrived = ATOMIC_INIT(0);
	struct racer *racers;
	struct order order;
	unsigned int cpu, nr = 0, i;
	int ret = parse(buf, len, &order);

	if (ret)
		return ret;
	racers = kcalloc(nr_cpu_ids, sizeof(*racers), GFP_KERNEL);
	if (!racers)
		return -ENOMEM;
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct racer *racer = &racers[nr];

		racer->order = &order;
		racer->arrived = &arrived;
		racer->nr_racers = num_online_cpus();
		init_completion(&racer->done);
		racer->task = kthread_create(race, racer, "stackgen/%u", cpu);
		if (IS_ERR(racer->task)) {
			ret = PTR_ERR(racer->task);
			break;
		}
		kthread_bind(racer->task, cpu);
		nr++;
	}
	for (i = 0; i < nr; i++) {
		if (ret)
			kthread_stop(racers[i].task);
		else
			wake_up_process(racers[i].task);
	}
	for (i = 0; !ret && i < nr; i++)
		wait_for_completion(&racers[i].done);
	cpus_read_unlock();
	kfree(racers);
	return ret ?: len;
}

static const struct file_operations race_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = race_write,
};

/* The hooked function. It is aligned to 16 bytes; a kprobe on it may be after an ENDBR. */
static int find_entry(unsigned long *entry)
{
	struct kprobe kp = {
		.symbol_name = "__ftrace_trace_stack",
		.flags = KPROBE_FLAG_DISABLED,
	};
	int ret = register_kprobe(&kp);

	if (ret)
		return ret;
	*entry = (unsigned long)kp.addr & ~15UL;
	unregister_kprobe(&kp);
	return 0;
}

#ifdef CONFIG_ARM64
/* The end of the kernel's text: there may be something of the hook before it. */
static int find_end(unsigned long *end)
{
	struct kprobe kp = {
		.symbol_name = "kallsyms_lookup_name",
		.flags = KPROBE_FLAG_DISABLED,
	};
	unsigned long (*lookup)(const char *name);
	int ret = register_kprobe(&kp);

	if (ret)
		return ret;
	lookup = (void *)kp.addr;
	*end = lookup("_etext");
	unregister_kprobe(&kp);
	return *end ? 0 : -ENOENT;
}
#endif

static int text_show(struct seq_file *m, void *data)
{
	unsigned long entry;
	u8 text[32];
	int ret = find_entry(&entry);

	if (ret)
		return ret;
	if (copy_from_kernel_nofault(text, (void *)entry - 16, sizeof(text)))
		return -EFAULT;
	seq_printf(m, "%*ph", (int)sizeof(text), text);
#ifdef CONFIG_ARM64
	ret = find_end(&entry);
	if (ret)
		return ret;
	if (copy_from_kernel_nofault(text, (void *)entry - sizeof(text), sizeof(text)))
		return -EFAULT;
	seq_printf(m, " %*ph", (int)sizeof(text), text);
#endif
	seq_putc(m, '\n');
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(text);

static int probe_hit(struct kprobe *kp, struct pt_regs *regs)
{
	return 0;
}

/* With a post-handler it stays a breakpoint; a jump would go away late, and the text with it. */
static void probe_done(struct kprobe *kp, struct pt_regs *regs, unsigned long flags)
{
}

static struct kprobe probe;

static int probe_set(void *data, u64 on)
{
	if (!on == !probe.addr)
		return -EINVAL;
	if (on) {
		probe = (struct kprobe) {
			.symbol_name = "__ftrace_trace_stack",
			.pre_handler = probe_hit,
			.post_handler = probe_done,
		};
		return register_kprobe(&probe);
	}
	unregister_kprobe(&probe);
	probe.addr = NULL;
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(probe_fops, NULL, probe_set, "%llu\n");

static int probe_at_set(void *data, u64 offset)
{
	struct kprobe kp = { .pre_handler = probe_hit };
	unsigned long entry;
	int ret = find_entry(&entry);

	if (ret)
		return ret;
	kp.addr = (void *)entry + (s64)offset;
	ret = register_kprobe(&kp);
	if (!ret)
		unregister_kprobe(&kp);
	return ret;
}
DEFINE_DEBUGFS_ATTRIBUTE_SIGNED(probe_at_fops, NULL, probe_at_set, "%lld\n");

static struct kprobe kept;

static int keep_at_set(void *data, u64 offset)
{
	unsigned long entry;
	int ret = find_entry(&entry);

	if (ret)
		return ret;
	if (kept.addr)
		unregister_kprobe(&kept);
	kept = (struct kprobe) { };
	if (offset == 99)
		return 0;
	kept = (struct kprobe) {
		.addr = (void *)entry + (s64)offset,
		.pre_handler = probe_hit,
	};
	ret = register_kprobe(&kept);
	if (ret)
		kept.addr = NULL;
	return ret;
}
DEFINE_DEBUGFS_ATTRIBUTE_SIGNED(keep_at_fops, NULL, keep_at_set, "%lld\n");

static struct perf_event * __percpu *breakpoint;

static void break_hit(struct perf_event *event, struct perf_sample_data *data, struct pt_regs *regs)
{
	trace_dump_stack(0);
}

static int break_at_set(void *data, u64 addr)
{
	struct perf_event_attr attr;
	int ret;

	if (breakpoint)
		unregister_wide_hw_breakpoint(breakpoint);
	breakpoint = NULL;
	if (!addr)
		return 0;
	hw_breakpoint_init(&attr);
	attr.bp_addr = addr;
	attr.bp_len = sizeof(long);
	attr.bp_type = HW_BREAKPOINT_X;
	breakpoint = register_wide_hw_breakpoint(&attr, break_hit, NULL);
	ret = PTR_ERR_OR_ZERO((void __force *)breakpoint);
	if (ret)
		breakpoint = NULL;
	return ret;
}
DEFINE_DEBUGFS_ATTRIBUTE(break_at_fops, NULL, break_at_set, "%llx\n");

#ifdef CONFIG_ARM64
static struct kprobe end_probe;

static int end_probe_set(void *data, u64 before)
{
	unsigned long end;
	int ret;

	if (!before == !end_probe.addr)
		return -EBUSY;
	if (!before) {
		unregister_kprobe(&end_probe);
		end_probe.addr = NULL;
		return 0;
	}
	ret = find_end(&end);
	if (ret)
		return ret;
	end_probe = (struct kprobe) {
		.addr = (void *)end - before,
		.pre_handler = probe_hit,
	};
	ret = register_kprobe(&end_probe);
	if (ret)
		end_probe.addr = NULL;
	return ret;
}
DEFINE_DEBUGFS_ATTRIBUTE(end_probe_fops, NULL, end_probe_set, "%llu\n");
#endif

#ifdef CONFIG_ARM64
/* Records a stack with another frame pointer than its own. */
static noinline void record_with(unsigned long fp)
{
	asm volatile("mov	x19, x29\n"
		     "mov	x29, %0\n"
		     "mov	w0, #0\n"
		     "bl	trace_dump_stack\n"
		     "mov	x29, x19\n"
		     : : "r" (fp)
		     : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11",
		       "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x30", "cc",
		       "memory");
}

#define NR_ASTRAY	12

/*
 * The kernel's unwinder ends with an error at these, or takes what it finds. Not those for which it
 * warns.
 */
static int astray_set(void *data, u64 how)
{
	const unsigned long task = (unsigned long)task_stack_page(current);
	const unsigned long own = (unsigned long)__builtin_frame_address(0);
	const unsigned long final = (unsigned long)&task_pt_regs(current)->stackframe;
	/* Space for registers, and a record after them. */
	unsigned long words[2 * sizeof(struct pt_regs) / 8] = { };
	struct pt_regs *regs = (struct pt_regs *)words;
	unsigned long *record = (unsigned long *)(regs + 1);
	const unsigned long ways[NR_ASTRAY] = {
		own,			/* this one is right */
		own + 4,		/* not aligned */
		task + 64,		/* below */
		(unsigned long)record,	/* to itself */
		(unsigned long)regs,	/* what is no return address */
		(unsigned long)&regs->stackframe,	/* registers, which lead on */
		(unsigned long)&regs->regs[2],	/* registers that begin below */
		task + THREAD_SIZE - 8,	/* half on the stack */
		final + 8,		/* after the last record */
		4096,
		(unsigned long)task_stack_page(&init_task) + THREAD_SIZE - 512,
		final,
	};

	if (how >= NR_ASTRAY)
		return -EINVAL;
	record[0] = (unsigned long)record;
	record[1] = _THIS_IP_;
	switch (how) {
	case 4:
		words[0] = own;
		words[1] = 4321;
		break;
	case 5:
	case 6:
		regs->regs[2] = (unsigned long)&regs->stackframe;
		regs->regs[3] = _THIS_IP_;
#ifdef HAS_FRAME_TYPES
		regs->stackframe.type = FRAME_META_TYPE_PT_REGS;
#else
		regs->stackframe[0] = own;
		regs->stackframe[1] = _THIS_IP_;
#endif
		regs->pc = _THIS_IP_;
		regs->regs[29] = own;
		break;
	}
	barrier_data(words);
	record_with(ways[how]);
	barrier_data(words);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(astray_fops, NULL, astray_set, "%llu\n");
#endif

static int leak_set(void *data, u64 on)
{
	void *lost = kmalloc(100, GFP_KERNEL);

	/* Not to be optimised away. */
	OPTIMIZER_HIDE_VAR(lost);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(leak_fops, NULL, leak_set, "%llu\n");

static int foreign_set(void *data, u64 on)
{
	struct trace_array *tr = trace_array_get_by_name("foreign", NULL);
	int ret;

	if (!tr)
		return -ENOMEM;
	ret = trace_array_init_printk(tr);
	if (!ret)
		trace_array_printk(tr, _THIS_IP_, "its stack is the top level's\n");
	trace_array_put(tr);
	return ret;
}
DEFINE_DEBUGFS_ATTRIBUTE(foreign_fops, NULL, foreign_set, "%llu\n");

static int __init stackgen_init(void)
{
	dir = debugfs_create_dir("stackgen", NULL);
	debugfs_create_file("record", 0200, dir, NULL, &record_fops);
	debugfs_create_file("race", 0200, dir, NULL, &race_fops);
	debugfs_create_u64("cost", 0400, dir, &cost);
	debugfs_create_file_unsafe("probe", 0200, dir, NULL, &probe_fops);
	debugfs_create_file_unsafe("probe_at", 0200, dir, NULL, &probe_at_fops);
	debugfs_create_file_unsafe("keep_at", 0200, dir, NULL, &keep_at_fops);
	debugfs_create_file_unsafe("break_at", 0200, dir, NULL, &break_at_fops);
#ifdef CONFIG_ARM64
	debugfs_create_file_unsafe("astray", 0200, dir, NULL, &astray_fops);
	debugfs_create_file_unsafe("end_probe", 0200, dir, NULL, &end_probe_fops);
#endif
	debugfs_create_file("text", 0400, dir, NULL, &text_fops);
	debugfs_create_file_unsafe("leak", 0200, dir, NULL, &leak_fops);
	debugfs_create_file_unsafe("foreign", 0200, dir, NULL, &foreign_fops);
	return 0;
}
module_init(stackgen_init);

static void __exit stackgen_exit(void)
{
	debugfs_remove(dir);
	if (probe.addr)
		unregister_kprobe(&probe);
	if (kept.addr)
		unregister_kprobe(&kept);
	if (breakpoint)
		unregister_wide_hw_breakpoint(breakpoint);
#ifdef CONFIG_ARM64
	if (end_probe.addr)
		unregister_kprobe(&end_probe);
#endif
}
module_exit(stackgen_exit);

MODULE_DESCRIPTION("stackmap selftests: kernel stacks to order");
MODULE_LICENSE("GPL");
