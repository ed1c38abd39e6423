#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Instances: their own function tracer's trampolines, and coming on and off the list while they record.
# Argument: the hook.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 23

I=$T/instances/fn
load hook="$1"
mkdir $I
echo 4096 >$I/buffer_size_kb
echo 1 >$I/options/sym-addr

# traced - stacks of an instance's own function tracer, of about 150 events.
traced() {
	echo >$I/trace
	echo 'vfs_read vfs_write' >$I/set_ftrace_filter
	echo 1 >$I/options/func_stack_trace
	echo function >$I/current_tracer
	for _ in $(seq 20); do cat /proc/self/stat >/dev/null; done
	# A change of the tracer empties the buffer.
	echo 0 >$I/tracing_on
}

# untraced - makes the instance as it was.
untraced() {
	echo nop >$I/current_tracer
	echo 0 >$I/options/func_stack_trace
	echo 1 >$I/tracing_on
}

# shape - how many frames of the trace are markers, and how many have no name.
shape() {
	awk '/FTRACE TRAMPOLINE/ { marked++ } / => 0x/ { bare++ } END { print (marked > 20), bare + 0 }' $I/trace
}

traced
is 'full stacks: trampolines are marked' "$(shape)" '1 0'
untraced

# probed - how many frames are markers in stacks from the handler of a fprobe, whose trampoline is not the instance's.
probed() {
	echo >$I/trace
	echo 1 >$I/options/stacktrace
	echo 1 >$I/events/contexts/context_hit/enable
	echo 'fprobe 10' >/sys/kernel/debug/contexts/run
	echo 0 >$I/events/contexts/context_hit/enable
	echo 0 >$I/options/stacktrace
	echo "$(grep -c context_hit: $I/trace) $(grep -c 'FTRACE TRAMPOLINE' $I/trace)"
}
insmod /tests/contexts.ko || bail 'contexts'
full=$(probed)
echo fn >$T/stack_map_instances
echo 1 >$T/options/stackmap
echo 1 >$T/options/stackmap-resolve
is "another tracer's trampoline is marked as the kernel does" "$(probed)" "$full"
echo 0 >$T/options/stackmap-resolve
rmmod contexts
traced
ok 'as ids' grep -q '<stack_id' $I/trace
is 'no full stack' "$(grep -c '<stack trace>' $I/trace)" 0
echo 1 >$T/options/stackmap-resolve
is 'ids: trampolines are marked, too' "$(shape)" '1 0'
echo 0 >$T/options/stackmap-resolve
is 'no stack has two ids' "$(awk '
	/^stack_id/ { if (stack in seen) twice++; seen[stack]; stack = ""; next } { stack = stack $0 }
	END { print twice + 0 }' $T/stack_map)" 0
untraced
echo '!fn' >$T/stack_map_instances

# Off the list while one of its stacks is on the way in: no event is without.
echo >$I/trace
echo 1 >$I/options/stacktrace
echo 1 >$I/events/syscalls/sys_enter_newuname/enable
for _ in 1 2 3 4 5; do
	echo fn >$T/stack_map_instances
	taskset 1 uname >/dev/null
	override func=stackmap_trace_stack any=1 delay=300 count=1
	taskset 2 uname >/dev/null &
	until [ "$(cat /sys/module/override/parameters/hits)" != 0 ]; do :; done
	echo '!fn' >$T/stack_map_instances
	wait
	rmmod override
	taskset 1 uname >/dev/null
done

# Off the list while one of its stacks is being recorded.
echo fn >$T/stack_map_instances
override hold=1
taskset 2 uname >/dev/null &
until [ "$(cat /sys/module/override/parameters/hits)" != 0 ]; do sleep 0.1; done
put '!fn' $T/stack_map_instances &
off=$!
sleep 1.5
ok 'taking it off waits for who records' kill -0 $off
echo 0 >/sys/module/override/parameters/hold
wait
rmmod override
echo 0 >$I/tracing_on
is 'there are events from before, while and after it is taken off' "$(grep -c 'sys_newuname(' $I/trace)" 16
is 'each has a stack' $(($(grep -c '<stack_id' $I/trace) + $(grep -c '<stack trace>' $I/trace))) 16
ok 'those before an id' test "$(grep -c '<stack_id' $I/trace)" -ge 6
ok 'those after a full stack' test "$(grep -c '<stack trace>' $I/trace)" -ge 5
rmdir $I

# As many as can be, with the longest name among them: each records ids.
echo 0 >$T/tracing_on
put reset $T/stack_map
long=$(printf '%0255d' 0)
mkdir "$T/instances/$long"
ok 'a name of 255 characters is listed' put "$long\n" $T/stack_map_instances
for i in $(seq 63); do
	mkdir "$T/instances/$i"
	put "$i" $T/stack_map_instances
done
mkdir $T/instances/64
errno 'the 65th is refused with ENOSPC' 'No space left' $T/stack_map_instances 64
for name in "$long" 1 2 63 64; do
	echo 1 >"$T/instances/$name/options/stacktrace"
	echo 1 >"$T/instances/$name/events/syscalls/sys_enter_newuname/enable"
done
uname >/dev/null
for name in "$long" 1 2 63; do
	is "instance ${name#0*0} records an id, no full stack" \
		"$(grep -c '<stack_id' "$T/instances/$name/trace") $(grep -c '<stack trace>' "$T/instances/$name/trace")" '1 0'
done
is 'the one that is not listed a full stack' \
	"$(grep -c '<stack_id' $T/instances/64/trace) $(grep -c '<stack trace>' $T/instances/64/trace)" '0 1'
echo '!2' >$T/stack_map_instances
ok 'in the place of another it is listed' put 64 $T/stack_map_instances
uname >/dev/null
is 'and records an id' "$(grep -c '<stack_id' $T/instances/64/trace)" 1
is 'the other a full stack' "$(grep -c '<stack trace>' $T/instances/2/trace)" 1
ok 'rmmod' rmmod stackmap
is 'the buffers that held ids are empty' "$(cat $T/instances/*/trace | grep -c 'stack_id\|Unknown type')" 0
finish
