#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Instructions of a recorded stack, at several depths, and of its parts.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

DEPTHS='0 4 12 28 44 100'
# As often as it takes for the turns of the ring buffer's pages to even out.
N=200

# parts - full stacks by the kernel itself, and what they consist of.
parts() {
	for depth in $DEPTHS; do
		record "$depth" 0 $N
		figure "full.$depth" "$(cost dump "$depth" 0 $N)"
		figure "unwind.$depth" "$(cost unwind "$depth" 0 $N)"
		figure "write_id.$depth" "$(cost id "$depth" 0 $N)"
		figure "write_full.$depth" "$(cost full "$depth" 0 $N)"
	done
}

# ids NAME HOOK UNWINDER - ids by one of the hooks, of stacks that are walked in one of the ways.
ids() {
	load hook="$2" unwind="$3"
	[ "$(value hook) $(value unwind)" = "$2 $3" ] || bail "not $2, $3"
	echo 1 >$T/options/stackmap
	for depth in $DEPTHS; do
		reset
		record "$depth" 0 1
		figure "frames.$depth" "$(sed -n 's/^stack_id.*depth \([0-9]*\).*/\1/p' $T/stack_map)"
		# There is one stack without further frames.
		count=$N
		[ "$depth" != 0 ] || count=1
		reset
		figure "insert.$1.$depth" "$(cost dump "$depth" 0 $count)"
		[ "$(value inserts)" = "$count" ] || bail "$(value inserts) inserts at $depth"
		[ $count = 1 ] || figure "searched.$1.$depth" "$(cost dump "$depth" 0 $N)"
		record "$depth" 0 $N 0
		figure "remembered.$1.$depth" "$(cost dump "$depth" 0 $N 0)"
		[ "$(value drops)" = 0 ] || bail "$(value drops) drops at $depth"
	done
	rmmod stackmap
}

# filled - hits and new stacks of 12 further frames while the map fills.
filled() {
	load hook=jump
	echo 1 >$T/options/stackmap
	capacity=$(entries | sed 's/.*\/ //')
	from=0
	for percent in 5 50 95 100; do
		to=$((capacity * percent / 100))
		fill $from $to
		from=$to
		figure "filled_hit.$percent" "$(cost dump 12 0 $N $((to / N)))"
		if [ $percent = 100 ]; then
			figure "filled_new.$percent" "$(cost dump 12 $from $N)"
			[ "$(value drop_full)" = $N ] || bail "$(value drop_full) in full"
		else
			figure "filled_new.$percent" "$(cost dump 12 $from $N)"
			from=$((from + N))
			[ "$(value inserts)" = $from ] || bail "$(value inserts) inserts at $percent %"
		fi
	done
	[ "$(value drops)" = $N ] || bail "$(value drops) drops"
	rmmod stackmap
}

prepare
counts_instructions
parts
ids jump jump cached
ids kprobe kprobe cached
ids kernel jump kernel
filled
echo finished
