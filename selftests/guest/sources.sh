#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Records stacks in every way that ftrace has of asking for one, as ids and as full stacks, and leaves
# both recordings in /share for selftests/oracle.py. Arguments: the hook, "nobpf" in a kernel without it.
#
# What an instance can record too is recorded in one at the same time. What only the top level can is
# recorded there twice: with the option off, then with it on.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan "$([ "${2:-}" = nobpf ] && echo 7 || echo 12)"

RUN=/sys/kernel/debug/contexts
I=$T/instances/twin
losses=0

# both WORDS FILE - writes WORDS into FILE of the top level and of the instance.
both() {
	for dir in $T $I; do
		echo "$1" >"$dir/$2" || bail "$dir/$2 does not take '$1'"
	done
}

# run CONTEXT... - hits each context on each CPU, from this shell itself.
run() {
	echo 0 >$RUN/restart
	for cpu in 0 1; do
		taskset -p $((1 << cpu)) $$ >/dev/null
		for context; do
			echo "$context 10" >$RUN/run
		done
	done
	taskset -p 3 $$ >/dev/null
}

lost() {
	cat "$1"/per_cpu/cpu*/stats | awk '/overrun|dropped/ { s += $NF } END { print s }'
}

# keep DIR KIND - adds what DIR has recorded to what was kept of that kind, before anything empties it.
keep() {
	for cpu in 0 1; do
		cat "$1/per_cpu/cpu$cpu/trace" >>/share/"$2.$cpu"
	done
	losses=$((losses + $(lost "$1")))
	echo >"$1/trace"
}

# keep_both WHAT - the same for what the top level and the instance have recorded.
keep_both() {
	note "$1: $(full) full stacks, $(ids | wc -l) ids, $(grep -c '<stack trace>' $I/trace) in the instance"
	keep $T ids
	keep $I full
}

# twice WHAT COMMAND... - runs COMMAND with the option off, then with it on, by itself in the buffer.
twice() {
	what=$1
	shift
	for kind in full ids; do
		[ $kind = full ] || echo 1 >$T/options/stackmap
		clear_trace
		echo 1 >$T/tracing_on
		"$@"
		echo 0 >$T/tracing_on
		note "$what, option $(cat $T/options/stackmap): $(full) full stacks, $(ids | wc -l) ids"
		keep $T $kind
		echo 0 >$T/options/stackmap
	done
}

load hook="$1"
is "the hook is $1" "$(value hook)" "$1"
insmod /tests/contexts.ko || bail 'contexts'
mkdir $I
both 16384 buffer_size_kb
both 1 options/sym-addr
echo 1 >$T/options/stackmap

# Of the function tracer: its option, which stands by itself, and a command for one function. Beside
# another tracer of the same function there is no trampoline.
both 'hit:mod:contexts' set_ftrace_filter
both function current_tracer
both 1 options/func_stack_trace
run task softirq hardirq nmi kprobe kretprobe fprobe
keep_both 'func_stack_trace'
both 0 options/func_stack_trace
both nop current_tracer
both '' set_ftrace_filter
both 'contexts_kprobed:stacktrace' set_ftrace_filter
run kprobe
keep_both 'the command stacktrace'
both '!contexts_kprobed:stacktrace' set_ftrace_filter

# Of an event: its trigger.
both stacktrace events/contexts/context_hit/trigger
both 1 events/contexts/context_hit/enable
run task softirq hardirq nmi
keep_both 'the trigger stacktrace'
both 0 events/contexts/context_hit/enable
both '!stacktrace' events/contexts/context_hit/trigger

# Of events that probes make: those of kprobes give registers to start from.
both 1 options/stacktrace
for probe in 'p:probes/dyn_kprobe contexts_kprobed' 'r:probes/dyn_kretprobe contexts_kretprobed' \
	'f:probes/dyn_fprobe contexts_fprobed'; do
	echo "$probe" >>$T/dynamic_events
done
both 1 events/probes/enable
run kprobe kretprobe fprobe
keep_both 'events of probes'
both 0 events/probes/enable
echo >$T/dynamic_events

# Of BPF: a program's bpf_trace_printk() is an event.
for attach in 'raw_tracepoint context_hit' 'kprobe contexts_kprobed'; do
	[ "$2" != nobpf ] || break
	# shellcheck disable=SC2086
	ok "a BPF program at the $attach" /tests/bpf $attach /sys/fs/bpf/link
	both 1 events/bpf_trace/bpf_trace_printk/enable
	case $attach in
	kprobe*) run kprobe ;;
	*) run task softirq hardirq nmi ;;
	esac
	ok 'its frames have its name' grep -q ' => bpf_prog_[0-9a-f]*_stackmap_test' $I/trace
	[ "$attach" != 'raw_tracepoint context_hit' ] ||
		ok 'in the map too' grep -q '\] bpf_prog_[0-9a-f]*_stackmap_test+' $T/stack_map
	keep_both "BPF, $attach"
	rm /sys/fs/bpf/link
	both 0 events/bpf_trace/bpf_trace_printk/enable
done

# Of what the kernel prints, when sysrq wants to know by NMI what each CPU does.
echo 'stackmap-expect: Call Trace:' >/dev/kmsg
both 1 events/printk/console/enable
for cpu in 0 1; do
	taskset $((1 << cpu)) sh -c 'echo l >/proc/sysrq-trigger'
done
both 0 events/printk/console/enable
keep_both 'sysrq'
both 0 tracing_on
rmdir $I

# What only the top level has: trace_printk().
echo 0 >$T/options/stackmap
echo 1 >$RUN/printk
twice 'trace_printk' run task kprobe kretprobe fprobe
# An interrupt may come at another place, and its stack is another then.
echo 1 >$T/options/stackmap
clear_trace
echo 1 >$T/tracing_on
run softirq hardirq nmi
echo 0 >$T/tracing_on
is 'trace_printk from interrupts: ids' "$(full) $(ids | wc -l)" '0 80'
echo 0 >$T/options/stackmap
echo 0 >$RUN/printk
echo 0 >$T/options/stacktrace

# One tracer alone calls from a trampoline of its own, which is marked.
echo 'hit:mod:contexts' >$T/set_ftrace_filter
echo function >$T/current_tracer
echo 1 >$T/options/func_stack_trace
twice 'func_stack_trace' run task kprobe kretprobe fprobe
echo 0 >$T/options/func_stack_trace
echo nop >$T/current_tracer
echo >$T/set_ftrace_filter

is 'no event was lost' "$losses" 0
cp $T/stack_map_bin $T/stack_map_stat /share
drops_add_up
is 'no stack found all levels of nesting in use' "$(value drop_nested)" 0
note "$(value drop_missed) hits of the hook were missed"
ok 'rmmod contexts' rmmod contexts
ok 'rmmod' rmmod stackmap
finish
