#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: stackmap record leaves tracefs as it found it, however it ends.
#
#   tools/vm/run --add STACKMAP:/bin/stackmap -- tools/stackmap/tests/guest/record.sh
#
# Needs a static build of the tool, and the module at /lib/stackmap/stackmap.ko.

T=/sys/kernel/tracing
W=/tmp/record
failures=0
passes=0

fail()
{
	echo "FAIL: $*"
	failures=$((failures + 1))
}

pass()
{
	echo "ok: $*"
	passes=$((passes + 1))
}

# What a recording may change. A buffer that was never used has the size that it would expand to.
state()
{
	cd $T || exit 1
	for file in tracing_on current_tracer set_event set_event_pid set_ftrace_filter trace_clock \
		buffer_size_kb per_cpu/cpu*/buffer_size_kb options/*; do
		echo "$file: $(sed 's/.*(expanded: \([0-9]*\))/\1/' "$file" | sort | tr '\n' ' ')"
	done
	cd $W || exit 1
}

# A state with nothing on.
idle()
{
	echo 0 > $T/tracing_on
	echo nop > $T/current_tracer
	echo > $T/set_event
	echo > $T/set_ftrace_filter
	for option in stacktrace stackmap func_stack_trace; do
		echo 0 > $T/options/$option
	done
	echo 1 > $T/tracing_on
}

# A state that somebody works in.
busy()
{
	idle
	echo vfs_read > $T/set_ftrace_filter
	echo 'ksys_w*' >> $T/set_ftrace_filter
	# A function of a module, if there is any.
	sed -n 's/^\([a-z0-9_]*\) \[\([a-z0-9_]*\)\].*/\1:mod:\2/p' $T/available_filter_functions |
		head -n 1 >> $T/set_ftrace_filter
	echo function > $T/current_tracer
	echo kmem:kfree > $T/set_event
	echo sched:sched_process_fork >> $T/set_event
	echo 1 > $T/set_event_pid
	echo 1 > $T/options/stacktrace
	echo 512 > $T/buffer_size_kb
	echo 640 > $T/per_cpu/cpu0/buffer_size_kb
}

# after NAME: nothing is left behind, and the state is that of $before.
after()
{
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		[ "$(state)" = "$before" ] && ! pidof stackmap > /dev/null && break
		sleep 0.5
	done
	state > $W/after
	echo "$before" > $W/before
	if ! diff $W/before $W/after; then
		fail "$1: tracefs is not as it was"
	elif pidof stackmap > /dev/null; then
		fail "$1: a process is left"
		pidof stackmap
	elif ls $W/.stackmap-* 2> /dev/null; then
		fail "$1: a temporary file is left"
	else
		pass "$1"
	fi
}

# wait_for TEXT FILE: until TEXT is in FILE.
wait_for()
{
	for _ in $(seq 200); do
		grep -qs "$1" "$2" && return
		sleep 0.1
	done
	fail "\"$1\" never came:"
	cat "$2"
}

record()
{
	rm -f $W/out $W/log
	# Functions, events, buffers: all that can be changed.
	stackmap record --force --slim -e kmem:kmalloc -e 'block:*' -f vfs_write -b 256 -o $W/out "$@" \
		> $W/log 2>&1
}

mkdir -p $W
cd $W || exit 1

# Loading it is part of what the tool does.
stackmap record --slim -e kmem:kmalloc --module /lib/stackmap/stackmap.ko -o out -- true ||
	fail "the first recording"
[ -e $T/options/stackmap ] || fail "the module is not loaded"

for setup in idle busy; do
	$setup
	before=$(state)

	record -- sh -c 'echo x > /tmp/x; exit 3'
	[ $? = 3 ] || fail "$setup: the exit status of a command: $(cat log)"
	stackmap report out > text || fail "$setup: the report"
	grep -q 'vfs_write()' text || fail "$setup: no calls of functions in the report"
	grep -q 'WARNING.*unknown' text && fail "$setup: unknown ids: $(cat text)"
	after "$setup: a command that ends"

	for step in guarded stopped emptied options functions events running ended written restored; do
		record --hold-at $step -- sleep 0.1 &
		wait_for "held at $step" log
		# The process, not the one that guards tracefs.
		pid=$(pidof stackmap | tr ' ' '\n' | sort -n | head -n 1)
		kill -KILL "$pid"
		wait
		after "$setup: killed at $step"
		case $step in
		written | restored) stackmap dump out > /dev/null 2>&1 || fail "$step: no capture" ;;
		*) [ -e out ] && fail "$step: half a capture" ;;
		esac
	done

	for signal in INT TERM HUP; do
		record --duration 100 &
		sleep 3
		kill -$signal "$(pidof stackmap | tr ' ' '\n' | sort -n | head -n 1)"
		wait $! || fail "$setup: $signal: status $?: $(cat log)"
		stackmap dump out > /dev/null 2>&1 || fail "$setup: $signal: no capture"
		after "$setup: ended by $signal"
	done

	record -- sh -c 'kill -KILL $$'
	[ $? = 137 ] || fail "$setup: the exit status of a command that was killed"
	after "$setup: a command that is killed"

	record -- /nowhere/at/all
	[ $? = 1 ] || fail "$setup: a command that is not there"
	after "$setup: a command that is not there"

	record -e 'kmem:nothing*' -- true
	[ $? = 1 ] || fail "$setup: an event that is not there"
	grep -q 'there is no event "kmem:nothing\*"' log || fail "$setup: $(cat log)"
	after "$setup: an event that is not there"

	record -f nothing_at_all -- true
	[ $? = 1 ] || fail "$setup: a function that is not there"
	grep -q 'there is no function "nothing_at_all"' log || fail "$setup: $(cat log)"
	after "$setup: a function that is not there"

	mkdir -p small
	mount -t tmpfs -o size=4k tmpfs small
	stackmap record --force -e kmem:kmalloc -o small/out -- true > log 2>&1
	[ $? = 1 ] || fail "$setup: a full disk"
	grep -q 'No space left' log || fail "$setup: $(cat log)"
	[ -z "$(ls -A small)" ] || fail "$setup: something is left on the full disk"
	umount small
	after "$setup: a full disk"
done

busy
before=$(state)
stackmap record -e kmem:kmalloc -o $W/out -- true > log 2>&1 && fail "took what somebody uses"
grep -q 'somebody is tracing already' log || fail "$(cat log)"
after "what somebody uses is left alone"

idle
echo "$passes passed, $failures failed"
[ $failures = 0 ]
