#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Resetting the map: when it is allowed, what it leaves, who reads meanwhile.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 25

load
insmod /tests/stackgen.ko || bail 'stackgen'
echo 8192 >$T/buffer_size_kb
# used COMMAND... - the bytes that the events of COMMAND, run on CPU 0, take in its buffer: no more than a page, as the
# kernel counts also what is left of those that are full.
used() {
	clear_trace
	taskset 1 "$@"
	awk '/^bytes:/ { print $2 }' $T/per_cpu/cpu0/stats
}
full=$(used sh -c 'echo 20 0 15 >/sys/kernel/debug/stackgen/record')
echo 0 >$T/tracing_on
ok 'before the first use a reset does nothing' put reset $T/stack_map
echo 1 >$T/tracing_on
echo 1 >$T/options/stackmap
as_ids=$(used sh -c 'echo 20 0 15 >/sys/kernel/debug/stackgen/record')
is 'bytes_saved is what the buffer does not hold' "$(value bytes_saved)" $((full - as_ids))
is 'new stacks are inserts' "$(value inserts) $(value hits) $(value successes)" '15 0 15'
stackgen record 20 0 300
is 'known ones hits' "$(value inserts) $(value hits) $(value successes)" '300 15 315'
drops_add_up
errno 'while tracing is on it is refused with EBUSY' busy $T/stack_map 'reset\n'
is 'and changes nothing' "$(value entries)" 300
echo 0 >$T/tracing_on
old=$(ids | sort -u)

# Readers that overlap the reset.
exec 3<$T/stack_map_bin 4<$T/stack_map
dd bs=4096 count=1 of=/tmp/head.bin <&3 2>/dev/null
dd bs=4096 count=1 of=/tmp/head.text <&4 2>/dev/null
ok 'when it is off, a reset works' put 0 $T/stack_map
is 'entries is 0' "$(value entries)" 0
is 'so are the counters' "$(value successes) $(value drops) $(value bytes_saved)" '0 0 0'
is 'all of them' "$(awk '/^(hits|inserts|drop_|unwind_(fast|slow|replaced|verified|mism))/ { s += $2; n++ }
	END { print s, n }' $T/stack_map_stat)" '0 23'
tap_output=$(cat <&3 2>&1 >/tmp/rest.bin)
is 'a binary reader gets ESTALE' "$(echo "$tap_output" | grep -c 'Stale file handle')" 1
ok 'a text reader gets an end' sh -c 'cat >/tmp/rest.text' <&4
ok 'which is no half of a stack' awk '
	/^stack_id/ { depth = $6 + 0; got = 0 } /^  \[/ { got++ } /^$/ { if (got != depth) exit 1; done = 1 }
	END { exit !(done && got == depth) }' /tmp/head.text /tmp/rest.text
exec 3<&- 4<&-
is 'the ids in the buffer are still there' "$(ids | sort -u)" "$old"
is 'they resolve to nothing' "$(wc -c <$T/stack_map_bin) $(wc -c <$T/stack_map)" '16 0'

echo 1 >$T/tracing_on
clear_trace
stackgen record 20 0 300
is 'the same stacks have ids again' "$(ids | sort -u | wc -l)" 300
is 'none is one of the old ones' "$({
	echo "$old"
	ids | sort -u
} | sort | uniq -d | wc -l)" 0

# An export holds what its header says, whatever is inserted meanwhile.
whole() {
	hexdump -v -e '/4 "%u\n"' "$1" | awk '
		BEGIN { head = 5 }
		NR == 3 { wanted = $1 }
		NR == head + 1 { got++; head += 4 + 2 * $1 }
		END { exit !(got + 0 == wanted && NR + 1 == head) }'
}
(for i in 1 2 3 4 5 6 7 8; do stackgen record 24 $((i * 1000)) 250; done) &
good=0
for _ in 1 2 3 4; do
	cat $T/stack_map_bin >/tmp/bin
	whole /tmp/bin && good=$((good + 1))
done
wait
is 'an export while stacks are inserted holds what its header says' $good 4
note "$(value entries) entries at the end"

# Resets, readers and writers at once, on a small map: to print a large one takes long here.
echo 0 >$T/tracing_on
put reset $T/stack_map
(while [ ! -e /tmp/read ]; do put reset $T/stack_map && echo one >>/tmp/resets; sleep 0.05; done) 2>/dev/null &
(
	for i in $(seq 24); do
		cat $T/stack_map_bin >"/tmp/bin.$i" || : >"/tmp/stale.$i"
		cat $T/stack_map >/dev/null
	done
	: >/tmp/read
) 2>/dev/null &
for i in $(seq 24); do
	echo 1 >$T/tracing_on
	stackgen record 20 "$i" 50
	echo 0 >$T/tracing_on
done
wait
torn=0
for i in $(seq 24); do
	[ -e "/tmp/stale.$i" ] || whole "/tmp/bin.$i" || torn=$((torn + 1))
done
is 'an export is whole or stale, however resets fall' $torn 0
stale=$(find /tmp -name 'stale.*' | wc -l)
note "$stale of 24 were stale, $(wc -l </tmp/resets) resets came through"
ok 'some are whole' test "$stale" -lt 24
ok 'some resets came through meanwhile' test -s /tmp/resets
ok 'a reset works after all that' put 0 $T/stack_map
is 'and entries is 0' "$(value entries)" 0
ok 'rmmod' rmmod stackmap
finish
