#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Whether stackmap and the hist trigger count the same, of the same events.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

E=$T/events/kmem/kmem_cache_alloc
HIST='hist:keys=common_stacktrace:size=16384'

workload() {
	ls -lR /sys/class/tty /etc >/dev/null
	for i in 1 2 3; do
		dd if=/dev/zero of=/root/data.$i bs=4k count=50 conv=fsync 2>/dev/null
	done
	find /usr -name '*.so' | sort | tail -n 1 >/dev/null
}

# Only the workload's tasks are recorded, so that both begin and end with it.
mkfifo /tmp/go
(
	read -r _ </tmp/go
	workload
) &
echo 1 >$T/options/event-fork
echo $! >$T/set_event_pid
echo 16384 >$T/buffer_size_kb
load
echo 1 >$T/options/stackmap
echo 1 >$T/options/stacktrace
echo "$HIST" >$E/trigger
echo 1 >$E/enable
echo >/tmp/go
wait $!
echo 0 >$E/enable

# The histogram leaves out the two innermost frames, and keeps 31 of the others.
awk '
	/^{ common_stacktrace:/ { key = ""; next }
	/^} hitcount:/ { sum[key] += $3; next }
	/^ / { key = key " " $1 }
	END { for (key in sum) print sum[key] key }' $E/hist | sort >/tmp/hist
awk '
	function end() { if (refs) sum[key] += refs; refs = 0 }
	/^stack_id/ { end(); key = ""; refs = $4 + 0; nr = 0; next }
	/^ / && nr++ >= 2 && nr <= 33 { key = key " " $2 }
	END { end(); for (key in sum) print sum[key] key }' $T/stack_map | sort >/tmp/stackmap
[ "$(value drops)" = 0 ] || bail "$(value drops) drops"
figure same "$(comm -12 /tmp/hist /tmp/stackmap | wc -l)"
figure differ "$(comm -3 /tmp/hist /tmp/stackmap | wc -l)"
figure events "$(awk '{ sum += $1 } END { print sum }' /tmp/stackmap)"
figure events_hist "$(awk '{ sum += $1 } END { print sum }' /tmp/hist)"
comm -3 /tmp/hist /tmp/stackmap | head -n 4 | cut -c 1-400 | sed 's/^/# /'
echo finished
