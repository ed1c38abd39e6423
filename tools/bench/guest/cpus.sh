#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Stacks that several CPUs record at once, in full and as ids. Times here are only for ratios.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

# took CPUS - how long that many CPUs take: the least of a few turns, as others use the machine.
took() {
	for _ in 1 2 3 4 5; do
		echo "12 0 $((4000 / $1)) $1" >$C/together || bail "together on $1"
		cat $C/took
	done | sort -n | head -n 1
}

prepare
load
for mode in full id; do
	# Nothing runs but this shell while the text is changed.
	[ $mode = full ] || echo 1 >$T/options/stackmap
	for cpus in 1 2 4 8; do
		figure "$mode.$cpus" "$(took $cpus)"
	done
done
figure drops "$(value drops)"
figure stacks "$(value inserts)"
figure events "$(($(value hits) + $(value inserts)))"
echo finished
