#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Files that outlive the module, and the mount that they are in: who holds one by its path, who opens one
# while the module goes, what the administrator has set. Argument: loads of the module under openers.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan "$(grep -q ' fanotify_handle_event$' /proc/kallsyms && echo 19 || echo 15)"

cycles=$1
files="$T/stack_map $T/stack_map_bin $T/stack_map_stat $T/stack_map_instances $T/options/stackmap
	$T/options/stackmap-resolve"

# What the administrator has set stays.
mount -o remount,gid=1000,mode=750 $T
before=$(grep " $T " /proc/mounts)
load
is 'the mount options are as before' "$(grep " $T " /proc/mounts)" "$before"
is 'so are the modes' "$(stat -c '%a %g' $T $T/tracing_on | xargs)" '750 1000 640 1000'
is 'the files have the group of the others' "$(stat -c %g $T/stack_map $T/options/stackmap | xargs)" '1000 1000'
rmmod stackmap
is 'after rmmod, too' "$(grep " $T " /proc/mounts)" "$before"

# By a path that was taken before.
for uid in 0 1000; do
	for on in 0 1; do
		load
		echo $on >$T/options/stackmap
		rm -f /tmp/go /tmp/held
		mkfifo /tmp/go
		# shellcheck disable=SC2086
		/tests/reopen hold $uid $files </tmp/go >/tmp/held 2>&1 &
		exec 5>/tmp/go
		until grep -q ready /tmp/held; do sleep 0.1; done
		ok "uid $uid, option $on: rmmod while files are held by their paths" rmmod stackmap
		[ $on = 0 ] || load
		echo go >&5
		exec 5>&-
		wait
		is "uid $uid, option $on: each is ENXIO afterwards" "$(grep -c ': ENXIO$' /tmp/held)" 6
		[ $on = 0 ] || rmmod stackmap
	done
done

# waits FILE - has each open of it wait, as /tmp/permit says, until descriptor 5 is closed.
waits() {
	rm -f /tmp/go
	mkfifo /tmp/go
	/tests/permit "$1" </tmp/go >/tmp/permit &
	exec 5>/tmp/go
	until grep -q ready /tmp/permit; do sleep 0.1; done
}

# While an open waits for somebody's permission, if the kernel knows that.
if grep -q ' fanotify_handle_event$' /proc/kallsyms; then
	load
	waits $T/stack_map
	cat $T/stack_map >/tmp/waiting 2>&1 &
	until grep -q asked /tmp/permit; do sleep 0.1; done
	rmmod stackmap &
	sleep 1.5
	ok 'rmmod waits for an open that is under way' grep -q '^stackmap .* Unloading ' /proc/modules
	echo >&5
	exec 5>&-
	wait
	is 'and ends after it' "$(grep -c '^stackmap ' /proc/modules)" 0
	ok 'which is refused with ENXIO' grep -q 'No such device or address' /tmp/waiting

	# An instance goes while it is being listed, and others come to its name and to its memory. What is
	# listed is held, so that it cannot be removed.
	load
	for round in $(seq 24); do
		taskset 1 mkdir $T/instances/other
		waits $T/instances/other/tracing_on
		put other $T/stack_map_instances 2>/tmp/waiting &
		until grep -q asked /tmp/permit; do sleep 0.1; done
		taskset 1 rmdir $T/instances/other
		for name in $(seq $((round % 3))) other 3 4; do
			taskset 1 mkdir "$T/instances/$name"
		done
		echo >&5
		exec 5>&-
		wait
		if [ "$(cat $T/stack_map_instances)" ]; then
			! rmdir $T/instances/other 2>/dev/null || break
			put '!other' $T/stack_map_instances
		fi
		rmdir $T/instances/*
		! grep -q 'No such file' /tmp/waiting || break
	done
	is 'an instance that goes while it is being listed is not there' \
		"$(grep -c 'No such file' /tmp/waiting)" 1
	note "in round $round"
	rmmod stackmap
else
	note 'this kernel has no fanotify'
fi

# While it goes and comes.
echo 1 >$T/options/stacktrace
load
for cpu in 0 1; do
	# shellcheck disable=SC2086
	taskset $((1 << cpu)) /tests/reopen loop $((cpu * 1000)) $files >/tmp/opened.$cpu 2>&1 &
	eval "opener$cpu=\$!"
done
loads=0
while [ $loads -lt "$cycles" ]; do
	echo 1 >$T/options/stackmap
	# An open file refuses it.
	until rmmod stackmap 2>/dev/null; do :; done
	insmod $KO || bail "insmod: $(dmesg | tail -n 3)"
	loads=$((loads + 1))
done
# shellcheck disable=SC2154
kill "$opener0" "$opener1"
wait "$opener0" "$opener1"
ok 'files were opened all the time' sh -c 'awk "/^opened/ && \$2 > 100" /tmp/opened.0 | grep .'
note "$loads loads; $(cat /tmp/opened.0 /tmp/opened.1 | xargs)"
is 'no error but those of what goes' "$(cat /tmp/opened.? | grep -Ev '^(opened|ENOENT|ENXIO) ')" ''
ok 'rmmod' rmmod stackmap
finish
