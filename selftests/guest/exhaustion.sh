#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# More distinct stacks than the map can hold. Runs with guest time counting instructions.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 18

verify=0
# known - records 500 known stacks.
known() {
	clear_trace
	stackgen record 16 0 500
}

# cost - the instructions for the known stacks, of each fifty the fewest in a few runs: interrupts and
# others run on this CPU as well.
cost() {
	clear_trace
	for first in 0 50 100 150 200 250 300 350 400 450; do
		for _ in 1 2 3 4 5; do
			stackgen record 16 $first 50
			cat /sys/kernel/debug/stackgen/cost
		done | sort -n | head -n 1
	done | awk '{ sum += $1 } END { print sum }'
}

load bits=10
insmod /tests/stackgen.ko || bail 'stackgen'
echo 4096 >$T/buffer_size_kb
echo 1 >$T/options/stackmap
known
known
before_ids=$(ids)
before=$(cost)
clear_trace
# In steps, so that growth keeps up.
for first in 500 1000 1500 2000 2500 3000 3500 4000; do
	stackgen record 16 $first 500
	sleep 0.1
done
is 'entries stops at the capacity' "$(entries)" '1024 / 1024'
is 'each event has its stack' $(($(ids | wc -l) + $(full))) 4000
is 'further new stacks are full stacks' "$(full)" $((4500 - 1024))
is 'and counted with their reason' "$(value drop_full)" $((4500 - 1024))
drops_add_up
known
is 'known stacks are still ids, the same ones' "$(ids)" "$before_ids"
is 'none of them in full' "$(full)" 0
after=$(cost)
note "instructions for 500 known stacks: $before before, $after when full"
ok 'a known stack costs no more than before' test "$after" -le $((before + before / 100))

# Full stacks that the module writes are as those that the kernel writes.
insmod /tests/contexts.ko || bail 'contexts'
echo 1 >$T/options/stacktrace
echo 1 >$T/options/sym-addr
echo 1 >$T/events/contexts/context_hit/enable
for on in 0 1; do
	echo $on >$T/options/stackmap
	clear_trace
	drops=$(value drops)
	taskset 1 sh -c "echo \$\$ >/tmp/pid; echo 16 5000 50 >/sys/kernel/debug/stackgen/record"
	for context in softirq hardirq nmi; do
		taskset 1 sh -c "echo '$context 20' >/sys/kernel/debug/contexts/run"
	done
	grep -E '^ => (left|right)' $T/trace >/tmp/frames.$on
	# Of an event its flags, and those of its stack.
	awk '/context_hit: / { flags = substr($3, 1, 1) substr($3, 3) }
		/<stack trace>/ && flags { print flags, substr($3, 1, 1) substr($3, 3); flags = "" }' $T/trace >/tmp/flags.$on
	ids | wc -l >/tmp/ids.$on
	# What the text of a stack does not show: how many frames it says that it has, behind its type and its task.
	timeout -s INT 2 cat $T/per_cpu/cpu0/trace_pipe_raw >/tmp/raw
	hexdump -v -e '/4 "%u\n"' /tmp/raw | awk -v pid="$(cat /tmp/pid)" -v type="$(sed -n 's/^ID: //p' $T/events/ftrace/kernel_stack/format)" '
		first % 65536 == type && second == pid { print $1 }
		{ first = second; second = $1 }' >/tmp/sizes.$on
done
is 'the module wrote them' "$(value drops) $(cat /tmp/ids.1)" "$((drops + 110)) 0"
ok 'with the same frames' cmp /tmp/frames.0 /tmp/frames.1
ok 'and there are some' test "$(wc -l </tmp/frames.1)" -gt 700
ok 'with the same number of frames' cmp /tmp/sizes.0 /tmp/sizes.1
is 'in each of them' "$(wc -l </tmp/sizes.1)" 50
is 'with the flags of their events' "$(wc -l </tmp/flags.1) $(awk '$1 != $2' /tmp/flags.1 | wc -l)" '60 0'
is 'of three contexts' "$(sort -u /tmp/flags.1 | wc -l)" 3
drops_add_up
echo 0 >$T/events/enable
ok 'rmmod contexts' rmmod contexts
ok 'rmmod' rmmod stackmap
finish
