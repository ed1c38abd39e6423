#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What needs more than busybox: an empty write, and trace-cmd reading the event by its format file.
# Argument: nostream, where "trace-cmd stream" does not work.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan "$([ "${1:-}" = nostream ] && echo 21 || echo 27)"

# empty_write FILE - the error of a write of no bytes.
empty_write() {
	perl -e 'open my $f, ">", $ARGV[0] or die; defined syswrite $f, "" or print "$!\n"' "$1"
}

# shown WHAT FILE - tests of what trace-cmd has shown of kmem's events: a stack is a line with an id
# that the map knows.
shown() {
	grep -o '<stack_id .*' "$2" >/tmp/shown
	note "$1: $(grep -c 'mm_page_alloc:' "$2") mm_page_alloc, $(wc -l </tmp/shown) ids"
	ok "$1 shows events" grep -q 'mm_page_alloc: ' "$2"
	ok 'and ids' test -s /tmp/shown
	is 'nothing but a number in them' "$(grep -cvx '<stack_id [0-9][0-9]*>' /tmp/shown)" 0
	is 'no stack in full' "$(grep -c 'stack trace>\|kernel_stack:' "$2")" 0
	is 'nothing that it does not know' "$(grep -ci 'unknown\|failed to read' "$2")" 0
	sed 's/<stack_id \([0-9]*\)>/\1/' /tmp/shown | sort -u >/tmp/reported
	sed -n 's/^stack_id \([0-9]*\) .*/\1/p' $T/stack_map | sort >/tmp/known
	is 'the map knows all ids' "$(comm -23 /tmp/reported /tmp/known | wc -l)" 0
}

load bits=16
echo 0 >$T/tracing_on
is 'an empty write to stack_map is EINVAL' "$(empty_write $T/stack_map)" 'Invalid argument'
is 'an empty write to the option is EINVAL' "$(empty_write $T/options/stackmap)" 'Invalid argument'
echo 1 >$T/tracing_on

note "$(trace-cmd --version 2>&1 | grep -m 1 -o 'version.*')"
echo 1 >$T/options/stackmap
ok 'trace-cmd records' trace-cmd record -q -o /tmp/trace.dat -e kmem -T ls -l /usr/bin
# Without plugins: by the format alone.
trace-cmd report -N -i /tmp/trace.dat >/tmp/report 2>&1
shown 'trace-cmd report' /tmp/report
ok 'each line of which names the event' test "$(grep -c ' stack_id: *<stack_id' /tmp/report)" = "$(wc -l </tmp/shown)"
ok 'the file has the format' sh -c "trace-cmd dump --ftrace-events -i /tmp/trace.dat | grep -A 20 'name: stack_id' |
	grep -q 'print fmt: \"<stack_id %d>\", REC->stack_id'"

if [ "$1" != nostream ]; then
	# It reads only pages that are full, unless told otherwise, and stops with its command.
	echo 0 >$T/buffer_percent
	cat >/tmp/until-shown <<-'END'
		rounds=100
		until grep -q '<stack_id' /tmp/stream || [ $rounds = 0 ]; do
			ls -l /usr/bin >/dev/null
			rounds=$((rounds - 1))
		done
	END
	trace-cmd stream -e kmem:mm_page_alloc -T sh /tmp/until-shown >/tmp/stream 2>&1
	# The last line may not be whole.
	sed -i '$d' /tmp/stream
	shown 'trace-cmd stream' /tmp/stream
fi

ok 'trace-cmd starts' trace-cmd start -e kmem -T
ls -l /usr/bin >/dev/null
ok 'trace-cmd stops' trace-cmd stop
trace-cmd show >/tmp/show
shown 'trace-cmd show' /tmp/show
ok 'trace-cmd reset' trace-cmd reset
ok 'rmmod' rmmod stackmap
finish
