// SPDX-License-Identifier: GPL-2.0
/*
 * The jump hook, x86-64 only: two bytes at the entry of __ftrace_trace_stack() and five before it.
 *
 *	before:					hooked:
 *	-16:	nop  (16 times)			-16:	nop  (11 times)
 *						 -5:	jmp  stackmap_trace_stack
 *	  0:	endbr64				  0:	jmp  -5
 *						  2:	(rest of endbr64, never executed)
 *	  4:	...				  4:	...
 *
 * The entry's first instruction is four bytes long in any form (ENDBR64, or the NOP that sealing
 * makes of it), so nobody can have been interrupted inside, and whoever is at 0 or 4 goes on right
 * before, during and after the change. Whoever is at -5 when the padding is restored runs NOPs into
 * the entry.
 *
 * kprobes: one on the function's entry is placed at 4 while the entry is an ENDBR64, and at 0 while
 * it is our jump. The latter keeps a copy of our jump as the "original" instruction; restoring the
 * entry below it would end in a crash when it goes. kprobe_mutex keeps probes from coming and going
 * while we look and change, and the hook stays in place as long as there is such a probe.
 */
#include <linux/bug.h>
#include <linux/cpu.h>
#include <linux/errno.h>
#include <linux/string.h>

#include "shim.h"

#ifdef CONFIG_X86_64

#include <asm/ibt.h>
#include <asm/text-patching.h>

#define PADDING		16
#define ENTRY_LEN	2

static const u8 entry_jump[ENTRY_LEN] = { JMP8_INSN_OPCODE, (u8)-7 };
static const u8 over_endbr[ENTRY_LEN] = { JMP8_INSN_OPCODE, 2 };
static const u8 to_entry[JMP32_INSN_SIZE] = { JMP32_INSN_OPCODE, 0, 0, 0, 0 };

static u8 saved_entry[ENTRY_LEN];
static u8 saved_padding[JMP32_INSN_SIZE];

static u8 *entry(void)
{
	return stackmap_symbols.trace_stack;
}

static bool probed(void)
{
	int i;

	for (i = 0; i < ENTRY_LEN; i++)
		if (static_call(stackmap_get_kprobe)(entry() + i))
			return true;
	return false;
}

static void lock(void)
{
	/* The order in which a kprobe is armed. */
	mutex_lock(stackmap_symbols.kprobe_mutex);
	cpus_read_lock();
	mutex_lock(stackmap_symbols.text_mutex);
}

static void unlock(void)
{
	mutex_unlock(stackmap_symbols.text_mutex);
	cpus_read_unlock();
	mutex_unlock(stackmap_symbols.kprobe_mutex);
}

/* ENDBR64, or the NOP of the same length that sealing makes of it. */
static bool endbr(void)
{
#ifdef CONFIG_X86_KERNEL_IBT
	return __is_endbr(*(u32 *)entry());
#else
	return false;
#endif
}

static int check(void)
{
	long distance = (u8 *)stackmap_trace_stack - entry();

	if (memchr_inv(entry() - PADDING, 0x90, PADDING) || !endbr())
		return -EOPNOTSUPP;
	if (distance != (s32)distance)
		return -ERANGE;
	return probed() ? -EBUSY : 0;
}

/**
 * stackmap_jump_check - whether the jump would fit
 *
 * Context: process.
 * Return: 0, -ENOENT if the kernel lacks a symbol that is needed, -EOPNOTSUPP if the entry or its
 * padding is not as expected, -ERANGE if the module is too far away, -EBUSY if there is a kprobe.
 */
int stackmap_jump_check(void)
{
	int ret;

	if (!stackmap_symbols.can_poke)
		return -ENOENT;
	lock();
	ret = check();
	unlock();
	return ret;
}

/**
 * stackmap_jump_install - hook
 *
 * Context: process, may sleep.
 * Return: as stackmap_jump_check().
 */
int stackmap_jump_install(void)
{
	union text_poke_insn jump = { .opcode = JMP32_INSN_OPCODE };
	int ret;

	if (!stackmap_symbols.can_poke)
		return -ENOENT;
	/* From the end of the padding, where the entry is. */
	jump.disp = (u8 *)stackmap_trace_stack - entry();
	/* Other instances' stacks go on behind the jump. */
	static_call_update(stackmap_trace_stack_orig, (void *)(entry() + ENDBR_INSN_SIZE));

	lock();
	ret = check();
	if (!ret) {
		memcpy(saved_entry, entry(), sizeof(saved_entry));
		memcpy(saved_padding, entry() - JMP32_INSN_SIZE, sizeof(saved_padding));
		static_call(stackmap_text_poke)(entry() - JMP32_INSN_SIZE, jump.text,
						JMP32_INSN_SIZE, NULL);
		static_call(stackmap_text_poke)(entry(), entry_jump, ENTRY_LEN, NULL);
	}
	unlock();
	return ret;
}

/**
 * stackmap_jump_remove - unhook
 *
 * Context: process, may sleep.
 * Return: 0, or -EBUSY if a kprobe is on the jump; it stays hooked then.
 */
int stackmap_jump_remove(void)
{
	int ret = 0;

	lock();
	if (probed() || memcmp(entry(), entry_jump, ENTRY_LEN)) {
		ret = -EBUSY;
	} else {
		static_call(stackmap_text_poke)(entry(), saved_entry, ENTRY_LEN, over_endbr);
		static_call(stackmap_text_poke)(entry() - JMP32_INSN_SIZE, saved_padding,
						JMP32_INSN_SIZE, to_entry);
	}
	unlock();
	return ret;
}

#else /* !CONFIG_X86_64 */

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

#endif
