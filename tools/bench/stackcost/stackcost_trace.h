/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The event that stackcost.c records: one that costs next to nothing beside its stack.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM stackcost

#if !defined(STACKCOST_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define STACKCOST_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(stackcost_hit,
	    TP_PROTO(unsigned int number),
	    TP_ARGS(number),
	    TP_STRUCT__entry(__field(unsigned int, number)),
	    TP_fast_assign(__entry->number = number;),
	    TP_printk("number=%u", __entry->number)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE stackcost_trace
#include <trace/define_trace.h>
