#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Everything that people move while they trace, moved at once, on two CPUs; meanwhile a witness records
# stacks whose number it knows. Arguments: the hook, how many seconds.
# shellcheck disable=SC2086
# shellcheck source=SCRIPTDIR/tap.sh
. /tests/tap.sh

hook=$1
seconds=$2
S=/tmp/storm
mkdir -p $S
CPU1=/sys/devices/system/cpu/cpu1

# again NAME COMMAND... - repeats COMMAND until the storm is over, and counts.
again() {
	name=$1
	shift
	(
		rounds=0
		while [ ! -e $S/stop ]; do
			"$@" 2>/dev/null
			rounds=$((rounds + 1))
			sleep 0.05
		done
		echo $rounds >"$S/$name"
	) &
	workers="$workers $name"
	pids="$pids $!"
}

# What stops, empties or changes the buffer, or records more stacks, waits while the witness counts.
apart() {
	while [ -e $S/witness ] || ! mkdir $S/lock 2>/dev/null; do
		sleep 0.02
	done
	"$@"
	set -- $?
	rmdir $S/lock
	return $1
}

witness() {
	touch $S/witness
	until mkdir $S/lock 2>/dev/null; do
		sleep 0.02
	done
	"$@"
	rmdir $S/lock
	rm $S/witness
	sleep 0.5
}

move_cpu() {
	echo 0 >$CPU1/online
	sleep 0.3
	echo 1 >$CPU1/online
	sleep 0.3
}

move_tracing() {
	apart sh -c "echo 0 >$T/tracing_on; sleep 0.02; echo 1 >$T/tracing_on"
}

move_buffer() {
	for size in 1024 4096; do
		apart sh -c "echo $size >$T/buffer_size_kb"
	done
}

move_snapshot() {
	apart sh -c "echo 1 >$T/snapshot; echo 2 >$T/snapshot; echo 0 >$T/snapshot"
}

move_clock() {
	for clock in global mono local; do
		apart sh -c "echo $clock >$T/trace_clock"
	done
}

move_marker() {
	echo 'a marker' >$T/trace_marker
}

move_tracer() {
	for tracer in function function_graph nop; do
		apart sh -c "echo $tracer >$T/current_tracer"
		sleep 0.2
	done
}

move_option() {
	echo 1 >$T/options/stackmap
	sleep 0.2
	echo 0 >$T/options/stackmap
}

# Refused while tracing is on, as it nearly always is.
move_reset() {
	echo reset >$T/stack_map
	apart sh -c "echo 0 >$T/tracing_on; echo reset >$T/stack_map; echo 1 >$T/tracing_on" &&
		echo "done" >>$S/resets
}

move_module() {
	insmod /tests/override.ko
	insmod /tests/contexts.ko
	taskset 1 sh -c 'echo "hardirq 20" >/sys/kernel/debug/contexts/run'
	taskset 1 sh -c 'echo "nmi 5" >/sys/kernel/debug/contexts/run'
	rmmod contexts
	rmmod override
}

move_instance() {
	mkdir $T/instances/storm
	echo 1 >$T/instances/storm/options/stacktrace
	echo 1 >$T/instances/storm/events/sched/sched_switch/enable
	sleep 0.1
	rmdir $T/instances/storm
}

move_events() {
	apart sh -c "for on in 1 0; do
		echo \$on >$T/events/sched/enable
		echo \$on >$T/events/contexts/enable
		sleep 0.1
	done"
}

read_files() {
	cat $T/stack_map $T/stack_map_stat $T/stack_map_bin >/dev/null
	head -c 100000 $T/trace >/dev/null
}

work() {
	ls -l /sys/class/tty >/dev/null
	cat /proc/self/maps >/dev/null
}

# One batch: as many stacks as were made are in the buffer, and each id has its stack.
count_batch() {
	echo 1 >$T/tracing_on
	clear_trace
	stackgen record 12 "$1" 50
	echo 0 >$T/tracing_on
	lost=$(cat $T/per_cpu/cpu*/stats | awk '/overrun|dropped/ { s += $NF } END { print s }')
	grep '<stack' $T/trace >$S/batch
	grep -c . $S/batch >$S/nr
	sed -n 's/.*<stack_id \([0-9]*\)>.*/stack_id \1 /p' $S/batch | sort -u >$S/batch.ids
	unknown=0
	if [ -s $S/batch.ids ]; then
		cat $T/stack_map >$S/map
		while read -r id; do
			grep -q "^$id" $S/map || unknown=$((unknown + 1))
		done <$S/batch.ids
	fi
	echo "$(cat $S/nr) $lost $unknown $(wc -l <$S/batch.ids)" >>$S/batches
	echo 1 >$T/tracing_on
}

insmod /tests/stackgen.ko || bail 'stackgen'
before=$(hook_text)
load hook="$hook" bits=12
echo 4096 >$T/buffer_size_kb
echo 'vfs_read vfs_write schedule do_sys_openat2' >$T/set_ftrace_filter
echo 1 >$T/options/stacktrace
: >$S/batches

again cpu move_cpu
again tracing move_tracing
again buffer move_buffer
again snapshot move_snapshot
again clock move_clock
again marker move_marker
again tracer move_tracer
again option move_option
again reset move_reset
again module move_module
again instance move_instance
again events move_events
again files read_files
again work work

end=$(($(cut -d. -f1 /proc/uptime) + seconds))
first=0
while [ "$(cut -d. -f1 /proc/uptime)" -lt $end ]; do
	witness count_batch $first
	first=$(((first + 50) % 4000))
done
touch $S/stop
# shellcheck disable=SC2086
wait $pids

echo 1 >$CPU1/online
for name in $workers; do
	ok "$name moved: $(cat "$S/$name") times" test "$(cat "$S/$name")" -gt 0
done
note "$(grep -c . $S/resets) resets; $(awk '{ n += $1; ids += $4 } END { print NR, "batches,", n, "stacks,", ids, "ids" }' $S/batches)"
ok 'resets came through' test -s $S/resets
ok 'most batches lost nothing to a small buffer' \
	test "$(awk '$2 == 0' $S/batches | wc -l)" -gt $(($(wc -l <$S/batches) / 2))
is 'in these, each stack that was made is there' "$(awk '$2 == 0 && $1 != 50' $S/batches | wc -l)" 0
is 'and each id has its stack' "$(awk '{ s += $3 } END { print s }' $S/batches)" 0
ok 'ids were recorded' test "$(awk '{ s += $4 } END { print s }' $S/batches)" -gt 0
sed 's/^/# /' $T/stack_map_stat
echo nop >$T/current_tracer
echo 0 >$T/options/stackmap
is 'the text is as before' "$(hook_text)" "$before"
rmmod contexts 2>/dev/null
ok 'rmmod' rmmod stackmap
finish
