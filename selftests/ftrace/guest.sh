#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# In a guest: runs ftracetest, the suite or some of its cases. guest.sh MODE HOOK [CASE...]
#
#   absent         the module is not loaded
#   loaded         it is loaded, its option is off
#   on             its option is on whenever a case begins
#   resolve        so is the one that shows the stacks behind the ids
#   dash, busybox  it is loaded with little room, by that shell: for our own cases

mode=$1
hook=$2
shift 2
cd /suite || exit
[ "$mode" = busybox ] || export PATH="$PATH:/suite/programs" LD_LIBRARY_PATH=/suite/programs
depmod -a

case $mode in
dash | busybox) bits=10 ;;
*) bits=16 ;;
esac
export STACKMAP_KO=/lib/stackmap/stackmap.ko STACKMAP_ARGUMENTS="bits=$bits hook=$hook"
if [ "$mode" != absent ]; then
	# shellcheck disable=SC2086
	insmod $STACKMAP_KO $STACKMAP_ARGUMENTS || exit 2
fi
options=
[ "$mode" != on ] || options='stackmap'
[ "$mode" != resolve ] || options='stackmap stackmap-resolve'
if [ "$options" ]; then
	# Each case, and each case in an instance, begins and ends with initialize_system.
	sed -i 's/^initialize_system()/suite_initialize_system()/' test.d/functions
	cat >>test.d/functions <<-END
	initialize_system() {
	    suite_initialize_system
	    for option in $options; do
	        echo 1 > /sys/kernel/tracing/options/\$option
	    done
	}
	END
fi
# Each line that a case runs is written apart: to memory, and out of the guest at the end.
sh ./ftracetest -vv --logdir /tmp/logs "$@"
status=$?
cp /tmp/logs/* /share
if [ "$mode" != absent ]; then
	cat /sys/kernel/tracing/stack_map_stat
	echo 0 >/sys/kernel/tracing/options/stackmap
	rmmod stackmap || exit 2
fi
exit $status
