// SPDX-License-Identifier: GPL-2.0
/*
 * Makes a function of the kernel fail when stackmap calls it, directly or through others.
 *
 *	insmod override.ko func=NAME [value=N] [delay=N] [any=1] [skip=N] [count=N]
 *
 * lets the first "skip" such calls through, then has the next "count" calls (default: all) return
 * "value" (default 0: NULL) at once; with delay=N they are made, N milliseconds later. With any=1
 * calls that do not come from stackmap count as well. /sys/module/override/parameters/hits counts
 * the calls, so that a test can see whether the fault was reached.
 *
 *	insmod override.ko func=NAME untraced=1
 *
 * holds each call whose first argument is an address in the text that calls a function tracer,
 * from any caller, until no tracer has that text.
 *
 *	insmod override.ko func=stackmap_unwind_try rule_of=NAME
 *
 * has all of a function learnt as if it were its entry: rules that are wrong.
 *
 *	insmod override.ko hold=1
 *
 * holds the first event that stackmap reserves, without changing preemption and interrupts,
 * until 0 is written to /sys/module/override/parameters/hold. On a kernel with PREEMPT_RT, threads
 * of that CPU run no timers meanwhile: who is to write it must not sleep.
 */
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/ptrace.h>
#include <linux/stacktrace.h>
#include <linux/static_call.h>
#include <linux/string.h>
#include <linux/trace_events.h>

#ifndef CONFIG_ARM64
#include <asm/ibt.h>
#include <linux/pgtable.h>
#endif

#define FRAMES	24

static char *func;
module_param(func, charp, 0400);
static long value;
module_param(value, long, 0400);
static unsigned int delay;
module_param(delay, uint, 0400);
static bool any;
module_param(any, bool, 0400);
static unsigned int skip;
module_param(skip, uint, 0600);
static unsigned int count = UINT_MAX;
module_param(count, uint, 0600);
static bool hold;
module_param(hold, bool, 0600);
static bool untraced;
module_param(untraced, bool, 0400);
static char *rule_of;
module_param(rule_of, charp, 0400);
static unsigned int hits;
module_param(hits, uint, 0400);

/* Returns to the caller of the function that was probed; the return value is set. */
asmlinkage void override_return(void);
asm(".pushsection .text, \"ax\"\n"
	".type override_return, %function\n"
	"override_return:\n"
#ifdef CONFIG_ARM64
	"	hint #34\n"	/* bti c */
	"	ret\n"
#else
	ASM_ENDBR
	ASM_RET
#endif
	".size override_return, .-override_return\n"
	".popsection\n");

static struct ring_buffer_event *reserve_later(struct trace_buffer **buffer,
					       struct trace_event_file *file, int type,
					       unsigned long len, unsigned int trace_ctx)
{
	while (READ_ONCE(hold))
		cpu_relax();
	return trace_event_buffer_lock_reserve(buffer, file, type, len, trace_ctx);
}

static bool in_stackmap(unsigned long address)
{
	char symbol[KSYM_SYMBOL_LEN];

#ifdef CONFIG_X86
	/* Other modules come after the kernel. Looking up a symbol takes long. */
	if (address < MODULES_VADDR)
		return false;
#endif
	sprint_symbol(symbol, address);
	return strstr(symbol, "[stackmap]");
}

/* Where the function returns to at whose entry these registers are. */
static unsigned long caller_of(struct pt_regs *regs)
{
#ifdef CONFIG_ARM64
	return ptrauth_strip_kernel_insn_pac(regs->regs[30]);
#else
	return regs_get_kernel_stack_nth(regs, 0);
#endif
}

static bool from_stackmap(struct pt_regs *regs)
{
	unsigned long calls[FRAMES];
	unsigned int i, nr;

	/* The kernel's walk is wrong before a function has pushed anything. */
	if (in_stackmap(caller_of(regs)))
		return true;
	nr = stack_trace_save(calls, FRAMES, 0);
	for (i = 0; i < nr; i++)
		if (in_stackmap(calls[i]))
			return true;
	return false;
}

/* Not exported. Not called through a pointer: its entry may be sealed. */
DEFINE_STATIC_CALL_NULL(ops_trampoline, ftrace_ops_trampoline);

/* The entry of the function that an address is in, if it has that name, or 0. */
static unsigned long entry_of(unsigned long address, const char *name)
{
	const size_t len = strlen(name);
	char symbol[KSYM_SYMBOL_LEN];
	unsigned long offset;

	sprint_symbol(symbol, address);
	if (strncmp(symbol, name, len) || sscanf(symbol + len, "+%lx/", &offset) != 1)
		return 0;
	return address - offset;
}

static void set_first_argument(struct pt_regs *regs, unsigned long argument)
{
#ifdef CONFIG_ARM64
	regs->regs[0] = argument;
#else
	regs->di = argument;
#endif
}

static int pre_handler(struct kprobe *kp, struct pt_regs *regs)
{
	if (untraced) {
		const unsigned long text = regs_get_kernel_argument(regs, 0);

		if (!static_call(ops_trampoline)(text))
			return 0;
		WRITE_ONCE(hits, hits + 1);
		while (static_call(ops_trampoline)(text))
			cpu_relax();
		return 0;
	}
	if (rule_of) {
		const unsigned long call = regs_get_kernel_argument(regs, 0) - 1;
		const unsigned long entry = entry_of(call, rule_of);

		/* A return address is looked up by the byte before it. */
		if (entry) {
			WRITE_ONCE(hits, hits + 1);
			set_first_argument(regs, entry + 1);
		}
		return 0;
	}
	if (!any && !from_stackmap(regs))
		return 0;
	/* To size 0: it frees. */
	if (strstr(func, "realloc") && !regs_get_kernel_argument(regs, 1))
		return 0;
	hits++;
	if (skip) {
		skip--;
		return 0;
	}
	if (!count)
		return 0;
	count--;
	if (delay) {
		mdelay(delay);
		return 0;
	}
	if (hold) {
		instruction_pointer_set(regs, (unsigned long)reserve_later);
		return 1;
	}
	regs_set_return_value(regs, value);
	instruction_pointer_set(regs, (unsigned long)override_return);
	return 1;
}

NOKPROBE_SYMBOL(pre_handler);

/* Keeps the probe from being optimised into a jump, which would ignore the new ip. */
static void post_handler(struct kprobe *kp, struct pt_regs *regs, unsigned long flags)
{
}

NOKPROBE_SYMBOL(post_handler);

static struct kprobe probe = {
	.pre_handler = pre_handler,
	.post_handler = post_handler,
};

static int find_ops_trampoline(void)
{
	struct kprobe found = { .symbol_name = "ftrace_ops_trampoline" };
	int ret;

	/* Where it is, is known while a probe is there. */
	ret = register_kprobe(&found);
	if (ret)
		return ret;
	static_call_update(ops_trampoline, (void *)found.addr);
	unregister_kprobe(&found);
	return 0;
}

static int __init override_init(void)
{
	const int ret = untraced ? find_ops_trampoline() : 0;

	if (ret)
		return ret;
	if (hold) {
		func = "trace_event_buffer_lock_reserve";
		count = 1;
	}
	probe.symbol_name = func;
	return func ? register_kprobe(&probe) : -EINVAL;
}
module_init(override_init);

static void __exit override_exit(void)
{
	unregister_kprobe(&probe);
}
module_exit(override_exit);

MODULE_DESCRIPTION("stackmap selftests: faults to order");
MODULE_LICENSE("GPL");
