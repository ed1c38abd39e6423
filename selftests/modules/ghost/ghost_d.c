// SPDX-License-Identifier: GPL-2.0
#define inner		ghost_d_inner
#define outer		ghost_d_outer
#define direct		ghost_d_direct
#define record_set	ghost_d_record_set
#define via		direct
#define WORDS		12
#include "ghost.h"

static int __init ghost_d_init(void)
{
	outer();
	return 0;
}
module_init(ghost_d_init);

static void __exit ghost_d_exit(void)
{
}
module_exit(ghost_d_exit);
