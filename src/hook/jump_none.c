// SPDX-License-Identifier: GPL-2.0
/*
 * No jump hook: for architectures where nobody has written one.
 */
#include <linux/errno.h>

#include "../shim/shim.h"

void *stackmap_jump_original(void)
{
	return stackmap_symbols.trace_stack;
}

int stackmap_jump_check(void)
{
	return -EOPNOTSUPP;
}

int stackmap_jump_install(void)
{
	return -EOPNOTSUPP;
}

int stackmap_jump_remove(void)
{
	return 0;
}
