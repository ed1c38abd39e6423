// SPDX-License-Identifier: GPL-2.0
/*
 * The jump hook of arm64: a branch at the entry of __ftrace_trace_stack(), and where it leads to, a
 * veneer in the padding between the kernel's text and _etext.
 *
 *	before:					hooked:
 *	entry:	paciasp				entry:	b	veneer
 *	...					...
 *	_etext - 24: 0 (six times)			ldxr	xzr, [sp]
 *						veneer:	adrp	x16, stackmap_hook_entry
 *							add	x16, x16, #...
 *							br	x16
 *						bypass:	paciasp
 *							b	entry + 4
 *
 * A module may be anywhere within 2 GiB of the kernel, out of reach of a branch; the padding is
 * within reach. A call leaves x16 and x17 to what is between it and its target.
 *
 * Nobody executes the load exclusive: it keeps kprobes off the words after it, since they are
 * refused between a load exclusive and the next store exclusive. A kprobe there would put its
 * breakpoint over what is written later, or its copy of an instruction that leads to the module
 * over the bypass.
 *
 * Erratum 843419 of the Cortex-A53 is about an adrp at the end of a page with a load or store right
 * after it. Here an add is, so the veneer may be anywhere.
 *
 * The entry is changed as for a kprobe, with all CPUs stopped. A CPU at the entry goes on there, a
 * CPU after it does not notice. Whoever is inside the veneer when the hook is removed still finds
 * it there: it is cleared when stackmap_hook_drain() has waited.
 *
 * A kprobe that is placed on the entry while this is the branch executes its copy of the branch
 * until it is removed. Then the branch stays when the hook is removed, and the veneer begins with a
 * branch to the bypass: the function as it was. That does not lead into the module, so it can be
 * unloaded. The text is restored when the hook is removed, or the module loaded or unloaded, after
 * that kprobe is gone.
 */
#include <linux/bits.h>
#include <linux/errno.h>
#include <linux/math.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <linux/stringify.h>

#include "../record/slot.h"
#include "../shim/shim.h"
#include "jump.h"

#define INSN_PACIASP	0xd503233f
#define INSN_LDXR	0xc85f7fff	/* ldxr xzr, [sp] */
#define INSN_ADRP_X16	0x90000010
#define INSN_ADD_X16	0x91000210	/* add x16, x16, #0 */
#define INSN_BR_X16	0xd61f0200
#define INSN_B		0x14000000

/* Words of the veneer. */
enum {
	GUARD		= 0,
	TO_MODULE	= 1,
	BYPASS		= 4,
	VENEER_WORDS	= 6,
};

/* Where stackmap_original() goes on: after the instruction that the hook replaces. */
unsigned long stackmap_behind __ro_after_init;

/* The kernel's own function, hooked or not: its first instruction, and on after that. */
void stackmap_original(struct trace_array *tr, struct trace_buffer *buffer, unsigned int trace_ctx,
		       int skip, struct pt_regs *regs);

asm(".pushsection .text, \"ax\", %progbits\n"
	".balign 8\n"
	".global stackmap_original\n"
	".type stackmap_original, %function\n"
	"stackmap_original:\n"
	"	hint	#25\n"
	"	adrp	x16, stackmap_behind\n"
	"	ldr	x16, [x16, #:lo12:stackmap_behind]\n"
	"	br	x16\n"
	".size stackmap_original, . - stackmap_original\n"
	".popsection\n");

/*
 * The slot is the sixth argument; the other registers used are those that a call leaves to its
 * target. A static call has the address of its function first.
 */
asm(".pushsection .text, \"ax\", %progbits\n"
	".balign 8\n"
	".global stackmap_hook_entry\n"
	".type stackmap_hook_entry, %function\n"
	"stackmap_hook_entry:\n"
	"	adrp	x16, stackmap_slots_end\n"
	"	ldr	x16, [x16, #:lo12:stackmap_slots_end]\n"
	"	adrp	x5, stackmap_slots\n"
	"	add	x5, x5, #:lo12:stackmap_slots\n"
	"1:	cmp	x5, x16\n"
	"	b.eq	3f\n"
	"	ldar	x17, [x5]\n"
	"	cmp	x17, x0\n"
	"	b.eq	2f\n"
	"	add	x5, x5, #" __stringify(STACKMAP_SLOT_SIZE) "\n"
	"	b	1b\n"
	"2:	b	stackmap_trace_stack\n"
	"3:	adrp	x16, " STATIC_CALL_KEY_STR(stackmap_trace_stack_orig) "\n"
	"	ldr	x16, [x16, #:lo12:" STATIC_CALL_KEY_STR(stackmap_trace_stack_orig) "]\n"
	"	br	x16\n"
	".size stackmap_hook_entry, . - stackmap_hook_entry\n"
	".popsection\n");

static u32 *entry(void)
{
	return stackmap_symbols.trace_stack;
}

static u32 *veneer(void)
{
	return (u32 *)stackmap_facts.etext - VENEER_WORDS;
}

/* Where the entry leads to. */
static u32 *target(void)
{
	return veneer() + TO_MODULE;
}

static u32 branch(const u32 *from, const u32 *to)
{
	return INSN_B | ((to - from) & GENMASK(25, 0));
}

/* The instruction at the entry, also under a kprobe. */
static u32 first(void)
{
	const struct kprobe *kp = static_call(stackmap_get_kprobe)(entry());

	return kp ? kp->opcode : *entry();
}

/* Whether a kprobe is on what the hook changes, before it has. */
static bool probed(void)
{
	int i;

	for (i = 0; i < VENEER_WORDS; i++)
		if (static_call(stackmap_get_kprobe)(veneer() + i))
			return true;
	return static_call(stackmap_get_kprobe)(entry());
}

/* Whether the veneer is there, from this load or an earlier one. */
static bool has_veneer(void)
{
	const u32 *words = veneer();

	return words[GUARD] == INSN_LDXR && words[BYPASS] == INSN_PACIASP &&
	       words[BYPASS + 1] == branch(words + BYPASS + 1, entry() + 1);
}

static bool has_jump(void)
{
	return has_veneer() && first() == branch(entry(), target());
}

/* Changes an instruction with all CPUs stopped. */
static int patch(u32 *at, u32 insn)
{
	void *addr = at;

	return static_call(stackmap_patch_text)(&addr, &insn, 1);
}

/* Writes instructions that nobody executes. */
static void write_words(u32 *at, u32 *insns, int nr)
{
	static_call(stackmap_copy_text)(at, insns, nr * sizeof(*insns));
}

static void clear_veneer(void)
{
	u32 zero[VENEER_WORDS] = { };

	write_words(veneer(), zero, VENEER_WORDS);
}

int stackmap_jump_fits(void)
{
	const long to_module = (long)stackmap_hook_entry - (long)target();
	const long to_veneer = (long)target() - (long)entry();

	/* What branches to the middle of a function through a register is not allowed to there. */
	if (IS_ENABLED(CONFIG_ARM64_BTI_KERNEL))
		return -EOPNOTSUPP;
	/* The branch reaches 128 MiB, adrp a bit less than 4 GiB. */
	if (to_veneer <= 0 || to_veneer >= SZ_128M || abs(to_module) >= 2L * SZ_2G - SZ_64K)
		return -ERANGE;
	if (has_jump())
		return 0;
	if (probed())
		return -EBUSY;
	if (first() != INSN_PACIASP)
		return -EOPNOTSUPP;
	return memchr_inv(veneer(), 0, VENEER_WORDS * sizeof(u32)) ? -ENOSPC : 0;
}

/**
 * stackmap_jump_original - address of the original __ftrace_trace_stack(), hooked or not
 *
 * Context: process, may sleep. All symbols are resolved.
 * Return: the address of code that does what the function does without a hook or a kprobe at its
 * entry, or the entry if it has another instruction than expected.
 */
void *stackmap_jump_original(void)
{
	void *original = entry();

	if (!stackmap_symbols.can_poke || IS_ENABLED(CONFIG_ARM64_BTI_KERNEL))
		return original;
	stackmap_behind = (unsigned long)(entry() + 1);
	jump_lock();
	if (first() == INSN_PACIASP || has_jump())
		original = stackmap_original;
	jump_unlock();
	return original;
}

int stackmap_jump_install(void)
{
	const unsigned long to = (unsigned long)stackmap_hook_entry;
	const long pages = (long)(to >> 12) - (long)((unsigned long)target() >> 12);
	u32 insns[VENEER_WORDS] = {
		INSN_LDXR,
		INSN_ADRP_X16 | (pages & GENMASK(1, 0)) << 29 | (pages >> 2 & GENMASK(18, 0)) << 5,
		INSN_ADD_X16 | (to & GENMASK(11, 0)) << 10,
		INSN_BR_X16,
		INSN_PACIASP,
		branch(veneer() + BYPASS + 1, entry() + 1),
	};
	int ret;

	if (!stackmap_symbols.can_poke)
		return -ENOENT;

	jump_lock();
	ret = stackmap_jump_fits();
	if (!ret && has_jump()) {
		/* The bypass is used, and nothing else: an earlier user has waited for that. */
		write_words(target() + 1, insns + TO_MODULE + 1, BYPASS - TO_MODULE - 1);
		ret = patch(target(), insns[TO_MODULE]);
	} else if (!ret) {
		write_words(veneer(), insns, VENEER_WORDS);
		ret = patch(entry(), branch(entry(), target()));
		if (ret)
			clear_veneer();
	}
	jump_unlock();
	return ret;
}

int stackmap_jump_remove(void)
{
	const u32 to_bypass = stackmap_symbols.can_poke ?
		branch(target(), veneer() + BYPASS) : 0;
	bool bypassed = false;
	int ret = 0;

	if (!stackmap_symbols.can_poke)
		return 0;
	jump_lock();
	if (has_jump() && static_call(stackmap_get_kprobe)(entry())) {
		if (*target() != to_bypass)
			patch(target(), to_bypass);
		ret = -EBUSY;
	} else if (has_jump()) {
		bypassed = *target() == to_bypass;
		patch(entry(), INSN_PACIASP);
	}
	jump_unlock();
	/* Nobody else waits, where the hook was removed before. */
	if (bypassed)
		stackmap_hook_drain();
	return ret;
}

void stackmap_jump_drained(void)
{
	if (!stackmap_symbols.can_poke)
		return;
	jump_lock();
	if (has_veneer() && !has_jump())
		clear_veneer();
	jump_unlock();
}
