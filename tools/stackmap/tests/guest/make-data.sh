#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: makes the captures of tests/data anew, into the directory that is shared as /share.
#
#   tools/vm/boot --userland debian --share DIR --add STACKMAP:/bin/stackmap -- \
#       tools/stackmap/tests/guest/make-data.sh
#
# The golden files follow from them: UPDATE_GOLDEN=1 cargo test -p stackmap --test golden.
set -eu

T=/sys/kernel/tracing
O=/share

insmod /lib/stackmap/stackmap.ko bits=10
cd $T

# Two captures of the same work, to be compared; and one of functions.
stackmap record --slim --reset -e kmem:kmalloc -e sched:sched_switch -o $O/before.data -- ls /
stackmap record --slim --reset -e kmem:kmalloc -e sched:sched_switch -o $O/after.data -- \
	sh -c 'cat /proc/version > /dev/null; ls /sys > /dev/null'
stackmap record --slim --reset -f vfs_read -f ksys_write -o $O/function.data -- cat /proc/version

# A map that is full: full stacks are recorded, beside ids of known stacks.
stackmap record --slim --reset -e 'kmem:*' -e 'sched:*' -e 'timer:*' -e 'irq:*' -e 'workqueue:*' \
	-b 4096 -o /tmp/fill.data -- sh -c 'for i in 1 2 3; do ls -R /proc/1 /sys/class; done; sync' \
	> /dev/null 2>&1 || true
stackmap record --slim -e kmem:kmalloc -o $O/full.data -- sh -c 'ls /sys/kernel; dmesg | tail -n 1'

# A buffer that was overwritten.
stackmap record --slim --reset -e kmem:kmem_cache_alloc -b 8 -o $O/overwritten.data -- ls -l /proc

# The files themselves, the kernel's own text of the same stacks, and ids from before a reset.
echo 0 > tracing_on
echo reset > stack_map
echo > trace
echo 1 > options/stackmap
echo 1 > options/stacktrace
echo 1 > events/kmem/kmalloc/enable
echo 1 > tracing_on
cat /proc/version > /dev/null
echo 0 > tracing_on
grep -v '^#' trace > $O/stale.trace
echo reset > stack_map
echo > trace
echo 1 > tracing_on
ls / > /dev/null
cat /proc/version > /dev/null
echo 0 > tracing_on
cat stack_map_bin > $O/stack_map_bin
cat stack_map > $O/stack_map
cat stack_map_stat > $O/stack_map_stat
cat trace > $O/trace
cat /proc/kallsyms > /tmp/kallsyms
cat /proc/modules > $O/modules
echo 0 > events/kmem/kmalloc/enable

# What trace-cmd makes of ids.
cd /tmp
trace-cmd record -q -o trace.dat -e kmem:kmalloc -T ls / > /dev/null 2>&1
trace-cmd report trace.dat 2> /dev/null > $O/trace-cmd.report
cat $T/stack_map_bin > $O/trace-cmd.stack_map_bin

# Only those names that the stacks need, as record --slim keeps them: those of a capture of nothing
# more that has all of these stacks.
stackmap record --slim -e kmem:kfree -o /tmp/names.data -- true
unzip -p /tmp/names.data kallsyms > $O/kallsyms 2> /dev/null ||
	python3 -c 'import zipfile; open("/share/kallsyms", "wb").write(zipfile.ZipFile("/tmp/names.data").read("kallsyms"))'
