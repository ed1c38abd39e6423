#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Both CPUs record the same 4,096 fresh stacks at the same moments: no stack gets two ids. Runs on
# CPUs that are really parallel.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 17

verify=0
load bits=15
insmod /tests/stackgen.ko || bail 'stackgen'
echo 8192 >$T/buffer_size_kb
echo 1 >$T/options/stackmap
for first in 0 4096 8192; do
	clear_trace
	before=$(value entries)
	stackgen race 24 $first 4096
	new=$(($(value entries) - before))
	note "$(ids | wc -l) ids, $(full) full stacks, $new new entries"
	is "round $first: both recorded every stack" $(($(ids | wc -l) + $(full))) 8192
	is "round $first: full stacks are counted" "$(value drops)" $((drops + $(full)))
	drops=$(value drops)
	[ $first != 0 ] || is 'growth was asked for in time: no full stack' "$(full)" 0
	# A stack that one of them recorded in full has one id, too.
	is "round $first: one entry a stack" "$new" "$(ids | sort -u | wc -l)"
	is "round $first: no id for two stacks" "$(ids | sort | uniq -c | awk '$1 > 2' | wc -l)" 0
done
echo 0 >$T/tracing_on
cat $T/stack_map >/tmp/map
is 'as many blocks as entries' "$(grep -c '^stack_id' /tmp/map)" "$(value entries)"
ok 'most stacks got ids' test "$(value successes)" -gt 20000
is 'no two entries hold the same stack' \
	"$(awk '/^stack_id/ { if (s != "") print s; s = ""; next } { s = s $2 } END { print s }' /tmp/map |
		sort | uniq -d | wc -l)" 0
echo 0 >$T/options/stackmap
ok 'rmmod' rmmod stackmap
finish
