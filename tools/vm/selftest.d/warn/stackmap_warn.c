// SPDX-License-Identifier: GPL-2.0
/*
 * A module whose loading warns, to see that tools/vm/boot notices.
 */
#include <linux/bug.h>
#include <linux/module.h>

static int __init stackmap_warn_init(void)
{
	WARN(1, "a warning that was asked for\n");
	return 0;
}

static void __exit stackmap_warn_exit(void)
{
}

module_init(stackmap_warn_init);
module_exit(stackmap_warn_exit);

MODULE_DESCRIPTION("Warns when it is loaded");
MODULE_LICENSE("GPL");
