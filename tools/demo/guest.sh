#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What a user would type, and what they see.

cd /sys/kernel/tracing || exit 1

say() {
	printf '\n--- %s\n' "$*"
}

# show COMMAND - prints a command as if typed, and runs it.
show() {
	echo "# $1"
	eval "$1"
}

say 'the kernel, as it was packaged'
show 'cat /proc/version'
say 'the module'
show 'insmod /lib/stackmap/stackmap.ko bits=14 && dmesg | grep stackmap: | tail -n 2'
say 'stacks become ids'
show 'echo 1 > options/stackmap'
say 'the function tracer on scheduling, with stacks, and every kmem event, with stacks'
show 'echo schedule schedule_timeout try_to_wake_up > set_ftrace_filter'
show 'echo 1 > options/func_stack_trace && echo function > current_tracer'
show 'echo 1 > options/stacktrace && echo 1 > events/kmem/enable'
show 'for i in 1 2 3; do ls -lR /sys/class/tty | gzip > /tmp/list; dd if=/dev/zero of=/tmp/data bs=4k count=64 2> /dev/null; done'
show 'echo 0 > tracing_on'
say 'an excerpt of trace'
show "grep -v '^#' trace | grep -m 1 -A 9 ': schedule ' | cut -c1-110"
say 'the five hottest stacks'
# shellcheck disable=SC2016
awk '
	/^stack_id/ { ref = $4 + 0; text = $0; frames = 0; next }
	/^$/ { print ref "\t" text; next }
	++frames < 10 { text = text "|" $0 }
	frames == 10 { text = text "|  ..." }' stack_map | sort -rn | head -n 5 | cut -f 2 | tr '|' '\n'
say 'counters'
show 'cat stack_map_stat'
awk '
	function commas(n,  s) {
		s = sprintf("%d", n)
		while (match(s, /^[0-9][0-9][0-9][0-9]+/))
			s = substr(s, 1, RLENGTH - 3) "," substr(s, RLENGTH - 2)
		return s
	}
	$1 == "successes:" { events = $2 }
	$1 == "entries:" { stacks = $2 }
	$1 == "bytes_saved:" { saved = $2 }
	END {
		ids = events * 16
		printf "\n%s stacks, %s of them distinct: %s bytes of ring buffer in full, %s as ids, %.1f times less\n",
			commas(events), commas(stacks), commas(ids + saved), commas(ids), (ids + saved) / ids
	}' stack_map_stat
