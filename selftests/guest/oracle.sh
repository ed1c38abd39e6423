#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Records the same events twice, as ids at the top level and as full stacks in an instance, and
# leaves both in /share for selftests/oracle.py. Arguments: the hook, and "instance" to have the ids
# recorded in an instance as well, one that is listed.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan "$([ "${2:-}" = instance ] && echo 10 || echo 6)"

verify=0
load hook="$1" bits=16
is "the hook is $1" "$(value hook)" "$1"
I=$T/instances/twin
mkdir $I
D=$T
if [ "${2:-}" = instance ]; then
	D=$T/instances/listed
	mkdir $D
	ok 'an instance is listed' put listed $T/stack_map_instances
fi

workload() {
	for round in 1 2 3; do
		ls -l /sys/class/tty >/dev/null
		dd if=/dev/zero of="/tmp/data.$1.$round" bs=4k count=20 2>/dev/null
		wc -c "/tmp/data.$1.$round" | cat >/dev/null
		sleep 0.05
	done
}

mkfifo /tmp/go.0 /tmp/go.1
for cpu in 0 1; do
	(
		read -r _ <"/tmp/go.$cpu"
		workload $cpu
	) &
	taskset -p $((1 << cpu)) $! >/dev/null
	pids="$pids $!"
done

for dir in $D $I; do
	echo 16384 >"$dir/buffer_size_kb"
	echo 1 >"$dir/options/stacktrace"
	echo 1 >"$dir/options/event-fork"
	echo 1 >"$dir/options/sym-addr"
	echo "$pids" >"$dir/set_event_pid"
	echo 1 >"$dir/tracing_on"
done
echo 1 >$T/options/stackmap
for event in syscalls kmem sched; do
	echo 1 >$I/events/$event/enable
	echo 1 >$D/events/$event/enable
done
echo >/tmp/go.0
echo >/tmp/go.1
# shellcheck disable=SC2086
wait $pids
# A task that is waited for has not left its CPU for the last time yet.
sleep 0.5
for dir in $D $I; do
	echo 0 >"$dir/tracing_on"
	is "no event was lost in ${dir##*/}" \
		"$(cat "$dir"/per_cpu/cpu*/stats | awk '/overrun|dropped/ { s += $NF } END { print s }')" 0
done
cp $T/stack_map_bin $T/stack_map_stat /share
drops_add_up
is 'no stack found all levels of nesting in use' "$(value drop_nested)" 0
for cpu in 0 1; do
	cp $D/per_cpu/cpu$cpu/trace /share/ids.$cpu
	cp $I/per_cpu/cpu$cpu/trace /share/full.$cpu
done
echo 0 >$D/events/enable
echo 0 >$I/events/enable
rmdir $I
if [ $D != $T ]; then
	fails 'a listed instance is busy' 'esource busy' rmdir $D
	ok 'it is taken off the list' put '!listed' $T/stack_map_instances
	ok 'and removed' rmdir $D
fi
ok 'rmmod' rmmod stackmap
finish
