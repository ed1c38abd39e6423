// SPDX-License-Identifier: GPL-2.0
/*
 * The jump hook, x86-64 only: a jump at the entry of __ftrace_trace_stack() and one before it. It
 * replaces the first instruction, which is one of two:
 *
 *	before:					hooked:
 *	-16:	nop  (16 times)			-16:	nop  (6 times)
 *						-10:	movabs, never executed; its operand:
 *						 -8:	(the bytes 1 to 3 of the entry)
 *						 -5:	jmp  stackmap_hook_entry
 *	  0:	endbr64				  0:	jmp  -5
 *						  2:	int3 (twice, never executed)
 *	  4:	...				  4:	...
 *
 *	  0:	push %r15			  0:	jmp  -5
 *	  2:	...				  2:	...
 *
 * With CONFIG_CFI, the instruction with the hash of the function's type is at -16, and 11 NOPs
 * follow it: they are enough for an ENDBR64, and the hash stays. The bypass of a push, below,
 * needs all 16 bytes. With FineIBT or call depth tracking the padding is full of code. Where there
 * are too few NOPs, the jump does not fit.
 *
 * ENDBR64 is four bytes long in any form (also the NOP that sealing makes of it), the push is two
 * bytes long, and nothing after them changes. So no CPU can be interrupted inside what changes. A
 * CPU at 0 or after the instruction executes valid code before, during and after the change. A CPU
 * at -5 while the padding is restored runs NOPs into the entry. An interrupt at -5 finds the stack
 * as at the entry, and objtool has given the padding the ORC of the entry.
 *
 * In Linux 6.12 the function is static and never called by a pointer, so it has no ENDBR64, and
 * begins with a push. Its arguments are in the same registers: a compiler that passes arguments in
 * other registers renames the function. A caller of a static function may rely on registers that
 * the function leaves alone (-fipa-ra); but this one calls functions of other files, which may
 * change all caller-saved registers.
 *
 * What goes on to the original function skips the ENDBR64, which a direct call does not need.
 * stackmap_original_push(), in the module's text, executes the push, with the right ORC before and
 * after it, and jumps to 2. stackmap_hook_drain() waits until no task is inside it. The jump of
 * an optimized kprobe at 0 would overwrite 2. But the kprobes code optimizes neither a short jump
 * nor a kprobe with a post-handler, so it writes no such jump while a hook is installed. Before the
 * kprobes code writes one later, it waits for RCU tasks and interrupts each CPU, as the drain does.
 *
 * The kprobes code refuses the padding, which has a symbol of its own (__pfx_ or __cfi_), and what
 * is not the start of an instruction. So no other user can place a kprobe on bytes that are
 * restored later, except at 0. kprobe_mutex excludes registration and removal of kprobes during the
 * check and the change.
 *
 * While the entry is an ENDBR64, the kernel places a kprobe on the function at 4, where it does no
 * harm. While it is a push, a kprobe is placed at 0, and would restore a byte of the push under the
 * hook: the jump does not fit until that kprobe is removed.
 *
 * A kprobe is placed at 0 also while the entry is the jump, and executes its copy of "jmp -5" until
 * it is removed. Then the jumps stay when the hook is removed, and the jump at -5 leads to the
 * original function: to 4, or to a bypass at -16, "push %r15; jmp 2". These jumps do not lead into
 * the module, so it can be unloaded. The text is restored when the hook is removed, or the module
 * unloaded, after that kprobe is gone; the bypass, when nobody is inside it. The operand of the
 * movabs holds the original bytes, also for a module loaded later. The ORC of -14, after the push
 * of the bypass, is wrong: the stack of an interrupt there may end at once, or have a wrong frame.
 */
#include <linux/bug.h>
#include <linux/cache.h>
#include <linux/errno.h>
#include <linux/objtool.h>
#include <linux/string.h>
#include <linux/stringify.h>
#include <linux/unaligned.h>

#include <asm/ibt.h>
#include <asm/text-patching.h>
#include <asm/unwind_hints.h>

#include "../record/slot.h"
#include "../shim/shim.h"
#include "jump.h"

#define PADDING		16
#define ENDBR_LEN	4
#define PUSH_LEN	2

/* Offsets of the changed bytes from the entry. */
#define BYPASS		(-PADDING)
#define HIDE		(-10)
#define JUMP		(-JMP32_INSN_SIZE)
#define TAIL		2

/* push %r15 */
static const u8 push[PUSH_LEN] = { 0x41, 0x57 };
static const u8 entry_jump[ENDBR_LEN] = {
	JMP8_INSN_OPCODE, (u8)-7, INT3_INSN_OPCODE, INT3_INSN_OPCODE
};

/* The push, and a jump to what follows that of the entry. */
static const u8 bypass[] = { 0x41, 0x57, JMP8_INSN_OPCODE, PADDING - PUSH_LEN, BYTES_NOP1 };
static const u8 jump_to_bypass[] = { JMP32_INSN_OPCODE, (u8)BYPASS, 0xff, 0xff, 0xff };
static const u8 jump_past_endbr[] = { JMP32_INSN_OPCODE, ENDBR_LEN, 0, 0, 0 };
/* movabs $imm64, %rax: the eight bytes up to the entry are its operand. */
static const u8 movabs[] = { 0x48, 0xb8 };
static const u8 nops[] = { BYTES_NOP1, BYTES_NOP1, BYTES_NOP1, BYTES_NOP1, BYTES_NOP1 };

/*
 * What a CPU does that hits the INT3 of a change in progress. A jump counts from the end of the
 * bytes that change.
 */
static const u8 do_nothing[] = { BYTES_NOP2 };
static const u8 do_nothing_5[] = { BYTES_NOP5 };
static const u8 to_padding[] = { JMP8_INSN_OPCODE, (u8)(JUMP - ENDBR_LEN) };
static const u8 past_endbr[] = { JMP8_INSN_OPCODE, ENDBR_LEN - TAIL };
static const u8 to_entry[] = { JMP32_INSN_OPCODE, 0, 0, 0, 0 };

/*
 * The kernel's own function, where it begins with a push, hooked or not. stackmap_jump_original()
 * sets where the jump goes. The trampoline of a static call would have the ORC of a function's
 * entry, without the push.
 */
void stackmap_original_push(struct trace_array *tr, struct trace_buffer *buffer,
			    unsigned int trace_ctx, int skip, struct pt_regs *regs);

/* For objtool this is no function: a function must not jump elsewhere with its stack changed. */
asm(".pushsection .text, \"ax\", @progbits\n"
	".balign 16\n"
	".global stackmap_original_push\n"
	"stackmap_original_push:\n"
	ANNOTATE_NOENDBR "\n"
	UNWIND_HINT_FUNC "\n"
	"	push	%r15\n"
	"	.byte	" __stringify(JMP32_INSN_OPCODE) "\n"
	"	.long	0\n"
	"	ud2\n"
	".size stackmap_original_push, . - stackmap_original_push\n"
	".popsection\n");

/*
 * On x86 each load is an acquire. The slot is the sixth argument, in r9; rax is caller-saved and
 * holds no argument.
 */
asm(".pushsection .text, \"ax\", @progbits\n"
	".balign 16\n"
	".global stackmap_hook_entry\n"
	".type stackmap_hook_entry, @function\n"
	"stackmap_hook_entry:\n"
	ASM_ENDBR
	"	movq	stackmap_slots_end(%rip), %rax\n"
	"	leaq	stackmap_slots(%rip), %r9\n"
	"1:	cmpq	%rax, %r9\n"
	"	je	3f\n"
	"	cmpq	%rdi, (%r9)\n"
	"	je	2f\n"
	"	addq	$" __stringify(STACKMAP_SLOT_SIZE) ", %r9\n"
	"	jmp	1b\n"
	"2:	jmp	stackmap_trace_stack\n"
	"3:	jmp	" STATIC_CALL_TRAMP_STR(stackmap_trace_stack_orig) "\n"
	".size stackmap_hook_entry, . - stackmap_hook_entry\n"
	".popsection\n");

static u8 *entry(void)
{
	return stackmap_symbols.trace_stack;
}

static void poke(int at, const u8 *text, size_t len, const u8 *emulate)
{
	static_call(stackmap_text_poke)(entry() + at, text, len, emulate);
}

/* Has stackmap_original_push() jump to what follows the push at the entry. */
static void aim(void)
{
	u8 *site = (u8 *)stackmap_original_push;
	union text_poke_insn jump = { .opcode = JMP32_INSN_OPCODE };

	/* A relocation to what is no function's entry would want an ENDBR64 there. */
	OPTIMIZER_HIDE_VAR(site);
	site += PUSH_LEN;
	jump.disp = entry() + PUSH_LEN - (site + JMP32_INSN_SIZE);
	if (memcmp(site, jump.text, JMP32_INSN_SIZE))
		static_call(stackmap_text_poke)(site, jump.text, JMP32_INSN_SIZE, NULL);
}

/* The kprobe at the entry, or NULL. */
static const struct kprobe *probe(void)
{
	return static_call(stackmap_get_kprobe)(entry());
}

/* The first byte of the entry, also under a kprobe. */
static u8 first(void)
{
	const struct kprobe *kp = probe();

	return kp ? kp->opcode : *entry();
}

/* ENDBR64, or the NOP of the same length that sealing makes of it. */
static bool is_endbr_or_sealed(const u8 *text)
{
#ifdef CONFIG_X86_KERNEL_IBT
	const u32 word = get_unaligned((const u32 *)text);

/* is_endbr() takes the value in Linux 6.12, and its address later. */
#if STACKMAP_HAS_UNDERSCORE_IS_ENDBR
	return __is_endbr(word);
#else
	return is_endbr(word);
#endif
#else
	return false;
#endif
}

/* The length of the first instruction of @text, if the hook can replace it; else 0. */
static int length(const u8 text[ENDBR_LEN])
{
	if (is_endbr_or_sealed(text))
		return ENDBR_LEN;
	return memcmp(text, push, PUSH_LEN) ? 0 : PUSH_LEN;
}

/*
 * If the jumps are installed, under a kprobe or not, stores the instruction that they replace in
 * @was, and returns its length; else returns 0.
 */
static int replaced(u8 was[ENDBR_LEN])
{
	static const u8 starts[] = { 0xf3, 0x0f, 0x41 };
	unsigned int i;
	int len;

	if (first() != entry_jump[0] || entry()[JUMP] != JMP32_INSN_OPCODE)
		return 0;
	memcpy(was + 1, entry() + HIDE + sizeof(movabs), ENDBR_LEN - 1);
	for (i = 0; i < ARRAY_SIZE(starts); i++) {
		was[0] = starts[i];
		len = length(was);
		if (len && !memcmp(entry() + 1, entry_jump + 1, len - 1))
			return len;
	}
	return 0;
}

static bool has_bypass(void)
{
	return !memcmp(entry() + BYPASS, bypass, sizeof(bypass));
}

int stackmap_jump_fits(void)
{
	u8 was[ENDBR_LEN];
	long distance = (u8 *)stackmap_hook_entry - entry();
	const int len = length(entry());
	/* The bypass is for a push only. */
	const int wanted = len == PUSH_LEN ? PADDING : -HIDE;

	if (distance != (s32)distance)
		return -ERANGE;
	if (replaced(was))
		return 0;
	if (probe())
		return -EBUSY;
	if (!len)
		return -EOPNOTSUPP;
	return memchr_inv(entry() - wanted, BYTES_NOP1, wanted) ? -ENOSPC : 0;
}

/**
 * stackmap_jump_original - address of the original __ftrace_trace_stack(), hooked or not
 *
 * Context: process, may sleep. All symbols are resolved, and the hook is not installed.
 * Return: the address after the ENDBR64 or the jump, stackmap_original_push() for a push, or the
 * entry if it has another instruction.
 */
void *stackmap_jump_original(void)
{
	u8 text[ENDBR_LEN];
	int len;

	if (is_endbr_or_sealed(entry()))
		return entry() + ENDBR_LEN;
	if (!stackmap_symbols.can_poke)
		return entry();
	jump_lock();
	len = replaced(text);
	if (!len) {
		memcpy(text, entry(), ENDBR_LEN);
		text[0] = first();
		len = length(text);
	}
	if (len == PUSH_LEN)
		aim();
	jump_unlock();
	return len == PUSH_LEN ? (void *)stackmap_original_push : entry() + len;
}

int stackmap_jump_install(void)
{
	union text_poke_insn jump = { .opcode = JMP32_INSN_OPCODE };
	u8 was[ENDBR_LEN], hide[JMP32_INSN_SIZE];
	int ret, len;

	if (!stackmap_symbols.can_poke)
		return -ENOENT;
	/* The jump ends at the entry. */
	jump.disp = (u8 *)stackmap_hook_entry - entry();
	/* While the module was loaded, a kprobe may have hidden what is replaced. */
	static_call_update(stackmap_trace_stack_orig, stackmap_jump_original());

	jump_lock();
	ret = stackmap_jump_fits();
	len = length(entry());
	if (!ret && static_call_query(stackmap_trace_stack_orig) == (void *)entry()) {
		/* A kprobe hid the entry from stackmap_jump_original(), and is gone: try again. */
		ret = -EBUSY;
	} else if (!ret && replaced(was)) {
		poke(JUMP, jump.text, JMP32_INSN_SIZE, NULL);
	} else if (!ret) {
		memcpy(hide, movabs, sizeof(movabs));
		memcpy(hide + sizeof(movabs), entry() + 1, ENDBR_LEN - 1);
		poke(HIDE, hide, sizeof(hide), do_nothing_5);
		poke(JUMP, jump.text, JMP32_INSN_SIZE, NULL);
		poke(0, entry_jump, len, len == PUSH_LEN ? NULL : to_padding);
	}
	jump_unlock();
	return ret;
}

int stackmap_jump_remove(void)
{
	u8 was[ENDBR_LEN];
	int ret = 0, len;

	if (!stackmap_symbols.can_poke)
		return 0;
	jump_lock();
	len = replaced(was);
	if (len && probe()) {
		if (len == PUSH_LEN && !has_bypass())
			poke(BYPASS, bypass, sizeof(bypass), do_nothing_5);
		poke(JUMP, len == PUSH_LEN ? jump_to_bypass : jump_past_endbr, JMP32_INSN_SIZE,
		     NULL);
		ret = -EBUSY;
	} else if (len) {
		if (len == ENDBR_LEN)
			poke(TAIL, was + TAIL, ENDBR_LEN - TAIL, do_nothing);
		poke(0, was, TAIL, len == PUSH_LEN ? entry_jump : past_endbr);
		poke(JUMP, nops, sizeof(nops), to_entry);
		poke(HIDE, nops, sizeof(nops), do_nothing_5);
	}
	jump_unlock();
	return ret;
}

void stackmap_jump_drained(void)
{
	u8 was[ENDBR_LEN];

	if (!stackmap_symbols.can_poke)
		return;
	jump_lock();
	if (has_bypass() && !replaced(was))
		poke(BYPASS, nops, sizeof(nops), do_nothing_5);
	jump_unlock();
}
