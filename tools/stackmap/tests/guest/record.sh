#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: stackmap record leaves tracefs as it found it, however it ends, and says what it has
# lost. Prints TAP. That it ends well at each of its steps is tested without a kernel, in ../record/.
#
#   tools/vm/boot --add "$(tools/stackmap/build-static)":/bin/stackmap \
#       --add tools/stackmap/tests/guest/attack.sh:/bin/attack -- \
#       tools/stackmap/tests/guest/record.sh [SIGNAL...]
#
# SIGNAL comes at some steps of a recording, as do errors and SIGKILL (default: INT TERM). Needs the
# module at /lib/stackmap/stackmap.ko.

T=/sys/kernel/tracing
W=/tmp/record
signals=${*:-INT TERM}
number=0
failed=0
# What is wrong with the case that runs.
wrong=''

wrong()
{
	wrong="$wrong
$*"
}

# The case is over.
result()
{
	number=$((number + 1))
	if [ -z "$wrong" ]; then
		echo "ok $number - $1"
	else
		failed=$((failed + 1))
		echo "not ok $number - $1"
		echo "$wrong" | sed 's/^/# /'
		sed 's/^/# log: /' $W/log
	fi
	wrong=''
}

# What a recording may change. A buffer that was never used has the size that it would expand to.
state()
{
	cd $T || exit 1
	grep -s '' tracing_on current_tracer set_event set_event_pid set_event_notrace_pid set_ftrace_pid \
		set_ftrace_filter trace_clock tracing_cpumask buffer_size_kb per_cpu/cpu*/buffer_size_kb options/* \
		stack_map_instances events/kmem/*/filter events/sched/sched_switch/trigger \
		events/sched/sched_waking/trigger events/sched/*/enable |
		sed 's/:[0-9]* (expanded: \([0-9]*\))/:\1/' | sort
	ls instances
	cd $W || exit 1
}

# A state with nothing on.
idle()
{
	echo 0 > $T/tracing_on
	echo nop > $T/current_tracer
	for file in set_event set_event_pid set_event_notrace_pid set_ftrace_pid set_ftrace_filter; do
		echo > $T/$file
	done
	for option in stacktrace stackmap func_stack_trace verbose sym-offset; do
		echo 0 > $T/options/$option
	done
	echo 1 > $T/tracing_on
}

# A state that somebody works in.
busy()
{
	idle
	echo vfs_read ksys_write > $T/set_ftrace_filter
	# A function of a module, if there is any.
	sed -n 's/^\([a-z0-9_]*\) \[\([a-z0-9_]*\)\].*/\1:mod:\2/p' $T/available_filter_functions |
		head -n 1 >> $T/set_ftrace_filter
	echo function > $T/current_tracer
	echo kmem:kfree > $T/set_event
	echo sched:sched_process_fork >> $T/set_event
	echo 1 > $T/set_event_pid
	echo 1 > $T/set_ftrace_pid
	for option in stacktrace verbose sym-offset; do
		echo 1 > $T/options/$option
	done
	echo 512 > $T/buffer_size_kb
	echo 640 > $T/per_cpu/cpu0/buffer_size_kb
}

# A state that somebody has left, in which next to nothing is recorded.
left()
{
	idle
	echo 'bytes_req > 1000000000' > $T/events/kmem/kmalloc/filter
	echo 'hist:keys=common_pid' > $T/events/sched/sched_switch/trigger
	echo traceoff >> $T/events/sched/sched_switch/trigger
	echo 'snapshot:5 if common_pid == 999999' > $T/events/sched/sched_waking/trigger
	echo schedule:traceoff >> $T/set_ftrace_filter
	echo 'vfs_read:traceoff:7' >> $T/set_ftrace_filter
	echo 1 > $T/tracing_cpumask
	echo 999999 > $T/set_event_notrace_pid
	echo 0 > $T/options/overwrite
	echo 0 > $T/tracing_on
}

# What left() has left is gone.
tidy()
{
	echo 0 > $T/events/kmem/kmalloc/filter
	echo '!traceoff' >> $T/events/sched/sched_switch/trigger
	echo '!hist:keys=common_pid' >> $T/events/sched/sched_switch/trigger
	echo '!snapshot' >> $T/events/sched/sched_waking/trigger
	echo '!schedule:traceoff' >> $T/set_ftrace_filter
	echo '!vfs_read:traceoff:0' >> $T/set_ftrace_filter
	echo 3 > $T/tracing_cpumask
	echo 1 > $T/options/overwrite
	idle
}

# Nothing is left behind, and the state is that of $W/before.
result_if_restored()
{
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		state > $W/after
		cmp -s $W/before $W/after && ! pidof stackmap > /dev/null && break
		sleep 0.2
	done
	cmp -s $W/before $W/after || wrong "$(diff $W/before $W/after)"
	! pidof stackmap > /dev/null || wrong 'a process is left'
	[ -z "$(ls $W/.stackmap-* 2> /dev/null)" ] || wrong 'a temporary file is left'
	result "$1"
}

# start ARGUMENT...: a recording in the background.
start()
{
	# Before the shell goes on: what is waited for has to be new.
	: > $W/log
	record "$@" &
}

# goes_on: whether the recording that was started is not over.
goes_on()
{
	kill -0 $! 2> /dev/null
}

# wait_for TEXT: until TEXT is in the log.
wait_for()
{
	until grep -q "$1" $W/log; do
		if ! goes_on; then
			wrong "\"$1\" never came"
			return
		fi
		sleep 0.2
	done
}

# The process that records, not the one that guards tracefs.
recorder()
{
	pidof stackmap | tr ' ' '\n' | sort -n | head -n 1
}

# is STATUS: how record must have ended.
is()
{
	[ $status = "$1" ] || wrong "status $status, not $1"
}

says()
{
	grep -q -- "$1" $W/log || wrong "does not say \"$1\""
}

# capture whole|none: what there must be.
capture()
{
	case $1 in
	whole) stackmap dump --top 1 out > text 2>&1 || wrong "no capture: $(cat text)" ;;
	none) [ ! -e out ] || wrong 'a capture where none should be' ;;
	esac
}

# Events, buffers, and functions if there are to be some: all that can be changed.
functions='-f vfs_write'
record()
{
	rm -f $W/out
	# shellcheck disable=SC2086
	stackmap record --force --slim -e kmem:kmalloc -e 'block:*' $functions -b 256 -o $W/out \
		"$@" > $W/log 2>&1
	status=$?
}

# ends SETUP: the ways in which a command or its lack ends a recording.
ends()
{
	good_end "$1"

	record -d 0.2 -- sleep 100
	is 0
	capture whole
	result_if_restored "$1: a command that takes longer than it may"
}

# good_end SETUP: and what was recorded is there.
good_end()
{
	record -- sh -c 'echo x > /tmp/x; exit 3'
	is 3
	stackmap report out > text 2>&1 || wrong "the report: $(cat text)"
	grep -q 'vfs_write()' text || wrong 'no calls of functions in the report'
	! grep 'WARNING.*unknown' text || wrong 'unknown ids'
	result_if_restored "$1: a command that ends"
}

# refusals SETUP: what the kernel or the disk refuses.
refusals()
{
	record -e 'kmem:nothing*' -- true
	is 1
	says 'there is no event "kmem:nothing\*"'
	result_if_restored "$1: an event that is not there"

	record -f nothing_at_all -- true
	is 1
	says 'there is no function "nothing_at_all"'
	result_if_restored "$1: a function that is not there"

	mkdir -p small
	mount -t tmpfs -o size=4k tmpfs small
	stackmap record --force -e kmem:kmalloc -o small/out -- true > log 2>&1
	status=$?
	is 1
	says 'No space left'
	[ -z "$(ls -A small)" ] || wrong 'something is left on the full disk'
	umount small
	saved=$(sed -n 's/.*the recording is in \([^,]*\),.*/\1/p' log)
	stackmap report "$saved" > text 2>&1 || wrong "no recording elsewhere: $(cat text)"
	grep -q kmalloc text || wrong "no events: $(cat text)"
	rm -f "$saved"
	result_if_restored "$1: a full disk: the recording is saved elsewhere"

	rm -rf open victim
	mkdir open victim
	chmod 1777 open
	ln -s ../victim open/link
	chown -h 65534 open/link
	echo 0 > /proc/sys/fs/protected_symlinks
	stackmap record --force -e kmem:kmalloc -o open/link/out -- true > log 2>&1
	status=$?
	is 1
	says 'others may write'
	[ -z "$(ls -A victim)" ] || wrong 'written through a link of somebody else'
	result_if_restored "$1: a link of somebody else on the way to the capture"
}

# What others have left, what they do meanwhile, and what is lost.
others()
{
	left
	state > $W/before
	stackmap record --slim -e kmem:kmalloc -o out -- ls -R /sys/kernel/debug > log 2>&1
	status=$?
	is 0
	! grep -q WARNING log || wrong 'warnings'
	for file in events/kmem/kmalloc/filter events/sched/sched_switch/trigger set_ftrace_filter \
		tracing_cpumask set_event_notrace_pid options/overwrite; do
		stackmap export --format json out 2> /dev/null | grep -q "\"$file\"" || wrong "$file is not in the manifest"
	done
	result_if_restored 'filters and triggers of others are put aside'
	tidy
	state > $W/before

	stackmap record --slim -e 'syscalls:sys_enter_*at' -o out -- ls / > log 2>&1
	status=$?
	is 0
	stackmap report out > text 2>&1
	grep -q 'sys_enter_openat' text || wrong "$(cat text)"
	result_if_restored 'a pattern of events'

	stackmap record --slim -b 8 -e kmem:kmalloc -e kmem:kmem_cache_alloc -o out -- ls -R /sys/class > log 2>&1
	says 'overwritten in the ring buffer before the recording ended'
	size=$(sed -n 's/.*-b \([0-9]*\) would have held.*/\1/p' log)
	stackmap record --slim -b "${size:-8}" -e kmem:kmalloc -e kmem:kmem_cache_alloc -o out -- ls -R /sys/class > log 2>&1
	! grep -q WARNING log || wrong "-b $size"
	result_if_restored 'the size of a buffer that would have held it holds it'

	stackmap record --slim -e kmem:kmalloc -o out -- sh -c \
		"ls /; rmmod stackmap; echo 0 > $T/tracing_on; echo reset > $T/stack_map" > log 2>&1
	status=$?
	is 0
	grep -qi 'rmmod.*\(in use\|busy\|temporarily\)' log || wrong 'rmmod is not refused'
	says 'somebody switched tracing off'
	says 'somebody reset the map'
	stackmap report out > text 2>&1
	grep -q 'stale id' text || wrong "the report: $(cat text)"
	result_if_restored 'the module stays, and a reset makes ids stale'

	stackmap record --slim -e kmem:kmalloc -o out --fault saving:fail -- ls / > log 2>&1
	status=$?
	is 1
	says 'is still in the buffer'
	[ "$(cat $T/tracing_on)" = 0 ] || wrong 'tracing is on'
	stackmap resolve $T/trace > text 2>&1
	grep -q ' kmalloc: ' text || wrong 'the buffer is empty'
	grep -q 'alloc' text || wrong 'no stacks'
	echo 1 > $T/tracing_on
	echo > $T/trace
	result_if_restored 'what cannot be saved stays in the buffer'
}

# Two recordings at once.
two()
{
	start -d 100
	wait_until_on
	first=$!
	stackmap record --force -e kmem:kfree -o other -- true > log2 2>&1 && wrong 'a second recording'
	grep -q 'is recording already, for' log2 || wrong "$(cat log2)"
	stackmap record --slim --instance mine -e kmem:kfree -o other -- \
		sh -c "ls /; cat $T/stack_map_instances > listed" > log2 2>&1 || wrong "$(cat log2)"
	grep -q '^mine$' listed || wrong 'the instance is not listed'
	[ ! -e $T/instances/mine ] || wrong 'the instance is left'
	stackmap report other > text 2>&1
	grep -q 'kfree' text || wrong "the report: $(cat text)"
	! grep -q 'full stack' text || wrong 'full stacks in the instance'
	[ "$(cat $T/options/stackmap)" = 1 ] || wrong 'the option is off for the first one'
	kill -INT "$(recorder)"
	wait $first
	capture whole
	result_if_restored 'two recordings at once, of the top level and of an instance'

	start --instance mine --fault running:hold -- true
	wait_for 'held at running'
	kill -KILL "$(recorder)"
	wait
	result_if_restored 'SIGKILL while an instance is recorded'
}

# faults SETUP STEP...: whatever comes, it comes at each of the steps.
faults()
{
	setup=$1
	shift
	for step; do
		record --fault "$step":fail -- true
		is 1
		says "failed at $step"
		case $step in
		written | restored) capture whole ;;
		*) capture none ;;
		esac
		result_if_restored "$setup: an error at $step"

		for signal in $signals KILL; do
			start --fault "$step":hold -- sleep 0.1
			wait_for "held at $step"
			kill -"$signal" "$(recorder)"
			wait
			case $signal-$step in
			*-written | *-restored) capture whole ;;
			KILL-*) capture none ;;
			*-ended) capture whole ;;
			*)
				capture none
				says 'interrupted before anything was recorded'
				;;
			esac
			result_if_restored "$setup: SIG$signal at $step"
		done
	done
}

# Until it records.
wait_until_on()
{
	until grep -q 1 $T/tracing_on && grep -q '^kmem:kmalloc' $T/set_event; do
		if ! goes_on; then
			wrong 'it never recorded'
			return
		fi
		sleep 0.2
	done
	sleep 0.2
}

# interruptions SETUP: while it records.
interruptions()
{
	for signal in $signals; do
		start --duration 100
		wait_until_on
		kill -"$signal" "$(recorder)"
		wait
		capture whole
		result_if_restored "$1: SIG$signal while it records"
	done

	start -- sleep 100
	wait_until_on
	kill -INT "$(recorder)"
	wait
	says 'the command ended with signal: 2'
	capture whole
	result_if_restored "$1: SIGINT is passed on to the command"

	start -- sleep 1
	wait_until_on
	kill -KILL "$(recorder)"
	wait
	capture none
	result_if_restored "$1: SIGKILL while a command runs"
}

# has KEY VALUE: what the manifest of the capture says.
has()
{
	grep -q "\"$1\":\"*$2[\",]" json || wrong "the manifest does not say that $1 is $2"
}

mkdir -p $W
cd $W || exit 1

# Loading it is part of what the tool does; and all that a capture needs is in it.
stackmap record --slim -e kmem:kmalloc --module /lib/stackmap/stackmap.ko -o out -- true > log 2>&1
status=$?
is 0
[ -e $T/options/stackmap ] || wrong 'the module is not loaded'
stackmap export --addresses --format json -o json out 2>> log || wrong 'no export'
has release "$(uname -r)"
has boot_id "$(cat /proc/sys/kernel/random/boot_id)"
has kaslr_base "0x$(sed -n 's/^\([0-9a-f]*\) . _text$/\1/p' /proc/kallsyms)"
has build_id '[0-9a-f]\{40\}'
has generation '[0-9]*'
has slot_bits 15
! grep 'WARNING' log || wrong 'warnings'
result 'a recording loads the module, and its capture says of what kernel it is'

# Names that pass for lines of a trace, of files and tasks of somebody without any right.
attack prepare
stackmap record --slim -e sched:sched_process_exec -e kmem:kmalloc -b 4096 -o out -- attack run > log 2>&1
status=$?
is 0
stackmap report --by comm out > text 2>> log || wrong 'no report'
! grep WARNING text || wrong 'a name is taken for something else'
grep -q '^ *=> evil ' text || wrong 'a task has lost its events'
grep -q '^ *e-1 \[7\] \. 1: x ' text || wrong 'a task has lost its events'
stackmap resolve out > text 2>> log || wrong 'no text'
! grep -q '^ *init-1  .*call_site=evil' text || wrong 'a name is an event'
! grep -q '^CPU:0' text || wrong 'a name is a loss'
grep -q 'filename=.*/<stack_id 34489>' text || wrong 'a stack stands in a name'
stackmap export --format json -o json out 2>> log || wrong 'no export'
! grep -q '"fields":"call_site=evil"' json || wrong 'a name is an event'
grep -q '"filename":"./x\\n  *init-1' json || wrong 'a name is not whole'
result 'no name is taken for an event, a stack or a loss'

# What processes read, write and run stays out of a capture on demand.
stackmap record --slim --no-args -e sched:sched_process_exec -e syscalls:sys_enter_write -o out -- \
	sh -c 'echo secret-text; cat /proc/version' > log 2>&1
status=$?
is 0
stackmap export --format json -o json out 2>> log || wrong 'no export'
grep -q '"event":"sys_enter_write"' json || wrong 'no events'
! grep -q 'secret-text\|/bin/cat\|/proc/version' json || wrong 'what a process wrote is in the capture'
result 'a recording without arguments has none'

idle
state > $W/before
good_end idle

busy
state > $W/before
ends busy
refusals busy
faults busy events
# It takes much longer with functions.
functions=
interruptions busy
faults busy emptied ended

stackmap record -e kmem:kmalloc -o $W/out -- true > log 2>&1
status=$?
is 1
says 'somebody is tracing already'
result_if_restored 'what somebody uses is left alone'

idle
state > $W/before
others
two

idle
echo "1..$number"
[ $failed = 0 ]
