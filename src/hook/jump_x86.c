// SPDX-License-Identifier: GPL-2.0
/*
 * The jump hook, x86-64 only: a jump at the entry of __ftrace_trace_stack() and one before it.
 *
 *	before:					hooked:
 *	-16:	nop  (16 times)			-16:	nop  (6 times)
 *						-10:	movabs, never executed; its operand:
 *						 -8:	(the last three bytes of the entry)
 *						 -5:	jmp  stackmap_trace_stack
 *	  0:	endbr64				  0:	jmp  -5
 *						  2:	int3 (twice, never executed)
 *	  4:	...				  4:	...
 *
 * With CONFIG_CFI, the hash of the function's type is at -16, and 11 NOPs are behind it: they are
 * enough, and the hash stays. With FineIBT the padding is full of code, and the jump does not fit.
 *
 * The entry's first instruction is four bytes long in any form (ENDBR64, or the NOP that sealing
 * makes of it), so no CPU can be interrupted inside it. A CPU at 0 or 4 executes valid code before,
 * during and after the change. A CPU at -5 while the padding is restored runs NOPs into the entry.
 *
 * kprobes decode a function from its start and refuse INT3 and invalid instructions. So no other
 * user can place a kprobe on bytes that are restored later, from 1 to 3 and from -9 to -1, where it
 * would keep half an instruction or a copy of the jump. kprobe_mutex excludes registration and
 * removal of kprobes during the check and the change.
 *
 * A kprobe on the function's entry is placed at 4 while the entry is an ENDBR64, which does no
 * harm, and at 0 while the entry is the jump. A kprobe at 0 executes its copy of "jmp -5" until it
 * is removed. Then the jumps stay when the hook is removed, and the jump at -5 leads to 4: the
 * function without the ENDBR64, which a direct call does not need. These jumps do not lead into the
 * module, so it can be unloaded. The text is restored when the hook is removed, or the module
 * unloaded, after that kprobe is gone. The operand of the movabs holds the original bytes, also for
 * a module loaded later.
 */
#include <linux/bug.h>
#include <linux/cache.h>
#include <linux/errno.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#include <asm/ibt.h>
#include <asm/text-patching.h>

#include "../shim/shim.h"
#include "jump.h"

#define PADDING		16
#define ENTRY_LEN	4	/* of ENDBR64 */

/* Offsets of the changed bytes from the entry. */
#define HIDE		(-10)
#define JUMP		(-JMP32_INSN_SIZE)
#define TAIL		2

static const u8 entry_jump[ENTRY_LEN] = {
	JMP8_INSN_OPCODE, (u8)-7, INT3_INSN_OPCODE, INT3_INSN_OPCODE
};

static const u8 jump_past_endbr[] = { JMP32_INSN_OPCODE, ENTRY_LEN, 0, 0, 0 };
/* movabs $imm64, %rax: the eight bytes up to the entry are its operand. */
static const u8 movabs[] = { 0x48, 0xb8 };
static const u8 nops[] = { BYTES_NOP1, BYTES_NOP1, BYTES_NOP1, BYTES_NOP1, BYTES_NOP1 };

/* Emulated for a CPU that hits the change in progress; jumps count from the end of the change. */
static const u8 do_nothing[] = { BYTES_NOP2 };
static const u8 do_nothing_5[] = { BYTES_NOP5 };
static const u8 to_padding[] = { JMP8_INSN_OPCODE, (u8)(JUMP - ENTRY_LEN) };
static const u8 past_endbr[] = { JMP8_INSN_OPCODE, ENTRY_LEN - TAIL };
static const u8 to_entry[] = { JMP32_INSN_OPCODE, 0, 0, 0, 0 };

static u8 *entry(void)
{
	return stackmap_symbols.trace_stack;
}

static void poke(int at, const u8 *text, size_t len, const u8 *emulate)
{
	static_call(stackmap_text_poke)(entry() + at, text, len, emulate);
}

/* Whether a kprobe is on bytes that the hook changes, or has changed. */
static bool probed(void)
{
	int i;

	for (i = -PADDING; i < ENTRY_LEN; i++)
		if (static_call(stackmap_get_kprobe)(entry() + i))
			return true;
	return false;
}

/* ENDBR64, or the NOP of the same length that sealing makes of it. */
static bool is_endbr_or_sealed(const u8 *text)
{
#ifdef CONFIG_X86_KERNEL_IBT
	return __is_endbr(get_unaligned((const u32 *)text));
#else
	return false;
#endif
}

/* Whether the jumps are installed, under a kprobe or not; if so, sets the original entry. */
static bool has_jumps(u8 was[ENTRY_LEN])
{
	static const u8 first[] = { 0xf3, 0x0f };
	unsigned int i;

	if (memcmp(entry() + 1, entry_jump + 1, ENTRY_LEN - 1) ||
	    (*entry() != entry_jump[0] && !static_call(stackmap_get_kprobe)(entry())) ||
	    entry()[JUMP] != JMP32_INSN_OPCODE)
		return false;
	memcpy(was + 1, entry() + HIDE + sizeof(movabs), ENTRY_LEN - 1);
	for (i = 0; i < ARRAY_SIZE(first); i++) {
		was[0] = first[i];
		if (is_endbr_or_sealed(was))
			return true;
	}
	return false;
}

static int check(void)
{
	u8 was[ENTRY_LEN];
	long distance = (u8 *)stackmap_trace_stack - entry();

	if (distance != (s32)distance)
		return -ERANGE;
	if (has_jumps(was))
		return 0;
	if (memchr_inv(entry() + HIDE, BYTES_NOP1, -HIDE) || !is_endbr_or_sealed(entry()))
		return -EOPNOTSUPP;
	return probed() ? -EBUSY : 0;
}

/**
 * stackmap_jump_original - address of the original __ftrace_trace_stack(), hooked or not
 *
 * Context: process, may sleep. All symbols are resolved.
 * Return: the address behind the ENDBR64 or the jump, or the entry if it has another instruction.
 */
void *stackmap_jump_original(void)
{
	u8 was[ENTRY_LEN], *original = entry();

	if (is_endbr_or_sealed(entry()))
		return entry() + ENTRY_LEN;
	if (!stackmap_symbols.can_poke)
		return entry();
	jump_lock();
	if (has_jumps(was))
		original += ENTRY_LEN;
	jump_unlock();
	return original;
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
	jump_lock();
	ret = check();
	jump_unlock();
	return ret;
}

/**
 * stackmap_jump_install - install the jump hook
 *
 * Context: process, may sleep.
 * Return: as stackmap_jump_check().
 */
int stackmap_jump_install(void)
{
	union text_poke_insn jump = { .opcode = JMP32_INSN_OPCODE };
	u8 was[ENTRY_LEN], hide[JMP32_INSN_SIZE];
	int ret;

	if (!stackmap_symbols.can_poke)
		return -ENOENT;
	/* From the end of the padding, where the entry is. */
	jump.disp = (u8 *)stackmap_trace_stack - entry();

	jump_lock();
	ret = check();
	if (!ret && has_jumps(was)) {
		poke(JUMP, jump.text, JMP32_INSN_SIZE, NULL);
	} else if (!ret) {
		memcpy(hide, movabs, sizeof(movabs));
		memcpy(hide + sizeof(movabs), entry() + 1, ENTRY_LEN - 1);
		poke(HIDE, hide, sizeof(hide), do_nothing_5);
		poke(JUMP, jump.text, JMP32_INSN_SIZE, NULL);
		poke(0, entry_jump, ENTRY_LEN, to_padding);
	}
	jump_unlock();
	return ret;
}

/**
 * stackmap_jump_remove - remove the jump hook, if installed, and restore the text
 *
 * Context: process, may sleep.
 * Return: 0, or -EBUSY if a kprobe prevents restoring the text: the jumps bypass the module.
 */
int stackmap_jump_remove(void)
{
	u8 was[ENTRY_LEN];
	int ret = 0;

	if (!stackmap_symbols.can_poke)
		return 0;
	jump_lock();
	if (has_jumps(was) && probed()) {
		poke(JUMP, jump_past_endbr, JMP32_INSN_SIZE, NULL);
		ret = -EBUSY;
	} else if (has_jumps(was)) {
		poke(TAIL, was + TAIL, ENTRY_LEN - TAIL, do_nothing);
		poke(0, was, TAIL, past_endbr);
		poke(JUMP, nops, sizeof(nops), to_entry);
		poke(HIDE, nops, sizeof(nops), do_nothing_5);
	}
	jump_unlock();
	return ret;
}
