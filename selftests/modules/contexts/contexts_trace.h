/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The event that contexts.c records in each context.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM contexts

#if !defined(CONTEXTS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define CONTEXTS_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(context_hit,
	    TP_PROTO(const char *context, unsigned int number),
	    TP_ARGS(context, number),
	    TP_STRUCT__entry(__string(context, context)
			     __field(unsigned int, number)),
	    TP_fast_assign(__assign_str(context);
			   __entry->number = number;),
	    TP_printk("context=%s number=%u", __get_str(context), __entry->number)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE contexts_trace
#include <trace/define_trace.h>
