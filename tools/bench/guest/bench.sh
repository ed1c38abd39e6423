# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# What the guest's benches share. Each prints lines "figure NAME VALUE".
# shellcheck source=SCRIPTDIR/../../lib/guest/tap.sh
. /tests/tap.sh

verify=0
C=/sys/kernel/debug/stackcost

# figure NAME VALUE - one result.
figure() {
	echo "figure $1 ${2:?}"
}

# prepare - waits until the kernel does nothing by itself, and loads what measures.
prepare() {
	insmod /tests/stackcost.ko || bail 'stackcost'
	echo 4096 >$T/buffer_size_kb
}

# counts_instructions - whether the counter does: a million instructions take a million.
counts_instructions() {
	million=$(cat $C/million)
	if [ "$million" -lt 999900 ] || [ "$million" -gt 1000100 ]; then
		bail "a million instructions: $million"
	fi
}

# cost WHAT DEPTH FIRST COUNT [STEP] - instructions of one, on average.
cost() {
	echo "$*" >$C/measure || bail "measure $*"
	read -r cost_count cost_sum _ <$C/cost
	echo $(((cost_sum + cost_count / 2) / cost_count))
}

# record DEPTH FIRST COUNT [STEP] - the same, without a figure.
record() {
	echo "dump $*" >$C/measure || bail "measure $*"
}

# fill FIRST LAST - makes stacks, in steps, so that growth keeps up.
fill() {
	fill_from=$1
	while [ "$fill_from" -lt "$2" ]; do
		fill_count=$(($2 - fill_from))
		[ "$fill_count" -le 1000 ] || fill_count=1000
		record "${fill_depth:-12}" "$fill_from" "$fill_count"
		fill_from=$((fill_from + fill_count))
		sleep 0.02
	done
}

# reset - an empty map.
reset() {
	echo 0 >$T/tracing_on
	echo 0 >$T/stack_map || bail 'reset'
	echo 1 >$T/tracing_on
}

# clock - reads the counter into $clock.
clock() {
	# shellcheck disable=SC2034
	read -r clock <$C/clock
}
