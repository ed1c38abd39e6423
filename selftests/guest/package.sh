#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The module and the tool as they were installed elsewhere: loaded, recorded with, resolved, unloaded.
# shellcheck source=SCRIPTDIR/tap.sh
. /tests/tap.sh
plan 8

load
echo 1 >$T/options/stackmap
echo 1 >$T/options/stacktrace
echo 1 >$T/events/sched/sched_switch/enable
sleep 1
echo 0 >$T/events/sched/sched_switch/enable
echo 0 >$T/options/stacktrace
note "$(ids | wc -l) ids, $(full) full stacks, $(entries) stacks"
ok 'stacks become ids' test "$(ids | wc -l)" -gt 10
ids | sort -u >/tmp/ids
sed -n 's/^stack_id \([0-9]*\) .*/\1/p' $T/stack_map | sort >/tmp/known
is 'the map knows all of them' "$(grep -cvxFf /tmp/known /tmp/ids)" 0
ok 'with the scheduler in their stacks' grep -q ' __schedule+0x\| schedule+0x' $T/stack_map
is 'nothing is dropped' "$(value drops)" 0
ok 'the tool records' stackmap record -e kmem:kmalloc -o /tmp/capture -- ls /
stackmap report /tmp/capture >/tmp/report 2>&1
ok 'and reports stacks by name' grep -q '__kmalloc[a-z_]*+0x' /tmp/report
ok 'stackmap doctor has nothing against this kernel' stackmap doctor
echo 0 >$T/options/stackmap
ok 'rmmod' rmmod stackmap
finish
