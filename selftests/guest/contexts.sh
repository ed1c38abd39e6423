#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Records events from every context twice, as ids at the top level and as full stacks in an instance,
# while functions return through the tracers of a third, and leaves both recordings in /share for
# selftests/oracle.py. Argument: the hook.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 12

load hook="$1"
is "the hook is $1" "$(value hook)" "$1"
insmod /tests/contexts.ko || bail 'contexts'
I=$T/instances/twin
M=$T/instances/meanwhile
mkdir $I $M

for dir in $T $I; do
	echo 16384 >"$dir/buffer_size_kb"
	echo 1 >"$dir/options/stacktrace"
	echo 1 >"$dir/options/sym-addr"
done
echo 1 >$T/options/stackmap
echo 1 >$I/events/contexts/context_hit/enable
echo 1 >$T/events/contexts/context_hit/enable
echo ':mod:contexts' >$M/set_ftrace_filter
for tracer in nop function function_graph; do
	echo $tracer >$M/current_tracer
	contexts='task softirq hardirq nmi kprobe kretprobe'
	# Beside the function graph tracer a fprobe makes the kernel warn, without the module as well.
	[ $tracer = function_graph ] || contexts="$contexts fprobe"
	for cpu in 0 1; do
		for context in $contexts; do
			taskset $((1 << cpu)) sh -c "echo '$context 40' >/sys/kernel/debug/contexts/run"
		done
	done
	ok "the tracer meanwhile: $tracer" grep -q "^$tracer\$" $M/current_tracer
done
for dir in $T $I; do
	echo 0 >"$dir/tracing_on"
	is "no event was lost in ${dir##*/}" \
		"$(cat "$dir"/per_cpu/cpu*/stats | awk '/overrun|dropped/ { s += $NF } END { print s }')" 0
done
echo nop >$M/current_tracer
cp $T/stack_map_bin $T/stack_map_stat /share
drops_add_up
is 'no stack found all levels of nesting in use' "$(value drop_nested)" 0
for cpu in 0 1; do
	cp $T/per_cpu/cpu$cpu/trace /share/ids.$cpu
	cp $I/per_cpu/cpu$cpu/trace /share/full.$cpu
done
echo 0 >$T/events/enable
echo 0 >$I/events/enable
missed=$(value drop_missed)
# Each time for both buffers; what was missed is all that is full here.
is 'each hit that the hook missed is counted once' "$missed" $((2 * $(full)))
echo 0 >$T/options/stackmap
is 'also when the hook has gone' "$(value drop_missed)" "$missed"
rmdir $I $M
ok 'rmmod contexts' rmmod contexts
ok 'rmmod' rmmod stackmap
finish
