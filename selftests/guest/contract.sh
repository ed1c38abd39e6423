#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Every row of the interface: good and bad parameters, writes, open modes, readers.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 127

verify=0
insmod_fails() {
	if tap_output=$(insmod "$KO" "$1" 2>&1); then
		rmmod stackmap
		return 1
	fi
	echo "$tap_output"
	echo "$tap_output" | grep -q 'Invalid argument'
}

warnings() {
	dmesg | grep -c "stackmap: bits=$1 is not in 10..20: using bits=$2"
}

modes() {
	(cd $T && busybox stat -c %a "$@" | xargs)
}

for bad in bits=abc bits=-1 bits= hook=magic hook= unwind=magic unwind= verify=x; do
	ok "insmod $bad fails with EINVAL" insmod_fails $bad
done
load bits=9
is 'bits=9 is clamped with one warning' "$(warnings 9 10)" 1
is 'bits=9 means 1024 stacks' "$(entries)" '0 / 1024'
rmmod stackmap
load bits=99
is 'bits=99 is clamped with one warning' "$(warnings 99 20)" 1
is 'bits=99 means 1048576 stacks' "$(entries)" '0 / 1048576'
rmmod stackmap
load
is 'the default is 16384 stacks' "$(entries)" '0 / 16384'
fails 'a second copy does not load' 'File exists' insmod $KO
# But for the name of the kernel, which may have been built here.
sed "s/stackmap/stackmop/g; s/$(uname -r | sed 's/stackmap/stackmop/')/$(uname -r)/g" $KO >/tmp/copy.ko
fails 'a second copy under another name does not load' 'esource busy' insmod /tmp/copy.ko
ok 'and says so' sh -c 'dmesg | grep -q "stackmop: tracefs has a stack_map already"'

# Files
is 'modes' "$(modes options/stackmap stack_map stack_map_stat stack_map_bin)" '640 640 440 440'
is 'more modes' "$(modes options/stackmap-resolve stack_map_instances)" '640 640'
mkdir $T/instances/other
ok 'no option in an instance' test ! -e $T/instances/other/options/stackmap
ok 'no map in an instance' test ! -e $T/instances/other/stack_map
rmdir $T/instances/other

for name in stackmap stackmap-resolve; do
	opt=$T/options/$name
	is "options/$name is off at first" "$(cat $opt)" 0
	for text in 1 0 '1\n' '0\n'; do
		ok "options/$name takes '$text'" put "$text" $opt
		is 'and reads back' "$(cat $opt)" "${text%\\n}"
	done
	for text in 2 -1 '\n' 01 10 1x on '1\n\n' ' 1' 00000000000000000000000001; do
		errno "options/$name refuses '$text'" 'Invalid argument' $opt "$text"
	done
done
opt=$T/options/stackmap

# Instances
list=$T/stack_map_instances
mkdir $T/instances/one $T/instances/two
is 'no instance is listed at first' "$(cat $list)" ''
for text in 'one\n' two one; do
	ok "an instance is listed with '$text'" put "$text" $list
done
is 'each once' "$(xargs <$list)" 'one two'
fails 'a listed one is not removed' 'esource busy' rmdir $T/instances/one
errno 'nor is one put on the list that is not there' 'No such file' $list three
for text in . .. one/ ../instances/one '!three' '!' '! one' 'one two' 'one\n\n'; do
	errno "no instance is called '$text'" 'No such file' $list "$text"
done
errno 'one whose buffer outlives the kernel is EOPNOTSUPP' 'not supported' $list boot_map
errno 'an empty line is EINVAL' 'Invalid argument' $list '\n'
errno 'a name that is too long is EINVAL' 'Invalid argument' $list "$(printf '%0300d' 0)"
echo 0 >$T/tracing_on
errno 'while one of them traces, a reset is EBUSY' 'busy' $T/stack_map 0
echo 0 >$T/instances/one/tracing_on
echo 0 >$T/instances/two/tracing_on
ok 'when none does, it works' put 0 $T/stack_map
echo 1 >$T/tracing_on
ok 'one is taken off' put '!one\n' $list
is 'the other stays' "$(cat $list)" two
ok 'what is not listed can be removed' rmdir $T/instances/one
fails 'what is listed cannot' 'esource busy' rmdir $T/instances/two

echo 0 >$T/tracing_on
for text in 0 reset '0\n' 'reset\n'; do
	ok "stack_map takes '$text'" put "$text" $T/stack_map
done
for text in 1 '\n' resets 'reset\n\n' ' 0' RESET resetresetresetresetreset; do
	errno "stack_map refuses '$text'" 'Invalid argument' $T/stack_map "$text"
done
echo 1 >$T/tracing_on
errno 'a reset while tracing is on is EBUSY' 'busy' $T/stack_map 0
errno 'bad text while tracing is on is EINVAL' 'Invalid argument' $T/stack_map nonsense

for file in stack_map_stat stack_map_bin; do
	errno "$file cannot be opened for writing" 'Permission denied' $T/$file 0
	fails "$file cannot be opened for reading and writing" 'Permission denied' sh -c ": <>$T/$file"
done

chmod 755 $T $T/options
for file in stack_map stack_map_stat stack_map_bin stack_map_instances options/stackmap options/stackmap-resolve; do
	fails "$file cannot be read by another user" 'Permission denied' su -s /bin/sh nobody -c "cat $T/$file"
done

# Counters
echo 1 >$opt
echo 1 >$T/options/stacktrace
is 'no success_rate without an event' "$(grep -c success_rate $T/stack_map_stat)" 0
echo 1 >$T/events/sched/sched_switch/enable
sleep 1
echo 0 >$T/events/sched/sched_switch/enable
is 'the first keys are in order' "$(awk '{ print $1 }' $T/stack_map_stat | head -n 5 | xargs)" \
	'entries: table_size: successes: drops: success_rate:'
ok 'every line is a key, blanks and a value' \
	awk '!/^[a-z_]+: +[^ ]/ { print; bad = 1 } END { exit bad }' $T/stack_map_stat
is 'all stacks became ids' "$(value success_rate)" '100%'
is 'successes are hits and inserts' "$(value successes)" $(($(value hits) + $(value inserts)))

# Text and binary agree
echo 0 >$T/tracing_on
stacks=$(value entries)
is 'stack_map has a block for each stack' \
	"$(grep -c '^stack_id [0-9]* \[ref [0-9]*, depth [0-9]*\]$' $T/stack_map)" "$stacks"
is 'and an empty line after each' "$(grep -c '^$' $T/stack_map)" "$stacks"
ok 'frames look like symbols' awk '
	/^  \[/ && !/^  \[[0-9]+\] [^ ]+\+0x[0-9a-f]+\/0x[0-9a-f]+( \[[^ ]+\])?$/ { print; bad = 1 }
	END { exit bad }' $T/stack_map
is 'references sum up to the events' \
	"$(sed -n 's/.*\[ref \([0-9]*\),.*/\1/p' $T/stack_map | awk '{ s += $1 } END { print s }')" \
	"$(value successes)"
is 'the binary header' "$(head -c 12 $T/stack_map_bin | hexdump -e '3/4 "%x " "\n"')" \
	"464d5342 2 $(printf %x "$stacks")"
ok 'has a load id' test "$(load_id)" -gt 0
is 'the binary file has the size that its records say' "$(wc -c <$T/stack_map_bin)" \
	$((16 + stacks * 16 + 8 * $(grep -c '^  \[' $T/stack_map)))

# The event's format file
format=$T/events/ftrace/stack_id/format
is 'print fmt' "$(grep '^print fmt' $format)" 'print fmt: "<stack_id %d>", REC->stack_id'
is 'the field' "$(grep -c 'field:int stack_id;	offset:8;	size:4;	signed:1;' $format)" 1
is 'the same files as kernel_stack has' "$(ls $T/events/ftrace/stack_id)" \
	"$(ls $T/events/ftrace/kernel_stack)"

# Odd uses of files
ok 'a file that is open for writing only can be sought' \
	dd if=/dev/null of=$opt bs=1 seek=3 count=0 conv=notrunc
unreclaimable() {
	awk '/^SUnreclaim:/ { print $2 }' /proc/meminfo
}
before=$(unreclaimable)
for _ in $(seq 600); do
	: <$T/stack_map
done
ok 'opening files leaves no memory behind' test $(($(unreclaimable) - before)) -lt 500

# One reset at a time.
for loop in 1 2 3; do
	(for _ in $(seq 20); do put reset $T/stack_map 2>&1; done) >/tmp/resets.$loop &
done
wait
ok 'of resets at once some are refused with EBUSY' grep -q busy /tmp/resets.1 /tmp/resets.2 /tmp/resets.3
is 'and with nothing else' "$(cat /tmp/resets.? | grep -vc busy)" 0

# Open files hold the module
exec 3<$T/stack_map
fails 'rmmod while a file is open' 'esource temporarily unavailable' rmmod stackmap
exec 3<&-
ok 'rmmod when it is closed' rmmod stackmap
finish
