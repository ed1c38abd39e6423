// SPDX-License-Identifier: GPL-2.0
/*
 * What is counted of user stacks, by each CPU.
 */
#include <linux/percpu.h>

#include "../shim/shim.h"

struct user_counts {
	unsigned long nr[STACKMAP_USER_COUNTERS];
};

static DEFINE_PER_CPU(struct user_counts, user_counts);

void stackmap_user_count(enum stackmap_user_counter counter)
{
	this_cpu_inc(user_counts.nr[counter]);
}

void stackmap_user_add(enum stackmap_user_counter counter, unsigned long nr)
{
	this_cpu_add(user_counts.nr[counter], nr);
}

/**
 * stackmap_user_counted - the value of a counter
 * @counter: which one
 *
 * Context: any.
 * Return: the sum over all CPUs since the module was loaded.
 */
unsigned long stackmap_user_counted(enum stackmap_user_counter counter)
{
	unsigned long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu(user_counts.nr[counter], cpu);
	return sum;
}
