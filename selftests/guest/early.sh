#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Booted with an initramfs that has packaging/initramfs in it, and with events on the kernel's command
# line: stacks were ids before the root file system was mounted.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 6

# at TEXT - when the kernel's log said so, in seconds.
at() {
	dmesg | sed -n "s/^\[ *\([0-9.]*\)\] .*$1.*/\1/p" | head -n 1
}

on=$(at 'stackmap: stacks are recorded as ids from here on')
root=$(at 'EXT4-fs (vda): mounted filesystem')
note "ids from $on s on, the root file system at $root s"
ok 'the option went on before the root file system was mounted' awk -v on="$on" -v root="$root" \
	'BEGIN { exit !(on > 0 && root > 0 && on + 0 < root + 0) }'
is 'it is on' "$(cat $T/options/stackmap)" 1
echo 0 >$T/tracing_on
# Lines are: task-pid [cpu] flags time: event
awk -v root="$root" '
	match($0, /[0-9]+\.[0-9]+: /) { time = substr($0, RSTART) + 0 }
	/<stack trace>/ { if (!full++) first_full = time; last_full = time }
	/<stack_id [0-9]+>/ { if (!ids++) first_id = time; if (time < root + 0) early++ }
	END { print early + 0, full + 0, ids + 0, last_full + 0 }' $T/trace >/tmp/counts
read -r early full ids last_full </tmp/counts
note "$ids ids, $early of them from before the root file system; $full full stacks, the last at $last_full s"
ok 'stacks from before that are ids' test "$early" -gt 0
ok 'no full stack is younger than the option' awk -v on="$on" -v full="$last_full" 'BEGIN { exit full + 0 > on + 0.1 }'
sed -n 's/.*<stack_id \([0-9]*\)>.*/\1/p' $T/trace | sort -u >/tmp/ids
sed -n 's/^stack_id \([0-9]*\) .*/\1/p' $T/stack_map | sort >/tmp/known
is 'the map knows all of them' "$(comm -23 /tmp/ids /tmp/known | wc -l)" 0
echo 0 >$T/options/stackmap
ok 'rmmod' rmmod stackmap
finish
