#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What the frames of a module are called when it has gone, and when another one has come to its place.
# shellcheck source=SCRIPTDIR/tap.sh
. /tests/tap.sh

# base MODULE - where its text is.
base() {
	cat /sys/module/"$1"/sections/.text
}

record() {
	echo 1 >/sys/module/"$1"/parameters/record
}

# frames - what stack_map shows, without the lines that change whenever a stack is recorded.
frames() {
	sed 's/ref [0-9]*/ref/' $T/stack_map
}

# shown OFFSET ADDR - the frames that the trace shows with these options, and stackmap-resolve.
shown() {
	echo "$1" >$T/options/sym-offset
	echo "$2" >$T/options/sym-addr
	echo 1 >$T/options/stackmap-resolve
	sed -n 's/^ => //p' $T/trace
	echo 0 >$T/options/stackmap-resolve
}

load bits=10
echo 1 >$T/options/stackmap

ok 'a module comes' insmod /tests/ghost_a.ko
ok 'and has a stack recorded' record ghost_a
before=$(frames)
ok 'its functions have names' sh -c "echo '$before' | grep -q ' ghost_a_inner+0x.* \[ghost_a\]$'"
ok 'so has its init, which has gone' sh -c "echo '$before' | grep -Eq ' (ghost_a_init|init_module)\+0x.* \[ghost_a\]$'"
place=$(base ghost_a)
for form in '0 0' '1 0' '0 1' '1 1'; do
	# shellcheck disable=SC2086
	shown $form >"/tmp/before $form"
done
echo 0 >$T/options/sym-offset
grep -v ghost_a_init '/tmp/before 0 0' >/tmp/wanted
ok 'the trace names them as well' grep -qx ghost_a_inner /tmp/wanted

ok 'the module goes' rmmod ghost_a
is 'its frames keep their names' "$(frames)" "$before"
for form in '0 0' '1 0' '0 1' '1 1'; do
	# shellcheck disable=SC2086
	shown $form >/tmp/after
	ok "in the trace too (sym-offset, sym-addr: $form)" cmp "/tmp/before $form" /tmp/after
done

# Another one at the same place.
insmod /tests/ghost_b.ko
is 'another module comes to its place' "$(base ghost_b)" "$place"
ok 'and has a stack recorded' record ghost_b
is 'it has the same id as before' "$(ids | sort | uniq -c | awk '$1 == 2' | wc -l)" 2
is 'no frame of the old stacks is called by its names' "$(frames | grep -c ghost_b)" 0
is 'nor by the old ones' "$(frames | grep -c ghost_a)" 0
ok 'they are plain addresses' sh -c "grep -q '\] 0xffffffff[0-9a-f]*$' $T/stack_map"
is 'nor in the trace' "$(shown 1 1 | grep -c ghost)" 0
ok 'where they are plain addresses too' sh -c "
	echo 1 >$T/options/stackmap-resolve
	grep -q '^ => \(0xffffffff[0-9a-f]*\) <\(ffffffff[0-9a-f]*\)>$' $T/trace"
echo 0 >$T/options/stackmap-resolve
ok 'all else has its name' sh -c "grep -q ' param_attr_store+' $T/stack_map"

echo 0 >$T/tracing_on
ok 'a reset' put reset $T/stack_map
echo 1 >$T/tracing_on
ok 'the new module has a stack recorded' record ghost_b
ok 'it has its name' sh -c "grep -q ' ghost_b_inner+0x.* \[ghost_b\]$' $T/stack_map"
now=$(frames)
ok 'it goes' rmmod ghost_b
is 'and its frames keep their names' "$(frames)" "$now"

# Many times: what is remembered does not grow, and never lies.
for _ in 1 2 3 4 5 6 7 8; do
	insmod /tests/ghost_a.ko
	record ghost_a
	is 'the old names never name the new module' "$(frames | grep -c ghost_b_inner)" 0
	rmmod ghost_a
done

# Whoever reads the console of a dying kernel has no map.
echo 0 >$T/tracing_on
ok 'another reset' put reset $T/stack_map
echo 1 >$T/tracing_on
clear_trace
insmod /tests/ghost_a.ko
is 'the buffer holds an id' "$(ids | wc -l) $(full)" '1 0'
dmesg -c >/dev/null
echo z >/proc/sysrq-trigger
dmesg >/tmp/dump
is 'a dump shows no id' "$(grep -c '<stack_id' /tmp/dump)" 0
ok 'but the stack' grep -q ' => ghost_a_inner' /tmp/dump
ok 'rmmod ghost_a' rmmod ghost_a
echo 0 >$T/tracing_on
echo 0 >$T/options/stackmap
ok 'rmmod' rmmod stackmap
finish
