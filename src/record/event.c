// SPDX-License-Identifier: GPL-2.0
/*
 * The events for a stack in the ring buffer: ftrace:stack_id of this module, and the kernel's own
 * ftrace:kernel_stack.
 */
#include <linux/err.h>
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

/* A kernel stack, and the cookie of the user stack that led there. */
struct stack_id_user_entry {
	struct trace_entry ent;
	int stack_id;
	u32 cookie[2];	/* low and high half: a u64 needs another alignment */
};

/* The user stack of a cookie. */
struct user_stack_id_entry {
	struct trace_entry ent;
	int user_stack_id;
	u32 cookie[2];
};

static u64 cookie_of(const u32 halves[2])
{
	return halves[0] | (u64)halves[1] << 32;
}

static void set_cookie(u32 halves[2], u64 cookie)
{
	halves[0] = cookie;
	halves[1] = cookie >> 32;
}

static enum print_line_t stack_id_print(struct trace_iterator *iter, int flags,
					struct trace_event *event)
{
	const struct stack_id_entry *entry = (void *)iter->ent;

	/* Interrupts are off only while a dying kernel or its debugger dumps the ring buffers. */
	stackmap_print(&iter->seq, entry->stack_id, flags, irqs_disabled());
	return trace_handle_return(&iter->seq);
}

static enum print_line_t stack_id_user_print(struct trace_iterator *iter, int flags,
					     struct trace_event *event)
{
	const struct stack_id_user_entry *entry = (void *)iter->ent;

	stackmap_print_user(&iter->seq, entry->stack_id, cookie_of(entry->cookie), flags,
			    irqs_disabled());
	return trace_handle_return(&iter->seq);
}

static enum print_line_t user_stack_id_print(struct trace_iterator *iter, int flags,
					     struct trace_event *event)
{
	const struct user_stack_id_entry *entry = (void *)iter->ent;

	trace_seq_printf(&iter->seq, "<user_stack_id %d> for %u:%u\n", entry->user_stack_id,
			 entry->cookie[0], entry->cookie[1]);
	return trace_handle_return(&iter->seq);
}

#define ID_FIELD(field) {					\
	.type		= "int",				\
	.name		= field,				\
	.size		= sizeof(int),				\
	.align		= __alignof__(int),			\
	.is_signed	= 1,					\
	.filter_type	= FILTER_OTHER,				\
}

#define COOKIE_FIELD {						\
	.type		= "u64",				\
	.name		= "cookie",				\
	.size		= sizeof(u64),				\
	.align		= __alignof__(u32),			\
	.is_signed	= 0,					\
	.filter_type	= FILTER_OTHER,				\
}

static struct trace_event_fields stack_id_fields[] = {
	ID_FIELD("stack_id"), { }
};

static struct trace_event_fields stack_id_user_fields[] = {
	ID_FIELD("stack_id"), COOKIE_FIELD, { }
};

static struct trace_event_fields user_stack_id_fields[] = {
	ID_FIELD("user_stack_id"), COOKIE_FIELD, { }
};

/*
 * An event of the system "ftrace". At module load the core finds the pointer in its section and
 * assigns the number of the event.
 */
#define EVENT(event_name, format)						\
static struct trace_event_functions event_name##_funcs = {			\
	.trace = event_name##_print,						\
};										\
static struct trace_event_class event_name##_class = {				\
	.system = "ftrace",							\
	.fields_array = event_name##_fields,					\
	.fields = LIST_HEAD_INIT(event_name##_class.fields),			\
	.raw_init = trace_event_raw_init,					\
};										\
static struct trace_event_call event_name##_call = {				\
	.class = &event_name##_class,						\
	.name = #event_name,							\
	.event.funcs = &event_name##_funcs,					\
	.print_fmt = format,							\
	.module = THIS_MODULE,							\
	.flags = TRACE_EVENT_FL_IGNORE_ENABLE,					\
};										\
static struct trace_event_call *event_name##_ptr __used				\
	__section("_ftrace_events") = &event_name##_call

#define COOKIE "(unsigned int)REC->cookie, (unsigned int)(REC->cookie >> 32)"

EVENT(stack_id, "\"<stack_id %d>\", REC->stack_id");
EVENT(stack_id_user, "\"<stack_id %d> <user %u:%u>\", REC->stack_id, " COOKIE);
EVENT(user_stack_id, "\"<user_stack_id %d> for %u:%u\", REC->user_stack_id, " COOKIE);

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

bool stackmap_events_are(const struct stackmap_served *served)
{
	return served->file->event_call == &stack_id_call &&
	       served->user_files[0]->event_call == &stack_id_user_call &&
	       served->user_files[1]->event_call == &user_stack_id_call;
}

/**
 * stackmap_event_announce - say that a ring buffer is going to hold our events
 * @served: the trace array whose buffer it is
 *
 * At module unload the core clears each ring buffer in which an event of the module was enabled:
 * the event's number may be reused. ftrace:stack_id has no "enable" file, so mark it as enabled.
 *
 * Context: process.
 */
void stackmap_event_announce(const struct stackmap_served *served)
{
	set_bit(EVENT_FILE_FL_WAS_ENABLED_BIT, &served->file->flags);
	set_bit(EVENT_FILE_FL_WAS_ENABLED_BIT, &served->user_files[0]->flags);
	set_bit(EVENT_FILE_FL_WAS_ENABLED_BIT, &served->user_files[1]->flags);
}

/* The data of an event. Nearly always it follows the four bytes of a header. */
static __always_inline void *data_of(struct ring_buffer_event *event)
{
	if (likely(event->type_len && event->type_len <= RINGBUF_TYPE_DATA_TYPE_LEN_MAX))
		return event->array;
	return ring_buffer_event_data(event);
}

/* Whether the ring buffer was seen to be one of the trace array. */
static __always_inline bool takes(const struct stackmap_site *site)
{
	return READ_ONCE(site->slot->buffer) == site->buffer;
}

/*
 * Reserves an event by the trace array. Only the core knows which ring buffer that has. An error
 * pointer: it is not that of @site.
 */
static noinline struct ring_buffer_event *
reserve_by_core(const struct stackmap_site *site, int type, size_t size)
{
	struct trace_buffer **const temp = stackmap_symbols.temp_buffer;
	struct stackmap_served *slot = site->slot;
	struct ring_buffer_event *event;
	struct trace_buffer *buffer;

	/* For a trigger alone, and in no trace: tracing is off, or the ring buffer is full. */
	if (temp && site->buffer == READ_ONCE(*temp))
		return NULL;
	event = trace_event_buffer_lock_reserve(&buffer, slot->file, type, size, site->trace_ctx);
	if (likely(buffer == site->buffer)) {
		WRITE_ONCE(slot->buffer, buffer);
		return event;
	}
	if (event)
		ring_buffer_discard_commit(buffer, event);
	return ERR_PTR(-EXDEV);
}

/*
 * Reserves the event of an id, with a cookie or without. An event of ours can have no filter and no
 * trigger, so that all that the core does is to reserve it in the ring buffer of the trace array.
 */
static __always_inline struct ring_buffer_event *reserve(const struct stackmap_site *site,
							 bool has_user)
{
	const int type = has_user ? stack_id_user_call.event.type : stack_id_call.event.type;
	const size_t size = has_user ? sizeof(struct stack_id_user_entry) :
				       sizeof(struct stack_id_entry);
	struct ring_buffer_event *event;

	if (unlikely(!takes(site)))
		return reserve_by_core(site, type, size);
	event = ring_buffer_lock_reserve(site->buffer, size);
	if (likely(event))
		tracing_generic_entry_update(data_of(event), type, site->trace_ctx);
	return event;
}

static __always_inline void commit(const struct stackmap_site *site,
				   struct ring_buffer_event *event, unsigned int id, bool has_user,
				   u64 cookie)
{
	struct stack_id_user_entry *entry = data_of(event);

	BUILD_BUG_ON(offsetof(typeof(*entry), stack_id) !=
		     offsetof(struct stack_id_entry, stack_id));
	entry->stack_id = id;
	if (has_user)
		set_cookie(entry->cookie, cookie);
	static_call(stackmap_commit)(site->buffer, event);
}

static __always_inline enum stackmap_unreserved write(const struct stackmap_site *site,
						      unsigned int id, bool has_user, u64 cookie)
{
	struct ring_buffer_event *event = reserve(site, has_user);

	if (IS_ERR_OR_NULL(event))
		return event ? STACKMAP_FOREIGN : STACKMAP_REFUSED;
	commit(site, event, id, has_user, cookie);
	return STACKMAP_WRITTEN;
}

/* The first event of a ring buffer, or of a foreign one. */
static noinline enum stackmap_unreserved write_by_core(const struct stackmap_site *site,
						       unsigned int id)
{
	return write(site, id, false, 0);
}

/**
 * stackmap_id_write - write a ftrace:stack_id event
 * @site: where it goes
 * @id: the id
 *
 * The ring buffer is not always one of the trace array: trace_array_printk() passes the top-level
 * trace array but writes to another ring buffer. Ids are not written there. A ring buffer that was
 * seen to be one of a trace array stays that: a snapshot exchanges it with another one, and it is
 * freed with the trace array.
 *
 * Context: any, preemption off.
 * Return: STACKMAP_WRITTEN, or why not.
 */
enum stackmap_unreserved stackmap_id_write(const struct stackmap_site *site, unsigned int id)
{
	struct ring_buffer_event *event;
	struct stack_id_entry *entry;

	if (unlikely(!takes(site)))
		return write_by_core(site, id);
	event = ring_buffer_lock_reserve(site->buffer, sizeof(*entry));
	if (unlikely(!event))
		return STACKMAP_REFUSED;
	entry = data_of(event);
	tracing_generic_entry_update(&entry->ent, stack_id_call.event.type, site->trace_ctx);
	entry->stack_id = id;
	static_call(stackmap_commit)(site->buffer, event);
	return STACKMAP_WRITTEN;
}

/**
 * stackmap_id_user_write - write a ftrace:stack_id_user event
 * @site: where it goes
 * @id: the id of the kernel stack
 * @cookie: the entry into the kernel
 *
 * Context: any, preemption off.
 * Return: as stackmap_id_write().
 */
enum stackmap_unreserved stackmap_id_user_write(const struct stackmap_site *site, unsigned int id,
						u64 cookie)
{
	return write(site, id, true, cookie);
}

/**
 * stackmap_id_reserve - reserve a ftrace:stack_id event, or a ftrace:stack_id_user event
 * @site: where it goes
 * @has_user: which
 *
 * Either stackmap_id_commit() or stackmap_id_discard() must follow on the same CPU. Ids are not
 * written where stackmap_id_write() does not.
 *
 * Context: any, preemption off.
 * Return: the event; NULL if the ring buffer refuses it, an error pointer if that is foreign.
 */
struct ring_buffer_event *stackmap_id_reserve(const struct stackmap_site *site, bool has_user)
{
	return has_user ? reserve(site, true) : reserve(site, false);
}

void stackmap_id_commit(const struct stackmap_site *site, struct ring_buffer_event *event,
			unsigned int id, bool has_user, u64 cookie)
{
	commit(site, event, id, has_user, cookie);
}

/**
 * stackmap_user_bind - write a ftrace:user_stack_id event
 * @served: the trace array
 * @cookie: the entry into the kernel
 * @id: the user stack's id; 0 if it is not kept
 *
 * Context: task context.
 * Return: whether the ring buffer took it.
 */
bool stackmap_user_bind(const struct stackmap_served *served, u64 cookie, unsigned int id)
{
	struct user_stack_id_entry *entry;
	struct ring_buffer_event *event;
	struct trace_buffer *buffer;

	guard(preempt_notrace)();
	event = trace_event_buffer_lock_reserve(&buffer, served->file,
						user_stack_id_call.event.type, sizeof(*entry), 0);
	stackmap_user_count(event ? STACKMAP_USER_BOUND : STACKMAP_USER_UNBOUND);
	if (!event)
		return false;
	entry = ring_buffer_event_data(event);
	entry->user_stack_id = id;
	set_cookie(entry->cookie, cookie);
	static_call(stackmap_commit)(buffer, event);
	return true;
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
