#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Bytes of the map with as many real stacks as the arguments say: each BITS:STACKS.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

# What is traced by turns: where the kernel's paths branch most.
FUNCTIONS='*lock* *free* *rcu* *get* *task* *alloc* *put* *copy*'

# work N - one of many things that programs do.
work() {
	case $(($1 % 12)) in
	0) ls -lR /sys/class /sys/bus ;;
	1) cat /proc/*/stat /proc/*/maps /proc/*/status ;;
	2) dd if=/dev/zero of=/tmp/data bs=4k count=64; gzip -c /tmp/data | gunzip | md5sum ;;
	3) mkdir -p /tmp/tree/a/b; mv /tmp/tree /tmp/moved; rm -r /tmp/moved ;;
	4) mkdir -p /mnt; mount -t tmpfs none /mnt; cp /bin/busybox /mnt; umount /mnt ;;
	5) ping -c 1 127.0.0.1 ;;
	6) ps; cat /proc/interrupts /proc/vmstat /proc/modules /proc/slabinfo ;;
	7) find /proc/sys -type f -exec cat {} + ;;
	8) (sleep 1 & kill $!; wait) ;;
	9) ls -lR /dev /etc /run; sync ;;
	10) ip address; ip route; ip link set lo down; ip link set lo up ;;
	11) find /sys/kernel /sys/devices -name 'u*' ;;
	esac >/dev/null 2>&1
}

# entries_now - the number of stacks.
entries_now() {
	entries | sed 's/ .*//'
}

# gather STACKS - works until there are so many stacks.
gather() {
	for functions in $FUNCTIONS; do
		echo "$functions" >$T/set_ftrace_filter
		for n in $(seq 0 11); do
			work "$n"
			now=$(entries_now)
			[ "$now" -lt "$1" ] || return 0
		done
	done
	bail "$now stacks only"
}

for pair; do
	bits=${pair%:*} stacks=${pair#*:}
	load bits="$bits"
	echo 1 >$T/options/stackmap
	echo 1 >$T/options/func_stack_trace
	echo vfs_read >$T/set_ftrace_filter
	echo function >$T/current_tracer
	echo 1 >$T/tracing_on
	gather "$stacks"
	echo 0 >$T/tracing_on
	echo nop >$T/current_tracer
	sleep 1
	figure "entries.$bits" "$(entries_now)"
	figure "capacity.$bits" "$(entries | sed 's/.*\/ //')"
	figure "events.$bits" "$(($(value hits) + $(value inserts)))"
	figure "pool.$bits" "$(value pool_bytes)"
	figure "table.$bits" "$(value table_bytes)"
	# Of the binary export: 16 bytes of header for each stack, 16 for all.
	figure "exported.$bits" "$(wc -c <$T/stack_map_bin)"
	figure "growing.$bits" "$(value drop_growing)"
	clear_trace
	rmmod stackmap
done
echo finished
