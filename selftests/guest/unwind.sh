#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Stacks that are walked by rules are those that the kernel walks, whatever is on them.
# Argument: how often all of it is done under tracers.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 26

# said TEXT - whether the log has a line of the module's.
said() {
	dmesg | grep -qF "stackmap: $1"
}

# probed FUNCTION - returns from it go through a kretprobe.
probed() {
	echo "r:probes/$1 $1" >>$T/dynamic_events
	echo 1 >$T/events/probes/"$1"/enable
}

work() {
	for _ in 1 2 3; do
		ls -lR /bin /proc/self >/dev/null 2>&1
		dd if=/dev/zero of=/tmp/file bs=64k count=8 2>/dev/null
		sh -c ':'
	done
}

# The kernel's own unwinder says so once, without the module as well, where the function graph tracer
# returns.
echo 'stackmap-expect: WARNING: stack going in the wrong direction\? at return_to_handler' >/dev/kmsg
insmod /tests/stackgen.ko || bail 'stackgen'

# The choice.
verify=0
load unwind=kernel
ok 'the log names the unwinder' said 'unwind: kernel'
echo 1 >$T/options/stackmap
stackgen record 8 0 100
is 'unwind=kernel' "$(value unwind)" kernel
is 'no rules' "$(value unwind_rules) $(value unwind_fast) $(value unwind_slow_whole)" '0 0 0'
rmmod stackmap
load unwind=cached
ok 'the log names the other' said 'unwind: cached'
is 'by rules' "$(value unwind)" cached
is 'nothing is learnt before the option goes on' "$(value unwind_rules)" 0
rmmod stackmap
load
is 'by default, too' "$(value unwind)" cached

# Learning.
echo 1 >$T/options/stackmap
stackgen record 8 0 100
ok 'rules are learnt' test "$(value unwind_rules)" -gt 8
new=$(value unwind_slow_new)
fast=$(value unwind_fast)
stackgen record 8 0 100
is 'once' "$(value unwind_slow_new)" "$new"
ok 'and followed' test "$(value unwind_fast)" -gt $((fast + 800))
is 'they are not verified' "$(value unwind_verified)" 0
echo 0 >$T/options/stackmap
is 'they go when the option goes off' "$(value unwind_rules)" 0
echo 1 >$T/options/stackmap
stackgen record 8 0 100

# Init text goes soon.
text=$(value unwind_slow_text)
insmod /tests/ghost_a.ko
ok 'the init of a module has no rules' test "$(value unwind_slow_text)" -gt "$text"
rmmod ghost_a

# Forgetting: nothing but the module has gone.
rules=$(value unwind_rules)
rmmod stackgen
ok 'a module takes its rules with it' test "$(value unwind_rules)" -lt "$rules"
insmod /tests/stackgen.ko
new=$(value unwind_slow_new)
stackgen record 8 0 100
ok 'they are learnt again' test "$(value unwind_slow_new)" -gt "$new"
rmmod stackmap

# Verifying, while return addresses are replaced.
verify=1
load
ok 'the log says that it verifies' said 'unwind: cached, verified'
echo 1 >$T/options/stackmap
echo 1 >$T/options/stacktrace
for events in kmem sched irq timer; do
	echo 1 >$T/events/$events/enable
done
# Functions on the way to events; all would take minutes.
echo 'vfs_* do_sys* kmem_cache_* __alloc_pages* handle_mm_fault' >$T/set_ftrace_filter
rounds=${1:-1}
insmod /tests/contexts.ko || bail 'contexts'
echo 1 >$T/events/contexts/context_hit/enable
while [ "$rounds" -gt 0 ]; do
	for tracer in nop function_graph function; do
		echo $tracer >$T/current_tracer
		work
	done
	echo nop >$T/current_tracer
	for func in vfs_read vfs_open do_sys_openat2 kmem_cache_alloc_noprof; do
		grep -q "^$func\$" $T/available_filter_functions && probed $func
	done
	work
	for context in task softirq hardirq nmi kprobe kretprobe; do
		echo "$context 40" >/sys/kernel/debug/contexts/run
	done
	# The function graph tracer in an instance, so that events have stacks meanwhile.
	mkdir $T/instances/graph
	cat $T/set_ftrace_filter >$T/instances/graph/set_ftrace_filter
	echo function_graph >$T/instances/graph/current_tracer
	work
	rmdir $T/instances/graph
	echo 0 >$T/events/probes/enable
	echo >$T/dynamic_events
	# Modules come and go.
	rmmod stackgen
	insmod /tests/ghost_a.ko
	echo 1 >/sys/module/ghost_a/parameters/record
	rmmod ghost_a
	insmod /tests/ghost_b.ko
	echo 1 >/sys/module/ghost_b/parameters/record
	insmod /tests/stackgen.ko
	stackgen record 8 0 100
	rmmod ghost_b
	rounds=$((rounds - 1))
done
echo 0 >$T/events/enable

# A tracer goes while stacks are in its trampoline: then the kernel finds no way out of that.
echo nop >$T/current_tracer
echo vfs_read vfs_write ksys_read ksys_write >$T/set_ftrace_filter
echo 1 >$T/options/func_stack_trace
dd if=/dev/zero of=/dev/null bs=1 2>/dev/null &
for _ in $(seq 30); do
	echo function >$T/current_tracer
	echo nop >$T/current_tracer
done
kill $!
ok 'many stacks were verified' test "$(value unwind_verified)" -gt 1000
is 'none differed' "$(value unwind_mismatches)" 0
for key in unwind_slow_text unwind_slow_odd unwind_slow_regs unwind_slow_return; do
	ok "$key was met" test "$(value $key)" -gt 0
done
is 'no rule had to make room' "$(value unwind_replaced)" 0
ok 'nearly no rule led off the stack' test "$(value unwind_slow_stack)" -le $(($(value unwind_fast) / 100))
is 'no stack found all levels of nesting in use' "$(value drop_nested)" 0
note "$(grep '^unwind' $T/stack_map_stat | tr -s ' ' | paste -s -d , -)"
rmmod contexts
rmmod stackgen
ok 'rmmod' rmmod stackmap
finish
