/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A module that has a stack recorded by its init, and each time that something is written to its
 * parameter "record". Modules of this kind differ in the names of their functions only: when one
 * is unloaded, the next may be loaded at the same address.
 */
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/objtool.h>
#include <linux/stringify.h>
#include <linux/trace.h>
#include <linux/trace_events.h>

#ifdef WORDS
/*
 * A frame of this number of words, called from one of 16 words less; on arm64, frames of any size.
 * Each word is the return address of the call in outer(), which is called or not: "via" is the
 * function that is. So with another number of words the frames have other addresses, and where the
 * first one had its return address is that address in any case.
 */
#ifdef CONFIG_ARM64
asm(".pushsection .text\n"
	".type " __stringify(inner) ", %function\n"
	__stringify(inner) ":\n"
	"	stp x29, x30, [sp, #-16]!\n"
	"	mov x29, sp\n"
	"	mov x0, #" __stringify(WORDS) "\n"
	"1:	stp x30, x30, [sp, #-16]!\n"
	"	subs x0, x0, #1\n"
	"	b.ne 1b\n"
	"	bl trace_dump_stack\n"
	"	mov sp, x29\n"
	"	ldp x29, x30, [sp], #16\n"
	"	ret\n"
	".size " __stringify(inner) ", . - " __stringify(inner) "\n"
	".popsection");
void inner(void);

static noinline void outer(void)
{
	inner();
	barrier();
}

static noinline void direct(void)
{
	inner();
	barrier();
}
#else
#define CALLER(name, words, label)					\
	".type " __stringify(name) ", @function\n"			\
	__stringify(name) ":\n"					\
	"	sub $8 * (" __stringify(words) "), %rsp\n"		\
	"	call " __stringify(inner) "\n"				\
	label "	add $8 * (" __stringify(words) "), %rsp\n"		\
	"	" ASM_RET						\
	".size " __stringify(name) ", . - " __stringify(name) "\n"

asm(".pushsection .text\n"
	".type " __stringify(inner) ", @function\n"
	__stringify(inner) ":\n"
	"	lea 1f(%rip), %rax\n"
	"	sub $8 * " __stringify(WORDS) ", %rsp\n"
	"	mov %rsp, %rdi\n"
	"	mov $" __stringify(WORDS) ", %ecx\n"
	"	rep stosq\n"
	"	xor %edi, %edi\n"
	"	call trace_dump_stack\n"
	"	add $8 * " __stringify(WORDS) ", %rsp\n"
	"	" ASM_RET
	".size " __stringify(inner) ", . - " __stringify(inner) "\n"
	CALLER(outer, 16 - WORDS, "1:\n" ANNOTATE_NOENDBR "\n")
	CALLER(direct, 16 - WORDS, "")
	".popsection");
void outer(void);
void direct(void);

#endif
#else
static noinline void inner(void)
{
	trace_dump_stack(0);
	barrier();
}

static noinline void outer(void)
{
	inner();
	barrier();
}

#define via	outer
#endif

static int record_set(const char *val, const struct kernel_param *kp)
{
	via();
	return 0;
}

static const struct kernel_param_ops record_ops = {
	.set = record_set,
};

module_param_cb(record, &record_ops, NULL, 0200);
MODULE_PARM_DESC(record, "Written to, has a stack recorded");

MODULE_DESCRIPTION("Has stacks recorded that end in a module which comes and goes");
MODULE_LICENSE("GPL");
