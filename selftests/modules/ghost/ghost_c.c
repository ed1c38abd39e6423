// SPDX-License-Identifier: GPL-2.0
#define inner		ghost_c_inner
#define outer		ghost_c_outer
#define direct		ghost_c_direct
#define record_set	ghost_c_record_set
#define via		outer
#define WORDS		4
#include "ghost.h"

static int __init ghost_c_init(void)
{
	outer();
	return 0;
}
module_init(ghost_c_init);

static void __exit ghost_c_exit(void)
{
}
module_exit(ghost_c_exit);
