#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The check for leaks itself, in a kernel that has kmemleak: it finds what a module left behind.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 3

ok 'kmemleak runs' test -e $KMEMLEAK
insmod /tests/stackgen.ko || bail 'stackgen'
is 'nothing was leaked before' "$(leaks)" ''
# Of one size, the last ones to come from a CPU's cache are not found: the slab allocator's own array of
# them still has their addresses.
leaked=0
while [ $leaked -lt 300 ]; do
	echo 1 >/sys/kernel/debug/stackgen/leak
	leaked=$((leaked + 1))
done
rmmod stackgen
echo 'stackmap-expect: kmemleak: [0-9]+ new suspected memory leaks' >/dev/kmsg
ok 'what a module leaked is found when it is gone' test -n "$(leaks)"
echo clear >$KMEMLEAK
finish
