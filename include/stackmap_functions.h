/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions of the kernel that are not exported, and that no header has which a module may include.
 *
 * When the module is loaded, src/shim/prototypes.c compares each of these with the kernel's BTF.
 */
#ifndef STACKMAP_FUNCTIONS_H
#define STACKMAP_FUNCTIONS_H

#include <linux/types.h>

struct pt_regs;
struct ring_buffer_event;
struct trace_array;
struct trace_buffer;
struct trace_seq;

void __ftrace_trace_stack(struct trace_array *tr, struct trace_buffer *buffer,
			  unsigned int trace_ctx, int skip, struct pt_regs *regs);
void trace_buffer_unlock_commit_nostack(struct trace_buffer *buffer,
					struct ring_buffer_event *event);
int seq_print_ip_sym(struct trace_seq *s, unsigned long ip, unsigned long sym_flags);
bool tracer_tracing_is_on(struct trace_array *tr);

#endif /* STACKMAP_FUNCTIONS_H */
