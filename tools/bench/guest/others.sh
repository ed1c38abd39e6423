#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# An event and its stack by stackmap and by what people use: instructions and bytes.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

DEPTHS='4 12 28'
N=200
E=$T/events/stackcost/stackcost_hit
HIST='hist:keys=common_stacktrace:size=16384'

# costs NAME - the event with known stacks, at each depth.
costs() {
	for depth in $DEPTHS; do
		echo "event $depth 0 $N" >$C/measure
		figure "$1.$depth" "$(cost event "$depth" 0 $N)"
	done
}

# available - bytes of memory.
available() {
	awk '/^MemAvailable:/ { printf "%d", $2 * 1024 }' /proc/meminfo
}

# recorded - bytes that the events are in the ring buffer, and their number.
recorded() {
	awk '/^entries:/ { entries = $2 } /^bytes:/ { print $2, entries }' $T/per_cpu/cpu0/stats
}

# bytes NAME PER - bytes of an event of 12 further frames, which is PER entries of the ring buffer.
bytes() {
	clear_trace
	echo "event 12 0 $N" >$C/measure
	recorded | {
		read -r sum entries
		figure "bytes.$1" $((sum * $2 / entries))
	}
}

prepare
counts_instructions
# Before all else: each module that is loaded makes a walk through the frames of one costlier.
load
echo 1 >$E/enable
costs event
bytes event 1
echo 1 >$T/options/stacktrace
costs full
bytes full 2
echo 1 >$T/options/stackmap
costs stackmap
bytes stackmap 2
figure memory.stackmap $(($(value pool_bytes) + $(value table_bytes)))
figure capacity.stackmap "$(entries | sed 's/.*\/ //')"
echo 0 >$T/options/stackmap
echo 0 >$T/options/stacktrace
echo 0 >$E/enable

echo 3 >/proc/sys/vm/drop_caches
before=$(available)
echo "$HIST" >$E/trigger
figure memory.hist $((before - $(available)))
figure capacity.hist 16384
costs hist
echo "!$HIST" >$E/trigger

bpftrace -e 'tracepoint:stackcost:stackcost_hit { @[kstack] = count(); }' >/tmp/bpftrace 2>&1 &
for _ in $(seq 60); do
	sleep 1
	! grep -q Attach /tmp/bpftrace || break
done
sleep 1
costs bpftrace
figure memory.bpftrace "$(awk '
	FNR == 1 { type = 0 }
	/^map_type:/ { type = $2 }
	# BPF_MAP_TYPE_STACK_TRACE, and the hash of counts, of any kind.
	/^memlock:/ && (type == 1 || type == 5 || type == 7 || type == 9) { sum += $2 }
	END { printf "%d", sum }' /proc/$!/fdinfo/*)"
# Of the map of stacks, whose values are the frames.
figure capacity.bpftrace "$(awk '/^value_size:/ { size = $2 } /^max_entries:/ && size >= 1016 && $2 > 1 { print $2 }' /proc/$!/fdinfo/*)"
kill -INT $!
wait $!
figure stacks.bpftrace "$(grep -c '^@\[' /tmp/bpftrace)"

perf record -q -g -a -e stackcost:stackcost_hit -o /tmp/perf.data sleep 1000 >/tmp/perf 2>&1 &
for _ in $(seq 100); do
	sleep 1
	[ "$(cost event 4 0 1)" -lt 1000 ] || break
done
costs perf
clock
before=$clock
echo "event 12 0 2000" >$C/measure
read -r _ spent _ <$C/cost
sleep 1
kill -INT $!
wait $!
clock
size=$(stat -c %s /tmp/perf.data) || bail "perf: $(cat /tmp/perf)"
events=$(perf script -i /tmp/perf.data -F event 2>/dev/null | grep -c stackcost_hit)
figure bytes.perf $((size / events))
figure events.perf "$events"
note "perf: $size bytes, $events events, $spent instructions in 2000, $((clock - before)) until it ended"

echo finished
