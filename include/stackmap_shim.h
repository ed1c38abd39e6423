/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The boundary between the module's Rust and its C: all that either calls of the other.
 *
 * The C side does what the kernel offers as macros and inline functions only. It decides nothing:
 * it reports facts and errnos, and the Rust side says what they mean. bindgen reads this file.
 */
#ifndef STACKMAP_SHIM_H
#define STACKMAP_SHIM_H

#include <linux/types.h>

#include "uapi/stackmap.h"

struct dentry;
struct file;
struct file_operations;
struct ftrace_ops;
struct module;
struct ring_buffer_event;
struct trace_array;
struct trace_buffer;
struct trace_event_file;
struct trace_seq;

/* Frames that the kernel records of one stack at most. */
#define STACKMAP_MAX_FRAMES	1024

/* What the core writes for a frame inside an ftrace trampoline; kernel/trace/trace.h. */
#define STACKMAP_TRAMPOLINE_MARKER	0x7fffffff

/*
 * Stacks that can be recorded on one CPU on top of each other: one for each bit of the recursion
 * guard that a recorder holds (task, softirq, hardirq, NMI, and a transition between them).
 */
#define STACKMAP_LEVELS		5

/* Instances that can be served at one time. */
#define STACKMAP_INSTANCES	64

/* Room for what stackmap_symbol() tells; the kernel's own limit is lower. */
#define STACKMAP_SYMBOL_LEN	1024

/* The fields of ftrace:kernel_stack, as the running kernel describes them. */
struct stackmap_layout {
	__s32 type;		/* the event's number in the ring buffer */
	__u32 nr_fields;	/* fields behind the common ones */
	__u32 size_offset;	/* of the field "size" (an int), 0 if there is none */
	__u32 size_len;
	__u32 caller_offset;	/* of the field "caller" (unsigned long[]), 0 if there is none */
	__u32 caller_len;
};

/* Where an event goes: what the caller of __ftrace_trace_stack() passed, and by which event. */
struct stackmap_site {
	struct trace_event_file *file;	/* ftrace:stack_id in the trace array */
	struct trace_buffer *buffer;
	unsigned int trace_ctx;
};

/* How a frame is printed. */
enum stackmap_seq_form {
	STACKMAP_SEQ_OFFSET	= 1,	/* name+0x48/0xc0 [module], instead of name */
	STACKMAP_SEQ_ADDR	= 2,	/* with the address behind it */
};

/* A trace array whose stacks become ids. */
struct stackmap_served {
	struct trace_array *tr;
	struct trace_event_file *file;	/* its ftrace:stack_id */
	struct ftrace_ops *ops;		/* its function tracer's; NULL before it was seen */
};

/* A part of a module's text, up to @end. */
struct stackmap_text {
	__u64 start, end;
};

enum stackmap_reserved {
	STACKMAP_RESERVED,
	STACKMAP_NO_ROOM,	/* the ring buffer takes nothing */
	STACKMAP_FOREIGN,	/* the ring buffer is not that of the trace array */
};

/* How the frames of a stack were found: by a rule, or by the kernel's unwinder because... */
enum stackmap_unwound {
	STACKMAP_FAST,
	STACKMAP_SLOW_NEW,	/* the rule was not known yet, or not any more */
	STACKMAP_SLOW_TEXT,	/* the text may go at any time: no rule is kept */
	STACKMAP_SLOW_ODD,	/* there is no rule for what is there */
	STACKMAP_SLOW_REGS,	/* it was interrupted */
	STACKMAP_SLOW_RETURN,	/* a tracer has put its own return address there */
	STACKMAP_SLOW_STACK,	/* the next frame is on another stack */
	STACKMAP_SLOW_WHOLE,	/* whole stacks, not frames: from registers, or RCU not watching */
	STACKMAP_UNWOUND_NR,
};

/*
 * A rule, as a word: its kind; for a call and for registers the new stack pointer as an offset,
 * in words, from the old one or from the frame pointer; for a call where the frame pointer is then.
 * 0 is none. src/unwind/rules.rs makes them.
 */
enum stackmap_rule_bits {
	STACKMAP_RULE_KIND	= 7,
	STACKMAP_RULE_CALL	= 1,	/* the return address is below the new stack pointer */
	STACKMAP_RULE_REGISTERS	= 2,	/* a struct pt_regs is at the new stack pointer */
	STACKMAP_RULE_END	= 3,	/* there is no caller */
	STACKMAP_RULE_SLOW	= 4,	/* ask the kernel's unwinder */
	STACKMAP_RULE_BASE_BP	= 1 << 3,
	STACKMAP_RULE_BP_AT_SP	= 1 << 4,	/* offset from the new stack pointer */
	STACKMAP_RULE_BP_AT_BP	= 2 << 4,	/* or from the old frame pointer */
	STACKMAP_RULE_SHIFT	= 8,
	STACKMAP_RULE_BP_SHIFT	= 20,
	STACKMAP_RULE_OFFSET	= 12,	/* bits of each offset, signed */
};

/* Words of the stack that rules are learnt on. */
#define STACKMAP_LEARN_WORDS	512

/* What the kernel's unwinder did on that stack. Values that it did not read there are any. */
struct stackmap_tried {
	bool next;		/* it found a frame */
	bool signal;		/* that was interrupted; as it was if it never looked */
	bool same_stack;	/* on the same stack */
	bool some_regs;		/* with registers */
	bool all_regs;
	__u64 ip;		/* the word that the instruction pointer was read from */
	__u64 bp_word;		/* the word that the frame pointer was read from */
	__u64 bp;		/* in bytes from the start: the frame pointer, */
	__u64 sp;		/* the stack pointer, */
	__u64 regs;		/* and where the registers are */
};

enum stackmap_hook {
	STACKMAP_HOOK_JUMP,
	STACKMAP_HOOK_KPROBE,
};

/* shim/unexported.c: what the kernel has but does not export. Process context. */
int stackmap_symbols_resolve(void);
const void *stackmap_btf(size_t *len);

/* tracefs/tracefs.c: tracefs' root and what hangs below it. Process context. */
extern struct module stackmap_gate;
int stackmap_tracefs_allowed(void);
int stackmap_tracefs_mount(void);
void stackmap_tracefs_unmount(void);
int stackmap_tracefs_exists(const char *path);
int stackmap_tracefs_find(const char *dir, struct stackmap_served *found);
int stackmap_tracefs_create(const char *dir, const char *name, umode_t mode,
			    const struct file_operations *fops, struct dentry **dentry);
void stackmap_tracefs_remove(struct dentry *dentry);
void stackmap_tracefs_drain(void);
bool stackmap_tracefs_enter(void);
void stackmap_tracefs_leave(void);
int stackmap_tracefs_layout(struct stackmap_layout *layout);
struct file *stackmap_instance_get(const char *dir, struct stackmap_served *found);
void stackmap_instance_put(struct file *file);
bool stackmap_tracing_is_on(struct trace_array *tr);

/* record/event.c: the events in the ring buffer. Any context, but for stackmap_event_announce(). */
int stackmap_event_type(void);
void stackmap_event_announce(struct trace_event_file *file);
enum stackmap_reserved stackmap_id_reserve(const struct stackmap_site *site,
					   struct ring_buffer_event **event);
void stackmap_id_commit(const struct stackmap_site *site, struct ring_buffer_event *event,
			unsigned int id);
void stackmap_id_discard(const struct stackmap_site *site, struct ring_buffer_event *event);
bool stackmap_full_write(const struct stackmap_site *site, const struct stackmap_layout *layout,
			 const unsigned long *calls, unsigned int nr);

/* record/print.c, and linux/trace_seq.h: what a reader of the trace is shown. Any context. */
void trace_seq_printf(struct trace_seq *s, const char *fmt, ...);
void stackmap_seq_ip(struct trace_seq *s, unsigned long ip, unsigned long flags);
unsigned int stackmap_seq_form(struct trace_seq *s, unsigned long flags);
bool stackmap_seq_full(struct trace_seq *s);

/* modules/notifier.c: the text of other modules. Process context; what is at an address: any. */
int stackmap_modules_watch(void);
void stackmap_modules_unwatch(void);
int stackmap_symbol(char text[STACKMAP_SYMBOL_LEN], unsigned long addr);

/* unwind/orc.c: walks a stack by rules. Any context, but for stackmap_unwind_prepare(). */
int stackmap_unwind_prepare(void);
bool stackmap_unwind_keeps(unsigned long ip);
void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_tried *tried);
int stackmap_unwind(const unsigned long *frame, unsigned long *calls, unsigned int size,
		    unsigned int skip);
void stackmap_unwound_whole(void);
unsigned long stackmap_unwound(enum stackmap_unwound how);

/* unwind/verify.c: whether that is what the kernel's unwinder finds. */
int stackmap_unwind_self_test(void);
unsigned long stackmap_verified(void);
unsigned long stackmap_mismatches(void);

/* record/entry.c: the function that runs in place of __ftrace_trace_stack(). Process context. */
void stackmap_stack_use(bool rules, bool check);
bool stackmap_stack_by_rules(void);
int stackmap_stack_alloc(void);
void stackmap_stack_free(void);
unsigned int stackmap_contexts(void);
unsigned long stackmap_stack_nested(void);
int stackmap_serve(const struct stackmap_served *new);
void stackmap_unserve(const struct trace_array *tr);

/* hook/kprobe.c, hook/jump.c: how the kernel calls it. Process context, callers serialise. */
int stackmap_hook_check(enum stackmap_hook hook);
int stackmap_hook_install(enum stackmap_hook hook);
int stackmap_hook_remove(enum stackmap_hook hook);
void stackmap_hook_drain(void);
unsigned long stackmap_hook_missed(void);

/* record/growth.c: asks for memory from any context; stackmap_grow() then runs in a worker. */
void stackmap_growth_kick(void);
void stackmap_growth_stop(void);

/* The Rust side. */

/*
 * Records one stack. Called with preemption off, in any context, NMI included; @context is this
 * CPU's at this level of nesting, below stackmap_contexts(); @watched says whether RCU is watching.
 */
void stackmap_record(const struct stackmap_site *site, unsigned int context,
		     const unsigned long *calls, unsigned int nr, bool watched);

/*
 * The rule of the call that returns to an address, 0 if none is known; and the same after it has
 * been learnt, 0 if none is kept. Any context, learning only where RCU is watching.
 */
__u32 stackmap_rule(unsigned long ip);
__u32 stackmap_learn(unsigned long ip);

/*
 * Shows a reader of the trace the event of an id. Any context: @dumped says that a dying kernel
 * shows it. @flags are those that the event's print function was called with.
 */
void stackmap_print(struct trace_seq *s, int stack_id, unsigned long flags, bool dumped);

/*
 * Text of a module is there and nothing of it has run; or nothing of it will run any more, and its
 * symbols are known still. @nr parts, all at once. Process context, may sleep.
 */
void stackmap_text_coming(const struct stackmap_text *text, unsigned int nr);
void stackmap_text_going(const struct stackmap_text *text, unsigned int nr);

/* Adds memory to the map. Process context. Returns 0 or -ENOMEM: try again later. */
int stackmap_grow(void);

#endif /* STACKMAP_SHIM_H */
