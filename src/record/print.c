// SPDX-License-Identifier: GPL-2.0
/*
 * Prints frames for a reader of "trace" or "trace_pipe", in the format of the core.
 *
 * Context of all functions: any.
 */
#include <linux/string.h>
#include <linux/trace_seq.h>

#include "../shim/shim.h"

/**
 * stackmap_seq_ip - print a frame as the core prints one of a full stack
 * @s: where
 * @ip: its address
 * @flags: the flags that the event's print function was called with
 */
void stackmap_seq_ip(struct trace_seq *s, unsigned long ip, unsigned long flags)
{
	static_call(stackmap_seq_print_ip)(s, ip, flags);
}

/**
 * stackmap_seq_form - find out how stackmap_seq_ip() prints
 * @s: where something else will be printed
 * @flags: as for stackmap_seq_ip()
 *
 * The meaning of the flags is private to the core. So print the address of a known function and
 * inspect the text.
 *
 * Return: an or of enum stackmap_seq_form.
 */
unsigned int stackmap_seq_form(struct trace_seq *s, unsigned long flags)
{
	size_t len = s->seq.len;
	unsigned int form = 0;
	const char *text;

	if (trace_seq_has_overflowed(s))
		return 0;
	stackmap_seq_ip(s, (unsigned long)stackmap_symbols.trace_stack, flags);
	text = s->buffer + len;
	if (memchr(text, '+', trace_seq_used(s) - len))
		form |= STACKMAP_SEQ_OFFSET;
	if (memchr(text, '<', trace_seq_used(s) - len))
		form |= STACKMAP_SEQ_ADDR;
	/* If the buffer is full now, it stays full, and the core prints the event again. */
	s->seq.len = len;
	return form;
}

/**
 * stackmap_seq_full - whether the trace_seq is full
 * @s: where it was printed
 *
 * Return: true or false.
 */
bool stackmap_seq_full(struct trace_seq *s)
{
	return trace_seq_has_overflowed(s);
}
