// SPDX-License-Identifier: GPL-2.0
/*
 * The events for a stack in the ring buffer: ftrace:stack_id of this module, and the kernel's own
 * ftrace:kernel_stack.
 */
#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/ring_buffer.h>
#include <linux/string.h>
#include <linux/trace_events.h>
#include <linux/trace_seq.h>

#include "../shim/shim.h"

struct stack_id_entry {
	struct trace_entry ent;
	int stack_id;
};

static enum print_line_t stack_id_print(struct trace_iterator *iter, int flags,
					struct trace_event *event)
{
	const struct stack_id_entry *entry = (void *)iter->ent;

	/* Interrupts are off only while a dying kernel or its debugger dumps the ring buffers. */
	stackmap_print(&iter->seq, entry->stack_id, flags, irqs_disabled());
	return trace_handle_return(&iter->seq);
}

static struct trace_event_functions stack_id_funcs = {
	.trace = stack_id_print,
};

static struct trace_event_fields stack_id_fields[] = {
	{
		.type = "int",
		.name = "stack_id",
		.size = sizeof_field(struct stack_id_entry, stack_id),
		.align = __alignof__(int),
		.is_signed = 1,
		.filter_type = FILTER_OTHER,
	},
	{ }
};

static struct trace_event_class stack_id_class = {
	.system = "ftrace",
	.fields_array = stack_id_fields,
	.fields = LIST_HEAD_INIT(stack_id_class.fields),
	.raw_init = trace_event_raw_init,
};

static struct trace_event_call stack_id_call = {
	.class = &stack_id_class,
	.name = "stack_id",
	.event.funcs = &stack_id_funcs,
	.print_fmt = "\"<stack_id %d>\", REC->stack_id",
	.module = THIS_MODULE,
	.flags = TRACE_EVENT_FL_IGNORE_ENABLE,
};

/* At module load the core finds the event in this section and assigns its number. */
static struct trace_event_call *stack_id_ptr __used __section("_ftrace_events") = &stack_id_call;

/**
 * stackmap_event_type - the number of ftrace:stack_id in the ring buffer
 *
 * Context: any.
 * Return: the number, or 0 if the core has not registered the event.
 */
int stackmap_event_type(void)
{
	return stack_id_call.event.type;
}

bool stackmap_event_is(const struct trace_event_file *file)
{
	return file->event_call == &stack_id_call;
}

/**
 * stackmap_event_announce - mark a ring buffer that will contain ftrace:stack_id events
 * @file: the event in the trace array of the ring buffer
 *
 * At module unload the core clears each ring buffer in which an event of the module was enabled:
 * the event's number may be reused. ftrace:stack_id has no "enable" file, so mark it as enabled.
 *
 * Context: process.
 */
void stackmap_event_announce(struct trace_event_file *file)
{
	set_bit(EVENT_FILE_FL_WAS_ENABLED_BIT, &file->flags);
}

/**
 * stackmap_id_reserve - reserve room for a ftrace:stack_id event
 * @site: where it goes
 * @event: set to the event
 *
 * Either stackmap_id_commit() or stackmap_id_discard() must follow on the same CPU.
 *
 * The core reserves in the ring buffer of the trace array, which is not always that of the site:
 * trace_array_printk() passes the top-level trace array but writes to another ring buffer. Ids are
 * not written there.
 *
 * Context: any, preemption off.
 * Return: STACKMAP_RESERVED, or the reason why no event is reserved.
 */
enum stackmap_reserved stackmap_id_reserve(const struct stackmap_site *site,
					   struct ring_buffer_event **event)
{
	struct trace_buffer *buffer;

	*event = trace_event_buffer_lock_reserve(&buffer, site->file, stack_id_call.event.type,
						 sizeof(struct stack_id_entry), site->trace_ctx);
	if (likely(buffer == site->buffer))
		return *event ? STACKMAP_RESERVED : STACKMAP_NO_ROOM;
	if (*event)
		ring_buffer_discard_commit(buffer, *event);
	return STACKMAP_FOREIGN;
}

void stackmap_id_commit(const struct stackmap_site *site, struct ring_buffer_event *event,
			unsigned int id)
{
	struct stack_id_entry *entry = ring_buffer_event_data(event);

	entry->stack_id = id;
	static_call(stackmap_commit)(site->buffer, event);
}

void stackmap_id_discard(const struct stackmap_site *site, struct ring_buffer_event *event)
{
	ring_buffer_discard_commit(site->buffer, event);
}

/**
 * stackmap_full_write - write a ftrace:kernel_stack event
 * @site: where it goes
 * @calls: the frames
 * @nr: their number
 *
 * Context: any, preemption off.
 * Return: whether the event was written.
 */
bool stackmap_full_write(const struct stackmap_site *site, const unsigned long *calls,
			 unsigned int nr)
{
	const struct stackmap_layout *layout = &stackmap_facts.layout;
	size_t frames = nr * sizeof(*calls);
	struct ring_buffer_event *event =
		ring_buffer_lock_reserve(site->buffer, layout->caller_offset + frames);
	void *entry;

	if (!event)
		return false;
	entry = ring_buffer_event_data(event);
	tracing_generic_entry_update(entry, layout->type, site->trace_ctx);
	*(int *)(entry + layout->size_offset) = nr;
	memcpy(entry + layout->caller_offset, calls, frames);
	static_call(stackmap_commit)(site->buffer, event);
	return true;
}
