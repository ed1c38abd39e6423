#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Stacks of every depth read back whole.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 9

verify=0
# The frames of the full stacks in the buffer: addresses, a line each, an empty line in front. The
# first frame is left out: it is the recorder's own, with the option off at another instruction.
full_frames() {
	sed -n 's/^ => .* <\([0-9a-f]*\)>$/\1/p; s/.*<stack trace>.*//p' $T/trace | sed '/^$/ { n; d }'
}

# The frames behind the ids in the buffer, in the same form.
id_frames() {
	hexdump -v -e '2/4 "%08x " "\n"' $T/stack_map_bin | awk '{ print $2 $1 }' >/tmp/words
	ids | awk '
		function hex(text,  i, n) {
			for (i = 1; i <= length(text); i++)
				n = n * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
			return n
		}
		BEGIN {
			getline < "/tmp/words"
			getline < "/tmp/words"
			while ((getline head < "/tmp/words") > 0) {
				getline refs < "/tmp/words"
				nr = hex(substr(head, 1, 8))
				text = ""
				while (nr-- > 0) {
					getline frame < "/tmp/words"
					text = text frame "\n"
				}
				stack[hex(substr(head, 9))] = text
			}
		}
		{ printf "\n%s", stack[$1] }' | sed '/^$/ { n; d }'
}

make() {
	clear_trace
	for depth in $depths; do
		stackgen record "$depth" 1234567 1
	done
}

load
insmod /tests/stackgen.ko || bail 'stackgen'
echo 8192 >$T/buffer_size_kb
echo 1 >$T/options/sym-addr
depths='0 1 2 3 4 5 8 13 30 31 32 33 60 99 100 101 127 150 200 230'
nr=$(echo "$depths" | wc -w)

make
is 'without the option: full stacks' "$(full)" "$nr"
full_frames >/tmp/full
echo 1 >$T/options/stackmap
make
is 'with it: ids' "$(ids | wc -l) $(full)" "$nr 0"
is 'of as many stacks' "$(ids | sort -u | wc -l)" "$nr"
id_frames >/tmp/ids
ok 'each has exactly the frames of the full stack' cmp /tmp/full /tmp/ids
is 'the first frame is the function that is replaced' \
	"$(sed -n 's/^  \[0\] //p' $T/stack_map | sed 's/+.*//' | sort -u)" __ftrace_trace_stack
sed -n 's/^stack_id.*depth \([0-9]*\)\]/\1/p' $T/stack_map | sort -n >/tmp/depths
note "from $(head -n 1 /tmp/depths) to $(tail -n 1 /tmp/depths) frames"
ok 'the deepest has over 200 frames' test "$(tail -n 1 /tmp/depths)" -gt 200

clear_trace
stackgen record 150 0 1
stackgen record 150 1 1
is 'two stacks that differ below frame 100 have two ids' "$(ids | sort -u | wc -l)" 2
echo 0 >$T/options/stackmap
clear_trace
stackgen record 150 0 1
full_frames >/tmp/one
clear_trace
stackgen record 150 1 1
full_frames >/tmp/two
is 'they differ there only' \
	"$(head -n 101 /tmp/one | md5sum) $(cmp -s /tmp/one /tmp/two && echo same)" \
	"$(head -n 101 /tmp/two | md5sum) "
ok 'rmmod' rmmod stackmap
finish
