#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Toggling, loading and unloading under load: the kernel is afterwards as it was before.
# Arguments: the hook, how many toggles, how many loads.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan "$([ -e $KMEMLEAK ] && echo 12 || echo 14)"

hook=$1
toggles=$2
loads=$3

insmod /tests/stackgen.ko || bail 'stackgen'
before=$(hook_text)
note "text before the first load: $before"

# KiB in the slabs that kmalloc serves.
slabs() {
	awk '$1 ~ /^kmalloc-/ { s += $2 * $4 } END { print int(s / 1024) }' /proc/slabinfo
}

# KiB that the kernel cannot take back: slabs with what kmalloc takes of pages, per-CPU, vmalloc.
held() {
	awk '/^(SUnreclaim|Percpu|VmallocUsed):/ { s += $2 } END { print s }' /proc/meminfo
}

# Areas of vmalloc, those that are only not purged yet left out.
areas() {
	grep -vc unpurged /proc/vmallocinfo
}

echo 64 >$T/buffer_size_kb
for func in schedule schedule_timeout vfs_read vfs_write do_sys_openat2; do
	echo $func >>$T/set_ftrace_filter
done
echo 1 >$T/options/func_stack_trace
echo function >$T/current_tracer
for cpu in 0 1; do
	(while [ ! -e /tmp/stop ]; do
		ls -l /sys/class/tty /bin >/dev/null
		cat /proc/self/maps >/dev/null
	done) &
	taskset -p $((1 << cpu)) $! >/dev/null
done

load hook="$hook"
is "the hook is $hook" "$(value hook)" "$hook"
i=0
hooked=0
while [ $i -lt "$toggles" ]; do
	echo 1 >$T/options/stackmap
	[ "$(hook_text)" = "$before" ] || hooked=$((hooked + 1))
	echo 0 >$T/options/stackmap
	i=$((i + 1))
done
is "$toggles times on: the text was another" $hooked "$toggles"
is 'off: the text is as before' "$(hook_text)" "$before"
note "recorded meanwhile: $(value successes) ids, $(value drops) in full"
ok 'stacks were recorded as ids' test "$(value successes)" -gt 0
ok 'rmmod' rmmod stackmap

empty=0
left=0
# cycle on|off - loads, records, unloads with the option on or off.
cycle() {
	load hook="$hook"
	echo 1 >$T/options/stackmap
	tries=0
	until [ "$(value successes)" -gt 0 ] || [ $tries = 50 ]; do
		sleep 0.05
		tries=$((tries + 1))
	done
	[ $tries -lt 50 ] || empty=$((empty + 1))
	[ "$1" = on ] || echo 0 >$T/options/stackmap
	rmmod stackmap || bail 'rmmod'
	# A buffer that is being filled faster than it is read has no end.
	echo 0 >$T/tracing_on
	! grep -q 'stack_id\|Unknown type' $T/trace || left=$((left + 1))
	echo 1 >$T/tracing_on
}
i=0
while [ $i -lt "$loads" ]; do
	if [ $((i % 2)) = 0 ]; then cycle on; else cycle off; fi
	i=$((i + 1))
done
is "$loads times loaded, on, unloaded: ids each time" $empty 0
is 'never an id left in the buffer' $left 0
is 'the text is as before the first load' "$(hook_text)" "$before"
touch /tmp/stop
wait
echo nop >$T/current_tracer

# What cycles leave behind is looked for when nothing else runs; the first ones fill caches.
mkdir $T/instances/listed $T/instances/other
quiet() {
	for _ in $(seq "$1"); do
		load hook="$hook"
		echo listed >$T/stack_map_instances
		echo other >$T/stack_map_instances
		echo '!other' >$T/stack_map_instances
		echo 1 >$T/options/stackmap
		echo function >$T/current_tracer
		stackgen record 8 0 50
		echo nop >$T/current_tracer
		rmmod stackmap || bail 'rmmod'
	done
	sleep 1
}
quiet 5
areas_before=$(areas)
slabs_before=$(slabs)
held_before=$(held)
quiet 40
note "vmalloc: $areas_before areas before, $(areas) after; kmalloc: $slabs_before KiB before, $(slabs) KiB after"
note "in all: $held_before KiB before, $(held) KiB after"
is 'no vmalloc area is ours' "$(grep -c stackmap /proc/vmallocinfo)" 0
ok 'no vmalloc area was left' test "$(areas)" -lt $((areas_before + 20))
# KASAN keeps what was freed for a while; there kmemleak says what was left.
if [ ! -e $KMEMLEAK ]; then
	ok 'no slab memory was left' test "$(slabs)" -lt $((slabs_before + 160))
	ok 'no other memory was left' test "$(held)" -lt $((held_before + 320))
fi
ok 'no instance is held' rmdir $T/instances/listed $T/instances/other
is 'no symbol of the module is left' "$(grep -c '\[stackmap\]' /proc/kallsyms)" 0
finish
