#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Ids of an earlier load of the module: on unload the kernel clears only the buffers of CPUs that are
# online, so those of one that is not survive in its buffer.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 13

CPU1=/sys/devices/system/cpu/cpu1/online

# ids_of_cpu1 FILE - the ids in a text of its buffer, and what stands behind them.
ids_of_cpu1() {
	sed -n 's/.*<stack_id \([0-9]*\)>/\1/p' "$1"
}

# ids_in_map - the ids of the stacks in the map.
ids_in_map() {
	sed -n 's/^stack_id \([0-9]*\) .*/\1/p' $T/stack_map | sort
}

insmod /tests/stackgen.ko || bail 'stackgen'
load
first=$(load_id)
ok 'a load has an id before the option is on' test "$first" -gt 0
echo 1 >$T/options/stackmap
is 'and the same one behind it' "$(load_id)" "$first"
ok 'CPU 1 records' taskset 2 sh -c 'echo 20 0 300 >/sys/kernel/debug/stackgen/record'
ids_of_cpu1 $T/per_cpu/cpu1/trace | sort >/tmp/old
is '300 ids' "$(sort -u /tmp/old | wc -l)" 300
ok 'and goes' put 0 $CPU1
ok 'rmmod' rmmod stackmap

load
second=$(load_id)
ok 'another load has another id' test "$second" -gt 0 -a "$second" != "$first"
echo 1 >$T/options/stackmap
stackgen record 20 100000 4000
is 'it holds thousands of stacks' "$(value entries)" 4000
ok 'CPU 1 comes back' put 1 $CPU1
ids_in_map >/tmp/map
is 'none of which is in the map' "$(sort /tmp/map /tmp/old | uniq -d | wc -l)" 0
# In trace the kernel shows nothing from before it has cleared the others.
echo 1 >$T/options/stackmap-resolve
cat $T/per_cpu/cpu1/trace_pipe >/tmp/pipe &
for _ in $(seq 60); do
	sleep 1
	[ "$(grep -c stack_id /tmp/pipe)" -lt 300 ] || break
done
# The rest of the last line.
sleep 1
kill $!
is 'trace_pipe shows no stack for them' "$(grep -c '<stack trace>' /tmp/pipe)" 0
is 'but that they are gone' "$(ids_of_cpu1 /tmp/pipe | sort)" "$(sed 's/$/ (gone)/' /tmp/old)"
ok 'rmmod' rmmod stackmap
finish
