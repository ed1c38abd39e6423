/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A module that has a stack recorded by its init, and each time that something is written to its
 * parameter "record". Modules of this kind differ in the names of their functions only: when one
 * is unloaded, the next may be loaded at the same address.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/trace.h>
#include <linux/trace_events.h>

static noinline void inner(void)
{
	trace_dump_stack(0);
	barrier();
}

static noinline void outer(void)
{
	inner();
	barrier();
}

static int record_set(const char *val, const struct kernel_param *kp)
{
	outer();
	return 0;
}

static const struct kernel_param_ops record_ops = {
	.set = record_set,
};

module_param_cb(record, &record_ops, NULL, 0200);
MODULE_PARM_DESC(record, "Written to, has a stack recorded");

MODULE_DESCRIPTION("Has stacks recorded that end in a module which comes and goes");
MODULE_LICENSE("GPL");
