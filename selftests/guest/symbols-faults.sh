#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What the frames of a module are called when there was no memory to remember it.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 4

# base MODULE - where its text is.
base() {
	cat /sys/module/"$1"/sections/.text
}

record() {
	echo 1 >/sys/module/"$1"/parameters/record
}

load bits=10
echo 1 >$T/options/stackmap

# Without memory for the names of one module, as it goes or as another one comes to its place, no other
# name is lost, and none is wrong.
for at in going coming; do
	faults=0 names=''
	for func in __kvmalloc_node_noprof krealloc_node_align_noprof kvrealloc_node_align_noprof __kmalloc_cache_noprof; do
		grep -q " $func$" /proc/kallsyms || continue
		for skip in 0 1 2 3 4 5; do
			echo 0 >$T/tracing_on
			put reset $T/stack_map
			echo 1 >$T/tracing_on
			insmod /tests/ghost_a.ko
			record ghost_a
			place=$(base ghost_a)
			old=" $(awk '/^stack_id/ { print $2 }' $T/stack_map | xargs) "
			# Loaded before the place is free.
			override func=$func count=0
			[ $at = going ] || rmmod ghost_a
			echo $skip >/sys/module/override/parameters/skip
			echo 1 >/sys/module/override/parameters/count
			[ $at = coming ] || rmmod ghost_a
			[ $at = going ] || insmod /tests/ghost_b.ko
			left=$(cat /sys/module/override/parameters/count)
			rmmod override
			named=$(grep -c ' ghost_a_' $T/stack_map)
			[ $at = coming ] || insmod /tests/ghost_b.ko
			same=$([ "$(base ghost_b)" = "$place" ] && echo same)
			# The init of ghost_b records a stack of its own.
			wrong=$(awk -v RS= -v old="$old" 'index(old, " " $2 " ") && / ghost_[ab]_/' $T/stack_map)
			others=$(grep -c ' param_attr_store+' $T/stack_map)
			rmmod ghost_b
			[ "$left" = 0 ] || break
			[ "$others" -gt 0 ] || result 'not ok' "$at, $func $skip: the kernel has no names"
			names="$names $named"
			[ "$same" ] || continue
			faults=$((faults + 1))
			[ -z "$wrong" ] || result 'not ok' "$at, $func $skip: a name of what may be another"
		done
	done
	ok "$at: allocations failed" test $faults -ge 3
	note "$at: $faults allocations failed, names left after each:$names"
done
is 'one line says so' "$(dmesg | grep -c 'out of memory saving module symbols')" 1
echo 0 >$T/tracing_on
put reset $T/stack_map
echo 1 >$T/tracing_on
insmod /tests/ghost_a.ko
record ghost_a
rmmod ghost_a
ok 'after a reset there are names again' sh -c "grep -q ' ghost_a_inner+0x.* \[ghost_a\]$' $T/stack_map"
finish
