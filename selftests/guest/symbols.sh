#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What the frames of a module are called when it has gone, and when another one has come to its place.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 46

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

# A module comes to the first place that is free; init text of others goes a little later than they come.
sleep 2
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

# comes MODULE - loads it at the place of the first one.
comes() {
	insmod /tests/"$1".ko
	for _ in 1 2 3 4; do
		[ "$(base "$1")" != "$place" ] || break
		rmmod "$1"
		sleep 1
		insmod /tests/"$1".ko
	done
}

# Another one at the same place.
comes ghost_b
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
	comes ghost_a
	record ghost_a
	is 'the old names never name the new module' "$(frames | grep -c ghost_b_inner)" 0
	rmmod ghost_a
done
# loads COUNT - of a module whose functions are in stacks.
loads() {
	for _ in $(seq "$1"); do
		insmod /tests/ghost_a.ko
		rmmod ghost_a
	done
}
# Sizes of the arrays that the kernel allocates for one such load.
sizes() {
	echo 1 >$T/instances/sizes/events/kprobes/array/enable
	loads 1
	echo 0 >$T/instances/sizes/events/kprobes/array/enable
	grep -o 'size=[0-9]*' $T/instances/sizes/trace | sort -u | paste -s -d ' ' -
	echo >$T/instances/sizes/trace
}
# Pages of slabs that the kernel cannot take back.
unreclaimable() {
	sleep 1
	awk '/^SUnreclaim:/ { print $2 }' /proc/meminfo
}
# Those of the kvrealloc() family, which a KVVec is from.
echo 'p:array kvrealloc_node_align_noprof size=$arg2:u64' >$T/kprobe_events
mkdir $T/instances/sizes
echo 'comm == "insmod" || comm == "rmmod"' >$T/instances/sizes/events/kprobes/array/filter
loads 40
before=$(sizes)
# What else the kernel does may take pages meanwhile, but not each time.
for _ in 1 2 3; do
	held=$(unreclaimable)
	loads 200
	grown=$(($(unreclaimable) - held))
	note "200 loads of a module: $grown KiB"
	[ $grown -ge 60 ] || break
done
ok 'loads of a module leave no memory behind' test "$grown" -lt 60
note "arrays of a load: $before"
is 'what is remembered of them is no more than before' "$(sizes)" "$before"
rmdir $T/instances/sizes
echo >$T/kprobe_events

# A module that goes while a reset ends: what it leaves is of the new stacks.
insmod /tests/ghost_a.ko
record ghost_a
echo 0 >$T/tracing_on
# Delayed are the lock that this very insmod takes, and the two that a reset takes, on its CPU.
taskset -p 1 $$ >/dev/null
lock=mutex_lock
# lockdep's.
grep -q " $lock$" /proc/kallsyms || lock=mutex_lock_nested
override func=$lock delay=1500 count=3
taskset 2 sh -c "echo reset >$T/stack_map" &
sleep 2.3
echo 1 >$T/tracing_on
record ghost_a
rmmod ghost_a
wait
rmmod override
taskset -p 3 $$ >/dev/null
ok 'a module that goes while a reset ends leaves its names' sh -c "grep -q ' ghost_a_inner+0x.* \[ghost_a\]$' $T/stack_map"

# Unloading: as long as the trace shows stacks, it knows whose they are.
wrong=0 shown=0
for _ in 1 2 3; do
	echo 0 >$T/options/stackmap
	rmmod stackmap
	rmmod ghost_b 2>/dev/null
	load bits=10
	echo 1 >$T/options/stackmap
	echo 1 >$T/options/stackmap-resolve
	insmod /tests/ghost_a.ko
	record ghost_a
	at=$(base ghost_a)
	rmmod ghost_a
	insmod /tests/ghost_b.ko
	# At another place the names are its own.
	[ "$(base ghost_b)" = "$at" ] || at=
	clear_trace
	record ghost_b
	rm -f /tmp/off
	(while [ ! -e /tmp/off ]; do cat $T/trace; done) >/tmp/shown &
	sleep 0.3
	echo 0 >$T/options/stackmap-resolve
	echo 1 >$T/options/stackmap-resolve
	rmmod stackmap
	: >/tmp/off
	wait
	shown=$((shown + $(grep -c '=> param_attr_store' /tmp/shown)))
	[ -z "$at" ] || wrong=$((wrong + $(grep -c 'ghost_' /tmp/shown)))
	load bits=10
done
ok "the trace was shown while the module went ($shown stacks)" test "$shown" -gt 2
is 'no frame had the name of another module' $wrong 0
rmmod ghost_b
echo 1 >$T/options/stackmap

# Grace periods that a load and unload of another module waits for, besides the kernel's own.
echo 'p:sync synchronize_rcu' >$T/kprobe_events
waits() {
	mkdir -p $T/instances/waits
	echo "comm == \"insmod\" || comm == \"rmmod\"" >$T/instances/waits/events/kprobes/sync/filter
	echo 1 >$T/instances/waits/events/kprobes/sync/enable
	insmod /tests/stackgen.ko
	rmmod stackgen
	echo 0 >$T/instances/waits/events/kprobes/sync/enable
	grep -c 'sync:' $T/instances/waits/trace
	rmdir $T/instances/waits
}
# The only stack is none of its place, nor of its init's.
echo 0 >$T/tracing_on
put reset $T/stack_map
echo 0 >$T/options/stackmap
insmod /tests/ghost_a.ko
echo 1 >$T/options/stackmap
echo 1 >$T/tracing_on
record ghost_a
on=$(waits)
echo 0 >$T/options/stackmap
off=$(waits)
rmmod stackmap
none=$(waits)
echo >$T/kprobe_events
rmmod ghost_a
note "grace periods of an insmod and rmmod: $none, $off with stacks in the map, $on with the option on"
is 'with the option off no other module waits' "$off" "$none"
ok 'with it on, one wait at the end of its init and one as it goes' test "$on" -le $((none + 2))
load bits=10
echo 1 >$T/options/stackmap

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
