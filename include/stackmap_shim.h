/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The interface between the module's Rust and C: the functions and types that both use.
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
struct mm_struct;
struct module;
struct ring_buffer_event;
struct task_struct;
struct trace_array;
struct trace_buffer;
struct trace_event_file;
struct trace_seq;
struct unwind_state;
struct vfsmount;

/* Frames that the kernel records of one stack at most. */
#define STACKMAP_MAX_FRAMES	1024

/* What the core writes for a frame inside an ftrace trampoline; kernel/trace/trace.h. */
#define STACKMAP_TRAMPOLINE_MARKER	0x7fffffff

/*
 * Stacks that can be recorded on one CPU on top of each other: one for each bit of the recursion
 * guard that a recorder holds (task, softirq, hardirq, NMI, and a transition between them).
 */
#define STACKMAP_LEVELS		5

/* Trace arrays that can be served at one time: the top level, then instances. */
#define STACKMAP_SLOTS		(1 + 64)

/* Bytes of the buffer of stackmap_symbol(); the kernel's own limit is lower. */
#define STACKMAP_SYMBOL_LEN	1024

/* The fields of ftrace:kernel_stack, as the running kernel describes them. */
struct stackmap_layout {
	__s32 type;		/* the event's number in the ring buffer */
	__u32 nr_fields;	/* fields after the common ones */
	__u32 size_offset;	/* of the field "size" (an int), 0 if there is none */
	__u32 size_len;
	__u32 caller_offset;	/* of the field "caller" (unsigned long[]), 0 if there is none */
	__u32 caller_len;
};

/* Where an event goes: what the caller of __ftrace_trace_stack() passed, and by which event. */
struct stackmap_site {
	struct stackmap_served *slot;	/* the trace array */
	struct trace_buffer *buffer;
	unsigned int trace_ctx;
};

/* How a frame is printed. */
enum stackmap_seq_form {
	STACKMAP_SEQ_OFFSET	= 1,	/* name+0x48/0xc0 [module], instead of name */
	STACKMAP_SEQ_ADDR	= 2,	/* with the address after it */
};

/* A trace array whose stacks become ids. */
struct stackmap_served {
	struct trace_array *tr;
	struct trace_event_file *file;	/* its ftrace:stack_id */
	struct trace_event_file *user_files[2];	/* its ftrace:stack_id_user and user_stack_id */
	struct ftrace_ops *ops;		/* its function tracer's; NULL before it was seen */
	__u64 rule;			/* of the call of that tracer; 0 before it was learnt */
	struct trace_buffer *buffer;	/* one of its ring buffers, NULL before one was seen */
};

/* A part of a module's text, up to @end. */
struct stackmap_text {
	__u64 start, end;
};

/* What has become of an event for an id, or why none is reserved. */
enum stackmap_unreserved {
	STACKMAP_WRITTEN,
	STACKMAP_REFUSED,	/* the ring buffer refuses the event */
	STACKMAP_FOREIGN,	/* the ring buffer is not that of the trace array */
};

/* Where a walk begins, and the stack of the task. */
struct stackmap_caller {
	__u64 ip;		/* where its function goes on */
	__u64 sp, bp;
	__u64 begin;		/* the stack, of STACKMAP_STACK_SIZE bytes */
};

/* A frame of a walk, and the stack that it is on. */
struct stackmap_frame {
	__u64 ip;		/* where its function goes on */
	__u64 sp, bp;
	__u64 begin, end;	/* the stack */
	__u64 registers;	/* where the walk has found them, if @interrupted; or 0 */
	bool interrupted;	/* @ip is no return address */
	bool irq_stack;		/* it is the CPU's for interrupts; set by stackmap_unwind_begin() */
};

/* What the hot path must know of the running kernel. */
struct stackmap_facts {
	struct stackmap_layout layout;
	__u64 stext, etext;		/* the kernel's text */
	__u64 return_to_handler;	/* where tracers have functions return; or 0 */
	__u64 rethook_trampoline;
	__u64 user_end;			/* of the addresses of user space */
#ifdef CONFIG_ARM64
	__u64 signature;		/* the bits of a return address that may be one */
#endif
};

/* It does not change after load. */
extern struct stackmap_facts stackmap_facts;

/* A stack to record: all that is known where __ftrace_trace_stack() would have walked it. */
struct stackmap_stack {
	struct stackmap_site site;
	unsigned int context;	/* this CPU's at this level of nesting */
	unsigned int skip;	/* callers to skip, the innermost */
	bool watched;		/* RCU is watching: a grace period waits for this CPU */
	bool from_caller;	/* it can be walked by rules; not from registers */
	bool tracer_unknown;	/* stackmap_find_tracer() may; after stackmap_set_tracer() */
	unsigned int retries;	/* how often the kernel's unwinder was asked again */
	unsigned int nr;	/* frames that are known before the walk */
	int nr_kernel;		/* frames that the kernel's unwinder has found, -1: not asked */
	unsigned long *ips;	/* STACKMAP_MAX_FRAMES initialised words, innermost first */
	unsigned long *kernel;	/* the same for the kernel's unwinder */
	struct stackmap_caller caller;	/* on that stack, or on another one */
	struct stackmap_text trampoline;	/* of the trace array's own tracer; as well */
	struct unwind_state *state;	/* for stackmap_unwind_begin() or _step(), which set it */
};

/* Words of the stack that rules are learnt on. */
#define STACKMAP_LEARN_WORDS	512

/* Two words of it are the addresses of two others. Those after each are not. */
#define STACKMAP_LEARN_LINK_0	2
#define STACKMAP_LEARN_LINKED_0	200
#define STACKMAP_LEARN_LINK_1	10
#define STACKMAP_LEARN_LINKED_1	250

/* The unwinder's step on that stack. Fields not read from this stack are undefined. */
struct stackmap_trial {
	bool next;		/* the unwinder found a frame */
	bool signal;		/* that frame was interrupted; unchanged if not checked */
	bool same_stack;	/* on the same stack */
	bool some_regs;		/* with registers */
	bool all_regs;
	__u64 ip;		/* the word that the instruction pointer was read from */
	__u64 bp_word;		/* the word that the frame pointer was read from */
	__u64 bp;		/* in bytes from the start: the frame pointer, */
	__u64 sp;		/* the stack pointer, */
	__u64 regs;		/* and where the registers are */
};

/* What a file is known by, as long as it is not written to. */
struct stackmap_file_key {
	__u64 dev, ino;
	__u64 medium;		/* of the device, a number that no other one ever has */
	__u64 inode;		/* tells apart inodes of one number; 0: no two have the same */
	__s64 ctime_sec;
	__u32 ctime_nsec;
	__u32 generation;	/* of the inode number */
	__u64 size;
	__u64 owner;		/* user ID in the first user namespace */
	__u64 type;		/* magic number of the file system */
};

enum stackmap_mapping_kind {
	STACKMAP_MAPPING_DATA,		/* not executable */
	STACKMAP_MAPPING_SPECIAL,	/* made by the kernel, as for uprobes, but no vDSO */
	STACKMAP_MAPPING_OTHER,		/* other code of no file */
	STACKMAP_MAPPING_FILE,
	STACKMAP_MAPPING_VDSO,
	STACKMAP_MAPPING_VDSO32,	/* that of 32-bit tasks */
};

/* A part of a task's address space. */
struct stackmap_mapping {
	__u64 start, end;
	__u64 offset;		/* of @start in the file, in bytes */
	enum stackmap_mapping_kind kind;
	struct stackmap_file_key file;
	bool changes;		/* processes may write to what is mapped */
};

/* Distinct mappings that frames of one stack are looked for in. */
#define STACKMAP_MAPPINGS	64

/* Bytes of the buffer of a path; a longer one is not shown. */
#define STACKMAP_PATH_LEN	4096

/* What is shown of a file. */
struct stackmap_binary {
	__u32 build_id_len;	/* 0: none is known */
	__u32 path_len;
	__u8 build_id[20];
	char path[STACKMAP_PATH_LEN];
};

/* A task with its address space, and what distinguishes its program from all others. */
struct stackmap_process {
	struct task_struct *task;
	struct mm_struct *mm;
	__u32 tgid;
	__u32 user;		/* who is charged for it: a user ID in the first user namespace */
	__u64 start_time;	/* of the process, in ns since boot */
	__u64 exec_id;		/* counts its calls of exec */
	bool in_exec;		/* the task is inside one */
	__u64 stack;		/* the stack pointer that its program began with */
};

/* Where a task left user space. */
struct stackmap_registers {
	__u64 ip, sp, fp;
	__u32 word;		/* bytes of a word of its stack; 0: it has none */
};

/* A file that is read from the page cache. */
struct stackmap_file {
	struct file *file;
	struct folio *folio;	/* that was read last, with a reference; or NULL */
};

/* A task that does not run, and where it left user space. */
struct stackmap_sleeper {
	struct stackmap_process process;
	bool unasked;		/* no request is needed; set before stackmap_sleeper_begin() */
	__u64 cookie;		/* of this entry into the kernel; unasked: of the task */
	__u64 requested;	/* the bits of the works to bind for */
	__u64 switches;		/* counts how often the task has left a CPU */
	struct stackmap_registers registers;
};

/* What becomes of a request for a user stack. */
enum stackmap_request {
	STACKMAP_REQUEST_NONE,	/* there is no user stack */
	STACKMAP_REQUEST_FIRST,	/* the first of this trace array in this entry into the kernel */
	STACKMAP_REQUEST_AGAIN,
};

/* What is counted of user stacks; Documentation/trace/ftrace-stackmap.rst describes each. */
enum stackmap_user_counter {
	STACKMAP_USER_REQUESTED,
	STACKMAP_USER_REQUESTED_AGAIN,
	STACKMAP_USER_IN_NMI,
	STACKMAP_USER_NOT_USER,
	STACKMAP_USER_REFUSED,
	STACKMAP_USER_LATE,
	STACKMAP_USER_DELIVERED,
	STACKMAP_USER_KNOWN,
	STACKMAP_USER_BOUND,
	STACKMAP_USER_EXEC_FLUSHED,
	STACKMAP_USER_EXEC_LATE,
	STACKMAP_USER_EXEC_STALE,
	STACKMAP_USER_EXIT_EVENTS,
	STACKMAP_USER_EXIT_BOUND,
	STACKMAP_USER_EXIT_LATE,
	STACKMAP_USER_UNBOUND,
	STACKMAP_USER_COMPLETE,
	STACKMAP_USER_CUT_NO_RULE,
	STACKMAP_USER_CUT_FAULT,
	STACKMAP_USER_CUT_DEPTH,
	STACKMAP_USER_CUT_FP,
	STACKMAP_USER_CUT_NO_MEMORY,
	STACKMAP_USER_CUT_BAD_ADDRESS,
	STACKMAP_USER_CUT_NO_CFI,
	STACKMAP_USER_CUT_COMPLEX_CFI,
	STACKMAP_USER_GUESSED,
	STACKMAP_USER_RAW_FRAMES,
	STACKMAP_USER_BINARIES_FULL,
	STACKMAP_USER_DROP_SHARE,
	STACKMAP_USER_SETTLED,
	STACKMAP_USER_SETTLE_LOST,
	STACKMAP_USER_RULES_LEARNT,
	STACKMAP_USER_RULES_NONE,
	STACKMAP_USER_RULES_ABSENT,
	STACKMAP_USER_TRACKED,
	STACKMAP_USER_COUNTERS
};

/* How two walks of one stack differ. */
struct stackmap_mismatch {
	__u32 frame;		/* the first one that differs, counted from the innermost */
	__u32 nr, nr_kernel;	/* frames of both */
	__u64 ip, kernel_ip;	/* 0 where there is none */
};

enum stackmap_hook {
	STACKMAP_HOOK_JUMP,
	STACKMAP_HOOK_KPROBE,
};

/* shim/unexported.c, prototypes.c: what the kernel has but does not export. Process context. */
int stackmap_symbols_resolve(void);
int stackmap_prototypes_check(void);

/* tracefs/tracefs.c: tracefs' root and what hangs below it. Process context. */
extern struct module stackmap_gate;
int stackmap_tracefs_allowed(void);
struct vfsmount *stackmap_tracefs_mount(void);
void stackmap_tracefs_unmount(struct vfsmount *root);
int stackmap_tracefs_exists(struct vfsmount *root, const char *path);
int stackmap_tracefs_find(struct vfsmount *root, const char *dir, struct stackmap_served *found);
int stackmap_tracefs_create(struct vfsmount *root, const char *dir, const char *name, umode_t mode,
			    const struct file_operations *fops, struct dentry **dentry);
void stackmap_tracefs_remove(struct dentry *dentry);
void stackmap_tracefs_drain(void);
bool stackmap_tracefs_enter(void);
void stackmap_tracefs_leave(void);
const struct stackmap_layout *stackmap_tracefs_layout(struct vfsmount *root);
struct file *stackmap_instance_get(struct vfsmount *root, const char *dir,
				   struct stackmap_served *found);
bool stackmap_tracing_is_on(struct trace_array *tr);

/* record/event.c: the events in the ring buffer. Any context, but for stackmap_event_announce(). */
int stackmap_event_type(void);
void stackmap_event_announce(const struct stackmap_served *served);
enum stackmap_unreserved stackmap_id_write(const struct stackmap_site *site, unsigned int id);
enum stackmap_unreserved stackmap_id_user_write(const struct stackmap_site *site, unsigned int id,
						__u64 cookie);
struct ring_buffer_event *stackmap_id_reserve(const struct stackmap_site *site, bool has_user);
void stackmap_id_commit(const struct stackmap_site *site, struct ring_buffer_event *event,
			unsigned int id, bool has_user, __u64 cookie);
void stackmap_id_discard(const struct stackmap_site *site, struct ring_buffer_event *event);
bool stackmap_user_bind(const struct stackmap_served *served, __u64 cookie, unsigned int id);
bool stackmap_full_write(const struct stackmap_site *site, const unsigned long *calls,
			 unsigned int nr);

/* record/print.c, and linux/trace_seq.h: what a reader of the trace is shown. Any context. */
void trace_seq_putmem(struct trace_seq *s, const void *mem, unsigned int len);
void stackmap_seq_ip(struct trace_seq *s, unsigned long ip, unsigned long flags);
unsigned int stackmap_seq_form(struct trace_seq *s, unsigned long flags);
bool stackmap_seq_full(struct trace_seq *s);

/* modules/notifier.c: the text of other modules. Process context; what is at an address: any. */
int stackmap_modules_watch(void);
void stackmap_modules_unwatch(void);
int stackmap_symbol(char text[STACKMAP_SYMBOL_LEN], unsigned long addr);

/* unwind/kernel_unwinder.c: what the walk needs of it. Any context, but to prepare. */
int stackmap_unwind_prepare(void);
bool stackmap_unwind_is_stable(unsigned long ip);
bool stackmap_unwind_is_bpf(unsigned long ip);
bool stackmap_unwind_is_text(unsigned long ip);

/* unwind/orc.c, frame_pointer.c, frame_record.c: steps of the kernel's unwinder. Any context. */
void stackmap_unwind_try(unsigned long ip, unsigned int sp, unsigned int bp, bool signal,
			 struct stackmap_trial *trial);
bool stackmap_unwind_begin(struct stackmap_frame *frame, struct unwind_state *state);
bool stackmap_unwind_step(struct stackmap_frame *frame, struct unwind_state *state, bool is_set);

/* unwind/verify.c: whether rules give what the kernel's unwinder finds. Any, but the test. */
int stackmap_unwind_test(void);
void stackmap_mismatch_report(const struct stackmap_mismatch *found);
void stackmap_mismatch_flush(void);

/* record/entry.c: the function that runs in place of __ftrace_trace_stack(). Process context. */
int stackmap_stack_alloc(bool rules, bool verify);
void stackmap_stack_free(void);
unsigned long stackmap_stack_nested(void);
void stackmap_serve(unsigned int nr, const struct stackmap_served *new);
void stackmap_unserve(unsigned int nr);
/* Any context. */
bool stackmap_is_tracer(unsigned long ip);
void stackmap_set_tracer(struct stackmap_stack *stack);
void stackmap_find_tracer(struct stackmap_stack *stack, const unsigned long *ips, unsigned int nr);

/* hook/kprobe.c, hook/jump_*.c: how the kernel calls it. Process context, callers serialise. */
int stackmap_jump_check(void);
int stackmap_hook_install(enum stackmap_hook hook);
int stackmap_hook_remove(enum stackmap_hook hook);
void stackmap_hook_drain(void);
unsigned long stackmap_hook_missed(void);

/* user/user.c: requests for user stacks. Process context, callers serialise. */
int stackmap_user_resolve(void);
int stackmap_user_begin(unsigned int nr);
void stackmap_user_ask(unsigned int nr, bool on);
void stackmap_user_cancel(unsigned int nr);
void stackmap_user_end(void);
void stackmap_user_unprobe(void);
bool stackmap_user_unprobe_idle(void);
/* Any context. */
enum stackmap_request stackmap_user_request(struct stackmap_served *served, __u64 *cookie,
					    __u64 *exec_id);
unsigned int stackmap_this_cpu(void);
unsigned int stackmap_cpus(void);
/* An instruction of a program, and what follows it. */
struct stackmap_code {
	__u8 bytes[16];
};

/* Any context. */
unsigned int stackmap_instruction_length(const struct stackmap_code *code);
void stackmap_preempt_disable(void);
void stackmap_preempt_enable(void);

/* user/counts.c: what is counted of user stacks. Any context. */
void stackmap_user_count(enum stackmap_user_counter counter);
void stackmap_user_add(enum stackmap_user_counter counter, unsigned long nr);
unsigned long stackmap_user_counted(enum stackmap_user_counter counter);

/* user/mappings.c: what user addresses lie in. Task context, may sleep. */
bool stackmap_user_mapping(const struct stackmap_process *process, unsigned long address,
			   struct stackmap_mapping *mapping);
bool stackmap_file_begin(const struct stackmap_process *process, unsigned long address,
			 const struct stackmap_file_key *key, struct stackmap_file *file);
bool stackmap_file_read(struct stackmap_file *file, __u64 offset, void *bytes, unsigned int nr);
void stackmap_file_end(struct stackmap_file *file);
__u64 stackmap_user_register(const struct stackmap_process *process, unsigned int number);
__u64 stackmap_user_original(const struct stackmap_process *process, __u64 ip, __u64 slot);
__u64 stackmap_vdso_size(const struct stackmap_process *process);
bool stackmap_vdso_read(const struct stackmap_process *process, __u64 offset, void *bytes,
			unsigned int nr);
void stackmap_user_registers(struct stackmap_registers *registers);
bool stackmap_user_read(unsigned long address, __u64 *words, unsigned int nr);
bool stackmap_user_binary(const struct stackmap_process *process, unsigned long ip,
			  const struct stackmap_file_key *key, struct stackmap_binary *binary);
void stackmap_process_current(struct stackmap_process *process);
void stackmap_process_of(struct task_struct *task, struct mm_struct *mm,
			 struct stackmap_process *process);

/* user/readahead.c: parts of files that are not in memory. Task context. */
void stackmap_file_want(struct file *file, __u64 offset);
void stackmap_readahead_drain(void);

/* user/settle.c: stacks of tasks that stay in the kernel. Process context, callers serialise. */
unsigned int stackmap_sleepers(struct task_struct **tasks, unsigned int max, pid_t pid);
bool stackmap_sleeper_begin(struct task_struct *task, struct stackmap_sleeper *sleeper);
bool stackmap_sleeper_stays(const struct stackmap_sleeper *sleeper);
int stackmap_sleeper_word(const struct stackmap_sleeper *sleeper, unsigned long address,
			  __u64 *word);
bool stackmap_sleeper_bind(const struct stackmap_sleeper *sleeper, unsigned int id);
void stackmap_sleeper_end(struct stackmap_sleeper *sleeper);

/* record/growth.c: asks for memory from any context; stackmap_grow() then runs in a worker. */
void stackmap_growth_kick(void);
void stackmap_growth_stop(void);

/* The Rust side. */

/*
 * Walks and records a stack. Context: any, NMI included, preemption off. Returns false if the
 * caller has to set the frames of the kernel's unwinder and call again.
 */
bool stackmap_record(struct stackmap_stack *stack);

/* The same, and asks for the user stack. */
bool stackmap_record_user(struct stackmap_stack *stack);

/*
 * Returns the id of the current task's user stack, of @nr return addresses, and remembers it for
 * the cookie; 0 if it is not kept. Task context, may sleep.
 */
unsigned int stackmap_user_id(const unsigned long *ips, unsigned int nr, __u64 cookie);

/* Returns the id that a cookie is bound to, 0 if none is known. Any context. */
unsigned int stackmap_user_known(__u64 cookie);

/* Walks a stack by rules, without recording. Returns the number of frames, or -1. */
int stackmap_walk(struct stackmap_stack *stack);

/*
 * Prints the event of an id. Context: any. @dumped: the kernel is dying and dumps its ring buffers.
 * @flags: the flags of the event's print function.
 */
void stackmap_print(struct trace_seq *s, int stack_id, unsigned long flags, bool dumped);

/* The same for an event that has a user stack; its cookie says which. */
void stackmap_print_user(struct trace_seq *s, int stack_id, __u64 cookie, unsigned long flags,
			 bool dumped);

/*
 * Called when module text is added, before any of it runs; or removed, after all of it has run and
 * while kallsyms knows its symbols. @nr parts, all at once. Process context, may sleep.
 */
void stackmap_text_changes(const struct stackmap_text *text, unsigned int nr, bool removed);

/* Adds memory to the map. Process context. Returns 0 or -ENOMEM: try again later. */
int stackmap_grow(void);

#endif /* STACKMAP_SHIM_H */
