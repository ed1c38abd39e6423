// SPDX-License-Identifier: GPL-2.0
/*
 * Records from every context that ftrace knows: the event contexts:context_hit, or trace_printk().
 *
 * In debugfs, contexts/run: write "CONTEXT COUNT" to record COUNT events on the writer's CPU, or on
 * each CPU for nmi. The contexts are task, softirq, hardirq, nmi, kprobe, kretprobe, and fprobe,
 * which records when a function is entered and when it returns. The fprobe is registered only
 * during that time: beside the function graph tracer a fprobe makes Linux 7.2 and 7.3 warn.
 *
 * On arm64, Debian's kernels have no NMI. There, an interrupt stands for it that counts as an NMI:
 * so ftrace takes it for one, and only its stack is that of an interrupt.
 */
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/fprobe.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#ifdef CONFIG_X86
#include <asm/apic.h>
#include <asm/nmi.h>
#endif

#define CREATE_TRACE_POINTS
#include "contexts_trace.h"

static struct dentry *dir;
static atomic_t nmis_wanted;
static bool printk_instead;

/* Of each CPU's own, as CPUs take turns differently each time. */
static DEFINE_PER_CPU(unsigned int, number);

/* A few further frames, as many as the number says: stacks of one context differ. */
static noinline void record(const char *context, unsigned int depth)
{
	if (depth)
		record(context, depth - 1);
	else if (printk_instead)
		trace_printk("printk context=%s\n", context);
	else
		trace_context_hit(context, this_cpu_read(number));
	/* No tail call, here and below: the function stays in the stack. */
	barrier();
}

static noinline void hit(const char *context)
{
	record(context, this_cpu_inc_return(number) % 8);
	barrier();
}

static void in_softirq_context(struct tasklet_struct *unused);
static DECLARE_TASKLET(softirq_hit, in_softirq_context);
static DECLARE_COMPLETION(softirq_done);

static void in_softirq_context(struct tasklet_struct *unused)
{
	hit("softirq");
	complete(&softirq_done);
}

static void in_hardirq_context(struct irq_work *work)
{
	hit("hardirq");
	barrier();
}

static struct irq_work hardirq_hit = IRQ_WORK_INIT_HARD(in_hardirq_context);

#ifdef CONFIG_X86
static int in_nmi_context(unsigned int type, struct pt_regs *regs)
{
	if (atomic_dec_if_positive(&nmis_wanted) < 0)
		return NMI_DONE;
	hit("nmi");
	return NMI_HANDLED;
}

static int nmi_begin(void)
{
	return register_nmi_handler(NMI_LOCAL, in_nmi_context, 0, "contexts");
}

static void nmi_end(void)
{
	unregister_nmi_handler(NMI_LOCAL, "contexts");
}

static void nmi_send(void)
{
	__apic_send_IPI_mask(cpu_online_mask, NMI_VECTOR);
}
#else
static void in_nmi_context(void *unused)
{
	preempt_count_add(NMI_OFFSET);
	hit("nmi");
	preempt_count_sub(NMI_OFFSET);
	atomic_dec(&nmis_wanted);
}

static void in_nmi_here(struct irq_work *work)
{
	in_nmi_context(NULL);
}

static struct irq_work nmi_here = IRQ_WORK_INIT_HARD(in_nmi_here);

static int nmi_begin(void)
{
	return 0;
}

static void nmi_end(void)
{
}

static void nmi_send(void)
{
	preempt_disable();
	smp_call_function(in_nmi_context, NULL, false);
	irq_work_queue(&nmi_here);
	preempt_enable();
}
#endif

/* What is probed, each by one kind of probe. */
#define PROBED(name)			\
static noinline void name(void)		\
{					\
	barrier();			\
}

PROBED(contexts_kprobed)
PROBED(contexts_kretprobed)
PROBED(contexts_fprobed)

static int in_kprobe(struct kprobe *kp, struct pt_regs *regs)
{
	hit("kprobe");
	return 0;
}

static struct kprobe kprobe = {
	.symbol_name = "contexts_kprobed",
	.pre_handler = in_kprobe,
};

static int in_kretprobe(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	hit("kretprobe");
	return 0;
}

static struct kretprobe kretprobe = {
	.kp.symbol_name = "contexts_kretprobed",
	.handler = in_kretprobe,
};

static int in_fprobe_entry(struct fprobe *fp, unsigned long entry_ip, unsigned long ret_ip,
			   struct ftrace_regs *regs, void *data)
{
	hit("fprobe_entry");
	return 0;
}

static void in_fprobe_exit(struct fprobe *fp, unsigned long entry_ip, unsigned long ret_ip,
			   struct ftrace_regs *regs, void *data)
{
	hit("fprobe_exit");
	barrier();
}

static struct fprobe fprobe;

/* A fresh structure each time: Linux 6.12 frees the filter of one that is registered again. */
static int start_fprobe(void)
{
	/* The handlers get struct pt_regs before Linux 6.14. */
	fprobe = (struct fprobe){
		.entry_handler = (typeof(fprobe.entry_handler))in_fprobe_entry,
		.exit_handler = (typeof(fprobe.exit_handler))in_fprobe_exit,
	};
	return register_fprobe(&fprobe, "contexts_fprobed", NULL);
}

static void run_task(void)
{
	hit("task");
	barrier();
}

static void run_softirq(void)
{
	reinit_completion(&softirq_done);
	tasklet_schedule(&softirq_hit);
	wait_for_completion(&softirq_done);
}

static void run_hardirq(void)
{
	irq_work_queue(&hardirq_hit);
	irq_work_sync(&hardirq_hit);
}

static void run_nmi(void)
{
	int tries;

	atomic_set(&nmis_wanted, num_online_cpus());
	nmi_send();
	for (tries = 0; atomic_read(&nmis_wanted) && tries < 1000; tries++)
		usleep_range(100, 200);
}

static const struct {
	const char *name;
	void (*run)(void);
} contexts[] = {
	{ "task", run_task },
	{ "softirq", run_softirq },
	{ "hardirq", run_hardirq },
	{ "nmi", run_nmi },
	{ "kprobe", contexts_kprobed },
	{ "kretprobe", contexts_kretprobed },
	{ "fprobe", contexts_fprobed },
};

static ssize_t run_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char text[64], name[32];
	unsigned int count, i;

	if (len >= sizeof(text) || copy_from_user(text, from, len))
		return -EINVAL;
	text[len] = 0;
	if (sscanf(text, "%31s %u", name, &count) != 2)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(contexts); i++) {
		bool with_fprobe = contexts[i].run == contexts_fprobed;
		int ret;

		if (strcmp(name, contexts[i].name))
			continue;
		if (with_fprobe) {
			ret = start_fprobe();
			if (ret)
				return ret;
		}
		while (count--)
			contexts[i].run();
		if (with_fprobe)
			unregister_fprobe(&fprobe);
		return len;
	}
	return -EINVAL;
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = run_write,
};

static int restart_set(void *data, u64 first)
{
	int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(number, cpu) = first;
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(restart_fops, NULL, restart_set, "%llu\n");

static int __init contexts_init(void)
{
	int ret;

	ret = nmi_begin();
	if (ret)
		return ret;
	ret = register_kprobe(&kprobe);
	if (ret)
		goto nmi;
	ret = register_kretprobe(&kretprobe);
	if (ret)
		goto kprobe;
	dir = debugfs_create_dir("contexts", NULL);
	debugfs_create_file("run", 0200, dir, NULL, &run_fops);
	debugfs_create_bool("printk", 0600, dir, &printk_instead);
	debugfs_create_file_unsafe("restart", 0200, dir, NULL, &restart_fops);
	return 0;

kprobe:
	unregister_kprobe(&kprobe);
nmi:
	nmi_end();
	return ret;
}
module_init(contexts_init);

static void __exit contexts_exit(void)
{
	debugfs_remove(dir);
	unregister_kretprobe(&kretprobe);
	unregister_kprobe(&kprobe);
	nmi_end();
}
module_exit(contexts_exit);

MODULE_DESCRIPTION("stackmap selftests: events in every context");
MODULE_LICENSE("GPL");
