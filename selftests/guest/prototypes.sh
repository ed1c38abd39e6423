#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Where a function that the module calls is another one than it was built for, the module is refused.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 16

COPY=/tmp/copy.ko

# said - what the module has put into the log since the last call.
said() {
	dmesg -c | sed -n 's/.*\] stackmap: //p'
}

# renamed FROM TO - makes a copy of the module with another name of the same length. sed takes long.
renamed() {
	[ ${#1} = ${#2} ] || return
	cp "$KO" "$COPY"
	strings -n ${#1} -t d "$KO" | awk -v name="$1" '{
		at = $1
		sub(/^ *[0-9]+ /, "")
		for (; i = index($0, name); at += i) {
			print at + i - 1
			$0 = substr($0, i + 1)
		}
	}' >/tmp/offsets
	while read -r offset; do
		printf %s "$2" | dd of="$COPY" bs=1 seek="$offset" conv=notrunc 2>/dev/null
	done </tmp/offsets
	[ -s /tmp/offsets ]
}

# refused DESCRIPTION NAME OURS OTHER THEIRS - the module calls OTHER by the prototype of NAME, which
# is OURS, as if that was what this kernel has by that name. OTHER takes and returns THEIRS.
refused() {
	ok "$1: $4() in the place of $2()" renamed "$2" "$4"
	said >/dev/null
	tap_output=$(insmod $COPY 2>&1) && rmmod stackmap
	is 'is refused with ENOEXEC' "${tap_output##*: }" 'invalid module format'
	# With that errno, busybox tries the other system call, too.
	is 'and one line says why, each time' "$(said | uniq -c | sed 's/^ *//')" \
		"2 $4(): the module was built for $3, this kernel has $5"
}

said >/dev/null
load
log=$(said)
rmmod stackmap
case $(uname -r) in
*-stackmap-*)
	# Built small.
	is 'without BTF it says so, once' "$(echo "$log" | grep 'cannot be compared')" \
		'unexported functions cannot be compared: this kernel has no BTF'
	finish
	;;
esac
is 'all functions are compared' "$(echo "$log" | grep 'cannot be compared')" ''

refused 'a parameter less' seq_print_ip_sym '(ptr, u64, u64) -> s32' \
	sprint_backtrace '(ptr, u64) -> s32'
refused 'another size' __ftrace_trace_stack '(ptr, ptr, u32, s32, ptr) -> void' \
	perf_trace_wbt_timer '(ptr, ptr, u32, s32, u32) -> void'
refused 'another kind' trace_buffer_unlock_commit_nostack '(ptr, ptr) -> void' \
	efi_crash_gracefully_on_page_fault '(u64, ptr) -> void'
refused 'something else returned' tracer_tracing_is_on '(ptr) -> bool' \
	ftrace_get_addr_curr '(ptr) -> u64'

ok 'a copy that does not find BTF' renamed __start_BTF __start_BTX
ok 'is loaded' insmod $COPY
is 'and says once that nothing was compared' "$(said | grep 'cannot be compared')" \
	'unexported functions cannot be compared: this kernel has no BTF'
rmmod stackmap
finish
