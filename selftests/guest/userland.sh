#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What needs more than busybox: an empty write, and trace-cmd reading the event by its format file.
# shellcheck source=SCRIPTDIR/tap.sh
. /tests/tap.sh

# empty_write FILE - the error of a write of no bytes.
empty_write() {
	perl -e 'open my $f, ">", $ARGV[0] or die; defined syswrite $f, "" or print "$!\n"' "$1"
}

load
echo 0 >$T/tracing_on
is 'an empty write to stack_map is EINVAL' "$(empty_write $T/stack_map)" 'Invalid argument'
is 'an empty write to the option is EINVAL' "$(empty_write $T/options/stackmap)" 'Invalid argument'
echo 1 >$T/tracing_on

echo 1 >$T/options/stackmap
ok 'trace-cmd records' trace-cmd record -q -o /tmp/trace.dat -e kmem:kmalloc -T ls -l /usr/bin
trace-cmd report -i /tmp/trace.dat >/tmp/report 2>/tmp/errors
ok 'trace-cmd report shows ids' grep -q 'stack_id: .*<stack_id [0-9]*>' /tmp/report
note "$(grep -c '<stack_id' /tmp/report) ids in trace-cmd's report"
sed -n 's/.*<stack_id \([0-9]*\)>.*/\1/p' /tmp/report | sort -u >/tmp/reported
sed -n 's/^stack_id \([0-9]*\) .*/\1/p' $T/stack_map | sort >/tmp/known
is 'all of which the map knows' "$(sort /tmp/reported | comm -23 - /tmp/known | wc -l)" 0
ok 'rmmod' rmmod stackmap
finish
