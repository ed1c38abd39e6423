#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What an event and an export cost as the map grows, to as many stacks as the arguments say.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

N=200
fill_depth=6

prepare
counts_instructions
load bits=20
echo 1 >$T/options/stackmap
from=0
for stacks; do
	fill $from "$stacks"
	from=$stacks
	step=$((stacks / N))
	record $fill_depth 0 $N $step
	figure "hit.$stacks" "$(cost dump $fill_depth 0 $N $step)"
	figure "new.$stacks" "$(cost dump $fill_depth "$from" $N)"
	from=$((from + N))
	now=$(entries | sed 's/ .*//')
	[ "$now" = $from ] || bail "$now stacks, not $from: $(grep drop $T/stack_map_stat | tr -s ' \n' ' ')"
	clock
	before=$clock
	dd if=$T/stack_map_bin of=/dev/null bs=1M 2>/dev/null
	clock
	figure "binary.$stacks" $(((clock - before) / now))
	clock
	before=$clock
	dd if=$T/stack_map of=/tmp/text bs=64k count=8 2>/dev/null
	clock
	figure "text.$stacks" $(((clock - before) / $(grep -c ^stack_id /tmp/text)))
	figure "bytes.$stacks" $((($(value pool_bytes) + $(value table_bytes)) / now))
done
echo finished
