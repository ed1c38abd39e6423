/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What excludes others while the text of the jump hook is looked at and changed.
 */
#ifndef STACKMAP_HOOK_JUMP_H
#define STACKMAP_HOOK_JUMP_H

#include <linux/cpu.h>
#include <linux/mutex.h>

#include "../shim/shim.h"

static inline void jump_lock(void)
{
	/* The order in which a kprobe is armed. */
	mutex_lock(stackmap_symbols.kprobe_mutex);
	cpus_read_lock();
	mutex_lock(stackmap_symbols.text_mutex);
}

static inline void jump_unlock(void)
{
	mutex_unlock(stackmap_symbols.text_mutex);
	cpus_read_unlock();
	mutex_unlock(stackmap_symbols.kprobe_mutex);
}

#endif /* STACKMAP_HOOK_JUMP_H */
