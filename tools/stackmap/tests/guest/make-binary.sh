#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: makes those captures of tests/data anew that are of the binary ring buffer, into the
# directory that is shared as /share, with the kernel's text of the same buffers.
#
#   tools/vm/boot --share DIR --add STACKMAP:/bin/stackmap \
#       --add tools/stackmap/tests/guest/attack.sh:/bin/attack -- tools/stackmap/tests/guest/make-binary.sh
set -eu

T=/sys/kernel/tracing
insmod /lib/stackmap/stackmap.ko bits=12

# both NAME RECORD-ARGUMENT...: a capture, and before it is taken the text of its buffer.
both()
{
	name=$1
	shift
	: > /tmp/log
	stackmap record --slim --reset --fault ended:hold -o "/share/$name.data" "$@" > /tmp/log 2>&1 &
	recording=$!
	until grep -q 'held at ended' /tmp/log; do
		kill -0 $recording
		sleep 0.2
	done
	gzip -c $T/trace > "/share/$name.trace.gz"
	kill -INT $recording
	wait $recording || status=$?
	cat /tmp/log
	return "${status:-0}"
}

# Something of everything.
both mixed -b 4096 -e 'kmem:*' -e 'sched:*' -e 'timer:*' -e 'irq:*' -e 'syscalls:*' -- ls /proc/self

# What somebody without any right may call files and tasks.
attack prepare
both attack -b 4096 -e sched:sched_process_exec -e kmem:kmalloc -e sched:sched_switch \
	-- attack run
