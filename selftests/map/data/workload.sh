#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Runs in a guest: lets many parts of the kernel record stacks, and leaves them in /share.

T=/sys/kernel/tracing
insmod /lib/stackmap/stackmap.ko bits=16
echo 65536 >$T/buffer_size_kb
echo 1 >$T/options/stackmap
echo 1 >$T/options/stacktrace
echo 1 >$T/options/func_stack_trace
echo 'kfree mutex_lock dput _raw_spin_lock_irqsave' >$T/set_ftrace_filter
echo function >$T/current_tracer
for event in kmem sched irq timer workqueue rcu filemap writeback syscalls signal task; do
	if [ -d "$T/events/$event" ]; then
		echo 1 >"$T/events/$event/enable"
	fi
done
ls -lR /sys/class >/dev/null 2>&1
dd if=/dev/zero of=/tmp/data bs=4k count=16 2>/dev/null
gzip -c /tmp/data | gunzip | md5sum >/dev/null
mkdir -p /tmp/tree/a/b && mv /tmp/tree /tmp/moved && rm -r /tmp/moved
mkdir -p /mnt && mount -t tmpfs none /mnt && cp /bin/busybox /mnt
umount /mnt
(
	sleep 10 &
	kill $!
	wait
) 2>/dev/null
ps >/dev/null
mkfifo /tmp/fifo
echo hello >/tmp/fifo &
cat /tmp/fifo >/dev/null
ip link set lo up && ping -c 1 127.0.0.1 >/dev/null 2>&1
cat /proc/interrupts /proc/vmstat /proc/modules >/dev/null
sync
echo 0 >$T/tracing_on
cat $T/stack_map_stat
cp $T/stack_map_bin /share
for cpu in 0 1; do
	grep -o 'stack_id [0-9]*' $T/per_cpu/cpu$cpu/trace >/share/ids.$cpu
done
