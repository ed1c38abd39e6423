// SPDX-License-Identifier: GPL-2.0
#define inner		ghost_a_inner
#define outer		ghost_a_outer
#define record_set	ghost_a_record_set
#include "ghost.h"

static int __init ghost_a_init(void)
{
	outer();
	return 0;
}
module_init(ghost_a_init);

static void __exit ghost_a_exit(void)
{
}
module_exit(ghost_a_exit);
