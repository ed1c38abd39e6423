#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What kernels that want signatures say of a module without one that they trust, and what lockdown leaves.
# Argument: what the kernel was booted with, module.sig_enforce=1 or lockdown=integrity, or unknown-key for
# the first with a module that somebody unknown has signed. /bin/stackmap is the tool.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
case $1 in
lockdown=integrity) plan 8 ;;
loaded) plan 16 ;;
*) plan 7 ;;
esac

verify=0
lockdown=/sys/kernel/security/lockdown

# refused ERROR LOG - insmod fails with ERROR, and the kernel's log says LOG.
refused() {
	dmesg -c >/dev/null
	tap_output=$(insmod $KO 2>&1)
	is "insmod is refused: $1" "$(echo "$tap_output" | grep -c "$1")" 1
	dmesg >/tmp/log
	ok "and the log says: $2" grep -q "$2" /tmp/log
	is 'nothing is loaded' "$(grep -c '^stackmap ' /proc/modules)" 0
	fails 'the tool does not record' 'rejected' stackmap record --module $KO -e kmem:kmalloc -- true
	stackmap doctor >/tmp/doctor 2>&1
	is 'the doctor knows why' "$(grep -c "signatures.*required, by $3" /tmp/doctor)" 1
	ok 'and what to do' grep -q 'sign the module with a key that the kernel trusts' /tmp/doctor
}

case $1 in
module.sig_enforce=1)
	is 'signatures are enforced' "$(cat /sys/module/module/parameters/sig_enforce)" Y
	refused 'Key was rejected by service' 'Loading of unsigned module is rejected' module.sig_enforce
	;;
unknown-key)
	is 'signatures are enforced' "$(cat /sys/module/module/parameters/sig_enforce)" Y
	refused 'Key was rejected by service' 'Loading of module with unavailable key is rejected' module.sig_enforce
	;;
lockdown=integrity)
	ok 'the kernel is locked down' grep -q '\[integrity\]' $lockdown
	refused 'Operation not permitted' 'Lockdown: .*: unsigned module loading is restricted' 'kernel lockdown'
	ok 'tracefs is open' cat $T/trace
	;;
loaded)
	# As if the module were signed: lockdown comes when it is in.
	load
	echo integrity >$lockdown
	ok 'the option goes on' sh -c "echo 1 >$T/options/stackmap"
	echo 1 >$T/options/stacktrace
	echo 1 >$T/events/kmem/kmalloc/enable
	cat /proc/self/maps >/dev/null
	echo 0 >$T/events/kmem/kmalloc/enable
	ok 'stacks are ids' test "$(ids | wc -l)" -gt 0
	is 'none in full' "$(full)" 0
	ok 'stack_map is read' grep -q '^stack_id' $T/stack_map
	ok 'the option goes off' sh -c "echo 0 >$T/options/stackmap"
	ok 'and on' sh -c "echo 1 >$T/options/stackmap"
	echo confidentiality >$lockdown
	for file in trace stack_map stack_map_stat stack_map_bin stack_map_instances options/stackmap options/stackmap-resolve; do
		tap_output=$(cat $T/$file 2>&1)
		is "lockdown=confidentiality: $file is refused" "$(echo "$tap_output" | grep -c 'Operation not permitted')" 1
	done
	errno 'nor is the option written' 'Operation not permitted' $T/options/stackmap 0
	errno 'nor the map reset' 'Operation not permitted' $T/stack_map 0
	ok 'rmmod' rmmod stackmap
	;;
*) bail "what is '$1'?" ;;
esac
finish
