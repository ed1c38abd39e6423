#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Everything that people move while they trace, moved at once, on two CPUs; meanwhile a witness records
# stacks whose number it knows. Arguments: the hook, how many seconds.
# shellcheck disable=SC2086
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 25

hook=$1
seconds=$2
S=/tmp/storm
mkdir -p $S
CPU1=/sys/devices/system/cpu/cpu1
# Between two moves of a kind, in seconds; where all is slow, the witness would hardly have a turn.
pause=0.05
[ ! -e $KMEMLEAK ] || pause=3

# again NAME COMMAND... - repeats COMMAND until the storm is over, and counts how often it succeeds.
again() {
	name=$1
	shift
	(
		rounds=0
		while [ ! -e $S/stop ]; do
			! "$@" 2>/dev/null || rounds=$((rounds + 1))
			sleep $pause
		done
		echo $rounds >"$S/$name"
	) &
	workers="$workers $name"
	pids="$pids $!"
}

# What stops, empties or changes the buffer, or records more stacks, waits while the witness counts:
# either sees that the other has begun. No command is run to see it, so that waiting costs little.
apart() {
	: >"$S/moving.$name"
	while [ -e $S/witness ]; do
		rm "$S/moving.$name"
		while [ -e $S/witness ]; do
			sleep 0.2
		done
		: >"$S/moving.$name"
	done
	"$@"
	set -- $?
	rm "$S/moving.$name"
	return $1
}

moving() {
	for file in "$S"/moving.*; do
		[ ! -e "$file" ] || return 0
	done
	return 1
}

witness() {
	: >$S/witness
	while moving; do
		sleep 0.1
	done
	"$@"
	rm $S/witness
	sleep 2
}

move_cpu() {
	echo 0 >$CPU1/online && sleep 0.3 && echo 1 >$CPU1/online && sleep 0.3
}

move_tracing() {
	apart sh -c "echo 0 >$T/tracing_on && sleep 0.02 && echo 1 >$T/tracing_on"
}

move_buffer() {
	for size in 1024 4096; do
		apart sh -c "echo $size >$T/buffer_size_kb" || return
	done
}

move_snapshot() {
	apart sh -c "echo 1 >$T/snapshot && echo 2 >$T/snapshot && echo 0 >$T/snapshot"
}

move_clock() {
	for clock in global mono local; do
		apart sh -c "echo $clock >$T/trace_clock" || return
	done
}

move_marker() {
	echo 'a marker' >$T/trace_marker
}

move_tracer() {
	for tracer in function function_graph nop; do
		apart sh -c "echo $tracer >$T/current_tracer" || return
		sleep 0.2
	done
}

move_option() {
	echo 1 >$T/options/stackmap && sleep 0.2 && echo 0 >$T/options/stackmap
}

# The witness reads the trace by either.
move_resolve() {
	for on in 1 0; do
		apart sh -c "echo $on >$T/options/stackmap-resolve" || return
		tail -c 10000 $T/trace >/dev/null
	done
}

# Refused while tracing is on, as it nearly always is.
move_reset() {
	echo reset >$T/stack_map
	apart sh -c "echo 0 >$T/tracing_on; echo reset >$T/stack_map; done=\$?; echo 1 >$T/tracing_on
		exit \$done" && echo "done" >>$S/resets
}

# Their functions are in stacks. With a module whose events were on, what the buffer holds goes.
move_module() {
	insmod /tests/override.ko func=memchr_inv count=0 && insmod /tests/contexts.ko &&
		apart sh -c "echo 1 >$T/events/contexts/enable
		echo 'hardirq 20' >/sys/kernel/debug/contexts/run
		echo 'nmi 5' >/sys/kernel/debug/contexts/run
		echo 0 >$T/events/contexts/enable
		rmmod contexts" && echo "done" >>$S/modules && rmmod override
}

# One that records ids cannot go.
move_instance() {
	mkdir $T/instances/storm
	echo 1 >$T/instances/storm/options/stacktrace
	echo 1 >$T/instances/storm/events/sched/sched_switch/enable
	sleep 0.1
	if echo storm >$T/stack_map_instances; then
		sleep 0.1
		rmdir $T/instances/storm && echo gone >>$S/instances || echo busy >>$S/instances
		echo '!storm' >$T/stack_map_instances
	fi
	rmdir $T/instances/storm 2>/dev/null
	[ ! -e $T/instances/storm ]
}

move_events() {
	apart sh -c "for on in 1 0; do
		echo \$on >$T/events/sched/enable || exit
		sleep 0.1
	done"
}

read_files() {
	cat $T/stack_map_stat $T/stack_map_bin >/dev/null
	head -c 100000 $T/stack_map >/dev/null
	head -c 50000 $T/trace >/dev/null
}

work() {
	ls -l /sys/class/tty >/dev/null
	cat /proc/self/maps >/dev/null
}

# One batch: as many stacks as were made are in the buffer, and each id has its stack.
count_batch() {
	echo 1 >$T/tracing_on
	echo 0 >$T/options/stackmap-resolve
	clear_trace
	# It may go off again at any moment.
	echo 1 >$T/options/stackmap
	stackgen record 12 "$1" 50
	echo 0 >$T/tracing_on
	lost=$(cat $T/per_cpu/cpu*/stats | awk '/overrun|dropped/ { s += $NF } END { print s }')
	grep '<stack' $T/trace >$S/batch
	echo 1 >$T/options/stackmap-resolve
	grep '<stack' $T/trace >$S/resolved
	echo "$(wc -l <$S/batch) $lost $(grep -c '<stack_id' $S/resolved) $(grep -c '<stack_id' $S/batch)" >>$S/batches
	echo 0 >$T/options/stackmap-resolve
	echo 1 >$T/tracing_on
}

# The kernel's own unwinder says so once, without the module as well, where the function graph tracer
# returns.
echo 'stackmap-expect: WARNING: stack going in the wrong direction\? at return_to_handler' >/dev/kmsg
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
again resolve move_resolve
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
ok 'a module whose functions were in stacks was loaded and unloaded' test -s $S/modules
ok 'an instance that recorded ids could not be removed' grep -qx busy $S/instances
is 'none of them' "$(grep -cx gone $S/instances)" 0
is 'no batch lost anything to a small buffer' "$(awk '$2 != 0' $S/batches | wc -l)" 0
is 'each stack that was made is there' "$(awk '$1 != 50' $S/batches | wc -l)" 0
is 'and each id has its stack' "$(awk '{ s += $3 } END { print s }' $S/batches)" 0
ok 'ids were recorded' test "$(awk '{ s += $4 } END { print s }' $S/batches)" -gt 0
sed 's/^/# /' $T/stack_map_stat
echo nop >$T/current_tracer
echo 0 >$T/options/stackmap
is 'the text is as before' "$(hook_text)" "$before"
rmmod contexts 2>/dev/null
ok 'rmmod' rmmod stackmap
finish
