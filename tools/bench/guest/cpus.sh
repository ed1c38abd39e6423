#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Instructions of a stack that several CPUs record at once, in full and as ids.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

EVENTS=4000

# each CPUS - instructions of an event, of all CPUs together, when that many record them.
each() {
	echo "12 0 $((EVENTS / $1)) $1" >$C/together || bail "together on $1"
	echo $(($(cat $C/took) / EVENTS))
}

prepare
counts_instructions
load
for mode in full id; do
	[ $mode = full ] || echo 1 >$T/options/stackmap
	for cpus in 1 2 4 8; do
		each $cpus >/dev/null
		figure "$mode.$cpus" "$(each $cpus)"
	done
done
[ "$(value drops)" = 0 ] || bail "$(value drops) drops"
echo finished
