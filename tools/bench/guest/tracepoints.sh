#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Instructions of a stack at the kernel's own tracepoints and traced functions, in programs.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

EVENTS='syscalls kmem sched functions'

# Each makes the same steps every time.
syscalls() {
	dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null
}

functions() {
	syscalls
}

kmem() {
	i=0
	while [ $i -lt 1000 ]; do
		[ -e /proc/self/nothing ]
		i=$((i + 1))
	done
}

# Two shells that hand each other the CPU.
sched() {
	while read -r _; do
		echo >&4
	done </tmp/there 4>/tmp/back &
	exec 3>/tmp/there 5</tmp/back
	i=0
	while [ $i -lt 200 ]; do
		echo >&3
		read -r _ <&5
		i=$((i + 1))
	done
	exec 3>&- 5<&-
	wait
}

# events STATE EVENT - switches a group of events, or the tracer of functions.
events() {
	if [ "$2" = functions ] && [ "$1" = 1 ]; then
		echo 'vfs_read vfs_write' >$T/set_ftrace_filter
		echo function >$T/current_tracer
	elif [ "$2" = functions ]; then
		echo nop >$T/current_tracer
	else
		echo "$1" >$T/events/"$2"/enable
	fi
}

# stacks STATE EVENT - switches the stacks.
stacks() {
	if [ "$2" = functions ]; then
		echo "$1" >$T/options/func_stack_trace
	else
		echo "$1" >$T/options/stacktrace
	fi
}

# recorded - events that the ring buffer was given since it was emptied.
recorded() {
	awk '/^(entries|overrun):/ { sum += $2 } END { print sum }' $T/per_cpu/cpu0/stats
}

# measure EVENT - the instructions of a workload and what it records, the median of three.
measure() {
	for _ in 1 2 3; do
		clear_trace
		echo 1 >$T/tracing_on
		clock
		before=$clock
		"$1"
		clock
		echo 0 >$T/tracing_on
		echo "$((clock - before)) $(recorded)"
	done | sort -n | sed -n 2p
}

# per_stack EVENT NAME - instructions of a stack, over those of the same without stacks.
per_stack() {
	stacks 1 "$1"
	"$1"
	set -- "$1" "$2" "$(measure "$1")"
	stacks 0 "$1"
	# An event and its stack are two in the ring buffer.
	echo "$3" | {
		read -r sum count
		figure "$2.$1" $(((sum - without) * 2 / count))
		[ "$2" != full ] || figure "events.$1" $((count / 2))
	}
}

mkfifo /tmp/there /tmp/back
prepare
counts_instructions
echo 0 >$T/tracing_on
for event in $EVENTS; do
	events 1 "$event"
	"$event"
	without=$(measure "$event" | cut -d ' ' -f 1)
	nothing=$(measure "$event" | cut -d ' ' -f 2)
	per_stack "$event" full
	for name in jump kprobe kernel; do
		case $name in
		kernel) load hook=jump unwind=kernel ;;
		*) load hook=$name unwind=cached ;;
		esac
		echo 1 >$T/options/stackmap
		per_stack "$event" $name
		[ "$(value drops)" = 0 ] || bail "$(value drops) drops"
		echo 0 >$T/options/stackmap
		figure "stacks.$event" "$(value inserts)"
		figure "depth.$event" "$(awk '
			/^stack_id/ { refs = $4 + 0; depth = $6 + 0; all += refs; sum += refs * depth }
			END { printf "%d", sum / all + 0.5 }' $T/stack_map)"
		rmmod stackmap
	done
	events 0 "$event"
	[ "$nothing" -gt 0 ] || bail "no events of $event"
done
echo finished
