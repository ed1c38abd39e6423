# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For guest/record: what tracefs was like before a recording, recordings that wait at a step, and results as TAP.
# shellcheck shell=sh disable=SC2034

T=/sys/kernel/tracing
W=/tmp/record
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
		set_ftrace_filter trace_clock tracing_cpumask buffer_size_kb buffer_percent per_cpu/cpu*/buffer_size_kb options/* \
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

# A state in which another user traces.
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

# Settings that another user has left, with which almost nothing is recorded.
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

# Removes the settings of left().
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
	! pidof stackmap > /dev/null || wrong 'a process is still running'
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
			wrong "\"$1\" is not in the log"
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
	[ "$status" = "$1" ] || wrong "status $status, not $1"
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
	tool=stackmap
	case " $* " in
	*' --fault '*) tool=/faults/stackmap ;;
	esac
	# shellcheck disable=SC2086
	$tool record --force -e kmem:kmalloc -e 'block:*' $functions -b 256 -o $W/out \
		"$@" > $W/log 2>&1
	status=$?
}
