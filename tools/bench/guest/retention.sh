#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What one ring buffer keeps of the same workload, with full stacks and with ids.
# shellcheck source=SCRIPTDIR/bench.sh
. /bench/bench.sh

BUSYBOX=/lib/stackmap/busybox
BUFFER_KB=256

# A shell that looks for files: many allocations, with shallow stacks.
slab() {
	i=0
	while [ $i -lt 3000 ]; do
		[ -e /proc/self/nothing ]
		i=$((i + 1))
	done
}

# Files that are written, synchronously, to ext4 on a virtio disk.
block() {
	for i in $(seq 100); do
		dd if=/dev/zero of=/root/data bs=4k count=20 conv=fsync 2>/dev/null
	done
	rm /root/data
}

# A connection through a tunnel between two network namespaces, as containers have.
network() {
	nsenter -t "$there" -n $BUSYBOX nc -l -p 8080 </tmp/held >/dev/null &
	sleep 0.3
	nsenter -t "$here" -n bash -c 'dd if=/dev/zero bs=1000 count=3000 >/dev/tcp/10.1.0.2/8080 2>/dev/null'
	wait $!
}

network_prepare() {
	modprobe veth
	modprobe ipip
	unshare -n sleep 1000 &
	here=$!
	unshare -n sleep 1000 &
	there=$!
	sleep 0.5
	$BUSYBOX ip link add type veth
	for number in 1 2; do
		[ $number = 1 ] && pid=$here || pid=$there
		link=veth$((number - 1))
		$BUSYBOX ip link set $link netns "$pid"
		inside="nsenter -t $pid -n $BUSYBOX ip"
		$inside addr add 10.0.0.$number/24 dev $link
		$inside link set $link up
		$inside tunnel add tun0 mode ipip local 10.0.0.$number remote 10.0.0.$((3 - number))
		$inside addr add 10.1.0.$number/24 dev tun0
		$inside link set tun0 up
	done
	# What the listeners read from.
	mkfifo /tmp/held
	sleep 1000 >/tmp/held &
}

# kept NAME WORKLOAD - what is in the buffer after a workload.
kept() {
	echo 0 >$T/tracing_on
	clear_trace
	echo 1 >$T/tracing_on
	$2
	echo 0 >$T/tracing_on
	# Read by the shell itself, as time goes on meanwhile.
	while read -r key value more; do
		case "$key $value" in
		'entries: '*) entries=$value ;;
		'overrun: '*) overrun=$value ;;
		'bytes: '*) bytes=$value ;;
		'oldest '*) oldest=${more#ts: } ;;
		'now '*) now=$more ;;
		esac
	done <$T/per_cpu/cpu0/stats
	# An event and its stack are two entries.
	figure "kept.$1.$2" $((entries / 2))
	figure "overrun.$1.$2" $((overrun / 2))
	figure "bytes.$1.$2" "$(awk "BEGIN { printf \"%.1f\", $bytes * 2 / $entries }")"
	figure "span.$1.$2" "$(awk "BEGIN { printf \"%d\", ($now - $oldest) * 1000000 }")"
}

# both WORKLOAD
both() {
	"$1"
	kept full "$1"
	load
	echo 1 >$T/options/stackmap
	"$1"
	kept id "$1"
	[ "$(value drops)" = 0 ] || bail "$(value drops) drops"
	figure "depth.$1" "$(awk '
		/^stack_id/ { refs = $4 + 0; depth = $6 + 0; all += refs; sum += refs * depth }
		END { printf "%d", sum / all + 0.5 }' $T/stack_map)"
	rmmod stackmap
}

prepare
counts_instructions
echo $BUFFER_KB >$T/buffer_size_kb
figure buffer $((BUFFER_KB * 1024))
echo 1 >$T/options/stacktrace

echo 1 >$T/events/kmem/enable
both slab
echo 0 >$T/events/kmem/enable

echo 1 >$T/events/block/enable
both block
echo 0 >$T/events/block/enable
echo 0 >$T/options/stacktrace

network_prepare
echo 'veth_xmit tcp_v4_rcv' >$T/set_ftrace_filter
echo 1 >$T/options/func_stack_trace
echo function >$T/current_tracer
both network
echo nop >$T/current_tracer
echo finished
