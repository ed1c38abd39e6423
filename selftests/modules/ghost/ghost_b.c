// SPDX-License-Identifier: GPL-2.0
#define inner		ghost_b_inner
#define outer		ghost_b_outer
#define record_set	ghost_b_record_set
#include "ghost.h"

static int __init ghost_b_init(void)
{
	outer();
	return 0;
}
module_init(ghost_b_init);

static void __exit ghost_b_exit(void)
{
}
module_exit(ghost_b_exit);
