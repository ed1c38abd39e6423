#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The module's KUnit tests, in a kernel that has KUnit.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 10

suite=/sys/kernel/debug/kunit/stackmap_map
load
ok 'the module has a suite' test -e $suite/run
echo run >$suite/run
cat $suite/results >/tmp/results
sed -n 's/^ *\(not \)\{0,1\}ok [0-9]* \(.*\)/\1\2/p' /tmp/results | sed '$d' >/tmp/cases
while read -r case; do
	ok "$case" test "$case" = "${case#not }"
done </tmp/cases
is 'all of its cases ran' "$(wc -l </tmp/cases)" "$(sed -n 's/^ \{1,\}1\.\.//p' /tmp/results)"
is 'and went well' "$(tail -n 1 /tmp/results)" 'ok 1 stackmap_map'
sed 's/^/# /' /tmp/results
ok 'rmmod' rmmod stackmap
finish
