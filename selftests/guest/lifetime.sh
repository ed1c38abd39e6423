#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The module among others: kprobes on the function that it hooks, instances, unloading with ids in
# the buffer. Argument: the hook.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan "$([ "$1" = jump ] && echo 64 || echo 48)"

hook=$1

# probe 1|0 - puts a kprobe on the function that is hooked, or removes it.
probe() {
	echo "$1" >/sys/kernel/debug/stackgen/probe
}

insmod /tests/stackgen.ko || bail 'stackgen'
before=$(hook_text)

# A kprobe of the user before ours: it sits behind the first instruction, the jump fits before it.
probe 1
load hook="$hook"
echo 1 >$T/options/stackmap
stackgen record 5 0 10
is 'with a kprobe there before: ids' "$(ids | wc -l)" 10
echo 0 >$T/options/stackmap
probe 0
is 'the text is as before' "$(hook_text)" "$before"

# A kprobe of the user after ours. With the jump it sits on the jump, which stays for it.
echo 1 >$T/options/stackmap
probe 1
clear_trace
stackgen record 5 100 10
is 'a kprobe on the hook: ids' "$(ids | wc -l)" 10
for round in 1 2; do
	echo 0 >$T/options/stackmap
	clear_trace
	stackgen record 5 100 10
	is "a kprobe on the hook, option off ($round): full stacks" "$(ids | wc -l) $(full)" '0 10'
	echo 1 >$T/options/stackmap
	clear_trace
	stackgen record 5 100 10
	is "a kprobe on the hook, option on again ($round): ids" "$(ids | wc -l) $(full)" '10 0'
done
echo 0 >$T/options/stackmap
[ "$hook" = kprobe ] || is 'what stays leads behind the entry' "$(hook_text | cut -c 52-59)" 'f9 cc cc'
[ "$hook" = kprobe ] || is 'by the jump before it' "$(hook_text | cut -c 34-47)" 'e9 04 00 00 00'
echo 1 >$T/options/stackmap
is 'what stays is said once' "$(dmesg | grep -c 'a kprobe holds the entry of __ftrace_trace_stack')" \
	"$([ "$hook" = jump ] && echo 1 || echo 0)"
ok 'rmmod with the kprobe there' rmmod stackmap
for on in 1 0; do
	[ $on = 1 ] || probe 0
	clear_trace
	stackgen record 5 200 3
	is "unloaded, kprobe $on: full stacks" "$(full)" 3
done
for round in 1 2; do
	load hook="$hook"
	is "the next load ($round) has the same hook" "$(value hook)" "$hook"
	echo 1 >$T/options/stackmap
	clear_trace
	stackgen record 5 200 3
	is "ids in the next load ($round)" "$(ids | wc -l)" 3
	rmmod stackmap
	is "the text after the next load ($round)" "$(hook_text)" "$before"
done

# With the kprobe gone before the module, the text is restored at once.
load hook="$hook"
echo 1 >$T/options/stackmap
probe 1
echo 0 >$T/options/stackmap
probe 0
ok 'rmmod after the kprobe' rmmod stackmap
is 'the text is as before' "$(hook_text)" "$before"

# No kprobe comes to what is restored later.
load hook="$hook"
echo 1 >$T/options/stackmap
if [ "$hook" = jump ]; then
	for at in -9 -8 -7 -6 -5 -4 -3 -2 -1 1 2 3; do
		fails "no kprobe $at bytes from the entry" 'Invalid' put $at /sys/kernel/debug/stackgen/probe_at
	done
	for at in 0 4; do
		ok "a kprobe $at bytes from the entry" put $at /sys/kernel/debug/stackgen/probe_at
	done
fi
stackgen record 5 0 10
ok 'rmmod' rmmod stackmap
is 'the text is as before' "$(hook_text)" "$before"
stackgen record 5 0 10

# Written twice it is on once.
load hook="$hook"
echo 1 >$T/options/stackmap
hooked=$(hook_text)
ok 'the option takes a second 1' put 1 $T/options/stackmap
is 'the text is as after the first one' "$(hook_text)" "$hooked"
is 'the hook too' "$(value hook)" "$hook"
echo 0 >$T/options/stackmap
is 'one 0 takes it off' "$(hook_text)" "$before"
rmmod stackmap
is 'and after rmmod it is as before' "$(hook_text)" "$before"

# Off while a stack is being recorded: what recording needs goes when it is recorded.
load hook="$hook"
echo 1 >$T/options/stackmap
clear_trace
override hold=1
stackgen record 5 0 1 &
until [ "$(cat /sys/module/override/parameters/hits)" != 0 ]; do sleep 0.1; done
echo 0 >$T/options/stackmap &
off=$!
sleep 1.5
ok 'turning the option off waits for who records' kill -0 $off
echo 0 >/sys/module/override/parameters/hold
wait
is 'then it is off' "$(cat $T/options/stackmap)" 0
is 'and the stack has an id' "$(ids | wc -l)" 1
rmmod override
rmmod stackmap

# An instance records full stacks of its own.
load hook="$hook"
echo 1 >$T/options/stackmap
mkdir $T/instances/other
echo 1 >$T/instances/other/options/stacktrace
echo 1 >$T/instances/other/events/sched/sched_switch/enable
sleep 0.3
echo 0 >$T/instances/other/events/sched/sched_switch/enable
is 'an instance has no ids' "$(grep -c '<stack_id' $T/instances/other/trace)" 0
ok 'but full stacks' grep -q '<stack trace>' $T/instances/other/trace

# The kernel asks for a stack of the top level where trace_array_printk() has written into an instance.
mkdir $T/instances/foreign
echo 1 >$T/options/stacktrace
for on in 1 0; do
	echo $on >$T/tracing_on
	echo 1 >/sys/kernel/debug/stackgen/foreign
done
echo 1 >$T/tracing_on
echo 0 >$T/options/stacktrace
is 'in a buffer that is not its own it is full, too' \
	"$(grep -c '<stack trace>' $T/instances/foreign/trace) $(grep -c '<stack_id' $T/instances/foreign/trace)" '2 0'
is 'and counted' "$(value drop_foreign)" 2
drops_add_up
rmdir $T/instances/foreign

# Unloading with tracing on, the option on and ids in the buffer.
clear_trace
stackgen record 5 0 10
is 'ids are in the buffer' "$(ids | wc -l)" 10
ok 'rmmod with the option on' rmmod stackmap
is 'the buffer that held them is empty' "$(grep -vc '^#' $T/trace)" 0
ok "another instance's buffer is not" grep -q sched_switch $T/instances/other/trace
rmdir $T/instances/other
ok 'the event is gone' test ! -e $T/events/ftrace/stack_id
is 'the text is as before' "$(hook_text)" "$before"

# Never switched on: nothing is allocated, nothing of anybody's is cleared.
echo hello >$T/trace_marker
load hook="$hook"
is 'before the first use the map has no memory' "$(value pool_bytes) $(value table_bytes)" '0 0'
rmmod stackmap
is 'unloading what was never on leaves the buffer alone' "$(grep -c hello $T/trace)" 1

# The snapshot holds ids as well, and is cleared as well.
load hook="$hook"
echo 1 >$T/options/stackmap
stackgen record 5 0 10
ok 'a snapshot' put 1 $T/snapshot
is 'holds ids' "$(grep -c '<stack_id' $T/snapshot)" 10
ok 'rmmod' rmmod stackmap
is 'and is cleared with the module' "$(grep -c 'stack_id\|Unknown type' $T/snapshot)" 0

# A reader of trace_pipe
load hook="$hook"
echo 1 >$T/options/stackmap
cat $T/trace_pipe >/tmp/pipe &
pipe=$!
stackgen record 5 0 3000
sleep 0.5
ok 'rmmod while trace_pipe is read' rmmod stackmap
kill $pipe
ok 'which has shown ids' grep -q '<stack_id' /tmp/pipe
finish
