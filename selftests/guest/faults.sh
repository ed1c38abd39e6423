#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Failing allocations and missing parts, at load, at the first enable and during growth: a clear
# message, and a kernel that goes on working. Needs an insmod that tries once, and a shell that says
# which error a write met: kmod's and bash.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
# A kernel of our own has no security modules.
lockdown=$(grep -w security_locked_down /proc/kallsyms)
plan "$([ "$lockdown" ] && echo 57 || echo 49)"

insmod /tests/stackgen.ko || bail 'stackgen'
before=$(hook_text)

hits() {
	cat /sys/module/override/parameters/hits
}

lines() {
	dmesg | wc -l
}

# log_since LINES - what the module has logged since then.
log_since() {
	dmesg | tail -n +$(($1 + 1)) | grep 'stackmap: ' | grep -v 'this kernel has no BTF'
}

# refused WHAT ERROR MESSAGE OVERRIDE... - insmod fails with ERROR and one line of log.
refused() {
	what=$1 error=$2 message=$3
	shift 3
	override "$@"
	start=$(lines)
	case $what in
	hook=*) parameter=${what%% *} ;;
	*) parameter=hook=auto ;;
	esac
	tap_output=$(insmod $KO "$parameter" 2>&1)
	is "$what: insmod fails" "$(echo "$tap_output" | grep -c "$error")" 1
	log_since "$start" >/tmp/log
	is "$what: with one line of log" "$(wc -l </tmp/log) $(grep -c "$message" /tmp/log)" '1 1'
	rmmod override
}

if [ "$lockdown" ]; then
	refused 'tracefs locked down' 'Operation not permitted' 'tracefs is locked down' \
		func=security_locked_down value=-1
else
	note 'this kernel has no lockdown'
fi
refused 'no kprobes' 'Invalid \(argument\|parameters\)' 'no kprobes' func=register_kprobe value=-22
refused 'hook=jump where it does not fit' 'not supported' 'hook=jump: no jump: the entry' \
	func=memchr_inv value=1
override func=memchr_inv value=1
ok 'hook=auto loads there' insmod $KO
rmmod override
is 'and takes the kprobe' "$(value hook)" kprobe
is 'and says why' "$(dmesg | grep -c 'hook: kprobe (no jump: the entry of __ftrace_trace_stack is not')" 1
# It is chosen anew each time that the option goes on.
ok 'where the jump fits again' bash -c "echo 1 >$T/options/stackmap"
is 'it is taken' "$(value hook)" jump
echo 0 >$T/options/stackmap
override func=memchr_inv value=1
ok 'and where it does not any more' bash -c "echo 1 >$T/options/stackmap"
rmmod override
is 'the kprobe' "$(value hook)" kprobe
stackgen record 10 0 5
is 'with ids' "$(ids | wc -l)" 5
rmmod stackmap

# Lockdown may come after the load.
load
if [ "$lockdown" ]; then
	override func=security_locked_down value=-1
	for file in stack_map stack_map_bin stack_map_stat stack_map_instances options/stackmap options/stackmap-resolve; do
		fails "tracefs locked down: $file" 'Operation not permitted' cat $T/$file
	done
	rmmod override
fi
ok 'without lockdown they open' cat $T/stack_map $T/stack_map_bin $T/stack_map_stat $T/stack_map_instances \
	$T/options/stackmap $T/options/stackmap-resolve
rmmod stackmap

ok 'kernel_stack of another format' insmod /tests/stackformat.ko
start=$(lines)
tap_output=$(insmod $KO 2>&1)
is 'is refused' "$(echo "$tap_output" | grep -c 'not supported')" 1
is 'with one line' "$(log_since "$start" | grep -c 'ftrace:kernel_stack has a format that is not known')" 1
rmmod stackformat
ok 'and taken when it is as ever' insmod $KO
rmmod stackmap

# What tracefs' files carry is not believed.
E=$T/events/ftrace
mkdir $T/instances/other
for pair in "$E/kernel_stack/format $E/print/format" "$T/tracing_on $T/instances/other/tracing_on" \
	"$E/kernel_stack/format $T/instances/other/events/ftrace/kernel_stack/format"; do
	ok "${pair%% *} is of something else" insmod /tests/stackformat.ko file="${pair%% *}" like="${pair##* }"
	start=$(lines)
	tap_output=$(insmod $KO 2>&1)
	is 'the module does not load' "$(echo "$tap_output" | grep -c 'Invalid \(argument\|parameters\)')" 1
	is 'and says why in one line' "$(log_since "$start" | grep -c 'tracefs: .* is not as expected')" 1
	rmmod stackformat
done
insmod $KO
ok "an instance's tracing_on is that of the top level" \
	insmod /tests/stackformat.ko file=$T/instances/other/tracing_on like=$T/tracing_on
ok 'it cannot be listed' bash -c "! echo other >$T/stack_map_instances"
rmmod stackformat
ok 'then it can' bash -c "echo other >$T/stack_map_instances"
rmmod stackmap
rmdir $T/instances/other

# Every file of the load, one after the other.
n=0
while [ $n -lt 20 ]; do
	override func=tracefs_create_file skip=$n count=1
	start=$(lines)
	if insmod $KO 2>/dev/null; then
		rmmod stackmap
		rmmod override
		break
	fi
	rmmod override
	[ "$(log_since "$start" | grep -c 'cannot be created')" = 1 ] || result 'not ok' "file $n: no message"
	for file in stack_map stack_map_bin stack_map_stat stack_map_instances options/stackmap \
		options/stackmap-resolve events/ftrace/stack_id; do
		[ ! -e $T/$file ] || result 'not ok' "file $n: $file is left"
	done
	n=$((n + 1))
done
is 'each of the six files failing during load is refused' $n 6
ok 'the module loads afterwards' insmod $KO
rmmod stackmap

# KiB that the kernel cannot take back: those of a table of rules are 256.
unreclaimable() {
	awk '/^SUnreclaim:/ { print $2 }' /proc/meminfo
}

# Every allocation of the first enable, one after the other: refused in whole, or done in another way.
for func in krealloc_node_align_noprof kvrealloc_node_align_noprof vrealloc_node_align_noprof __kvmalloc_node_noprof; do
	n=0 refused=0 wrong=''
	while [ $n -lt 30 ]; do
		load
		held=$(unreclaimable)
		override func=$func skip=$n count=1
		start=$(lines)
		bash -c "echo 1 >$T/options/stackmap" 2>/tmp/error
		status=$?
		reached=$(hits)
		rmmod override
		if [ "$reached" -le $n ]; then
			rmmod stackmap
			break
		fi
		if [ $status != 0 ]; then
			refused=$((refused + 1))
			grep -q 'Cannot allocate memory' /tmp/error || wrong="$wrong $n: $(cat /tmp/error)"
			[ "$(log_since "$start" | grep -c 'the option stays off')" = 1 ] || wrong="$wrong $n: no message"
			[ "$(cat $T/options/stackmap)" = 0 ] || wrong="$wrong $n: the option is on"
			kept=$(($(unreclaimable) - held))
			# KASAN keeps what was freed for a while; there kmemleak says what was left.
			[ -e $KMEMLEAK ] || [ $kept -lt 200 ] || wrong="$wrong $n: $kept KiB are kept"
			echo 1 >$T/options/stackmap
		fi
		clear_trace
		stackgen record 10 0 5
		[ "$(ids | wc -l)" = 5 ] || wrong="$wrong $n: no ids afterwards"
		rmmod stackmap
		[ "$(hook_text)" = "$before" ] || wrong="$wrong $n: another text"
		n=$((n + 1))
	done
	note "$n allocations failed in $func, $refused were refused"
	ok "some allocations of $func failed" test $n -gt 0
	is "with ENOMEM and a message, or none of the user's business" "$wrong" ''
done

# Growth
load
echo 1 >$T/options/stackmap
clear_trace
echo 16384 >$T/buffer_size_kb
override func=vrealloc_node_align_noprof
stackgen record 60 0 3000
sleep 0.5
is 'without memory to grow, each event has its stack' $(($(ids | wc -l) + $(full))) 3000
ok 'the rest in full' test "$(full)" -gt 0
is 'counted with its reason' "$(value drop_growing)" "$(full)"
ok 'growth was tried' test "$(hits)" -gt 0
is 'and one line says so' "$(dmesg | grep -c 'no memory for more stacks')" 1
rmmod override
sleep 3
for _ in 1 2 3 4; do
	clear_trace
	stackgen record 60 0 3000
	sleep 0.5
done
is 'with memory, growth goes on by itself' "$(value entries)" 3000
ok 'rmmod' rmmod stackmap
is 'the text is as before' "$(hook_text)" "$before"

# Unloading between two tries of the worker.
load
echo 1 >$T/options/stackmap
clear_trace
override func=vrealloc_node_align_noprof
stackgen record 60 0 3000
until [ "$(hits)" -gt 0 ]; do sleep 0.1; done
ok 'rmmod while growth is to be tried again' rmmod stackmap
tried=$(hits)
sleep 3
is 'nobody tries any more' "$(hits)" "$tried"
rmmod override
finish
