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

/*
 * What each architecture has, in jump_x86.c or jump_arm64.c. Context: process, may sleep; callers
 * serialise. Without the symbols that can_poke stands for, nothing is changed.
 */

/*
 * Whether the jump fits, under jump_lock(): 0, -EOPNOTSUPP if the entry is not as expected, -ENOSPC
 * if the padding is in use, -ERANGE if something is too far away, -EBUSY if there is a kprobe.
 */
int stackmap_jump_fits(void);

/* Installs the jump. Returns 0, an errno as stackmap_jump_check(), or what stop_machine() says. */
int stackmap_jump_install(void);

/*
 * Removes the jump, if installed, and restores the text. Somebody may be inside the bypass, or the
 * veneer: that stays until stackmap_jump_drained(). Returns 0, or -EBUSY if a kprobe prevents
 * restoring the text: the jump bypasses the module.
 */
int stackmap_jump_remove(void);

/* Clears the bypass or the veneer, unless the entry leads there: nobody else is inside it. */
void stackmap_jump_drained(void);

#endif /* STACKMAP_HOOK_JUMP_H */
