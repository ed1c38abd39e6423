# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# What the guest's test scripts share: TAP on the standard output, and the module's files.

T=/sys/kernel/tracing
KO=/lib/stackmap/stackmap.ko
# Only in kernels with kmemleak.
KMEMLEAK=/sys/kernel/debug/kmemleak
# Only in kernels with KCSAN. The kernel has data races of its own.
KCSAN=/sys/kernel/debug/kcsan
if [ -e $KCSAN ]; then
	echo 'stackmap-expect: BUG: KCSAN' >/dev/kmsg
	echo on >$KCSAN
	# Not a child of the script, since a script may wait for all of its children.
	(cat /dev/kmsg >/tmp/kmsg &)
fi
# Those that has_symbol knows of.
SYMBOLS=' fanotify_handle_event
 fill_mg_cmtime
 ibt_save
 __kmalloc_cache_noprof
 __kmalloc_noprof
 __kvmalloc_node_noprof
 security_locked_down
 unwind_deferred_request
 uprobe_trampoline_entry
 __vmalloc_noprof'
tap_symbols=
# has_symbol NAME - whether the kernel has this one of SYMBOLS. All of kallsyms takes seconds to read: it is read once.
has_symbol() {
	[ "$tap_symbols" ] || tap_symbols=$(grep -F "$SYMBOLS" /proc/kallsyms; echo end)
	case "$SYMBOLS
" in
	*" $1
"*) ;;
	*) bail "SYMBOLS lacks $1" ;;
	esac
	case $tap_symbols in
	*" $1
"*) ;;
	*) return 1 ;;
	esac
}
# by_frames - whether the kernel's unwinder follows frame pointers, and not ORC.
by_frames() {
	! grep -q ' unwind_module_init$' /proc/kallsyms
}
# is_arm64 - whether it is that of arm64: then it takes the same step from any address, so there are no rules to learn.
is_arm64() {
	[ "$(uname -m)" = aarch64 ]
}
if by_frames; then
	# It says so once, without the module as well, where an NMI has hit while another one was running.
	echo 'stackmap-expect: WARNING: stack recursion on stack type' >/dev/kmsg
	echo 'stackmap-expect: WARNING: kernel stack regs at .* has bad .bp. value' >/dev/kmsg
fi
tap_number=0
tap_failed=0
tap_plan=0
# 1: each stack is compared with the one that the kernel walks; a guest in which one differs fails. 0: as users run the module.
verify=1

# plan NUMBER - how many tests follow, without those that finish adds. A test that is not reached is missed.
plan() {
	tap_plan=$1
	[ ! -e $KMEMLEAK ] || tap_plan=$((tap_plan + 1))
	[ ! -e $KCSAN ] || tap_plan=$((tap_plan + 2))
	echo "1..$tap_plan"
}

# ok DESCRIPTION COMMAND... - one test: COMMAND succeeds.
ok() {
	tap_text=$1
	shift
	if tap_output=$("$@" 2>&1); then
		result ok "$tap_text"
	else
		result 'not ok' "$tap_text"
		echo "# failed: $*"
		[ -z "$tap_output" ] || echo "$tap_output" | sed 's/^/# /'
	fi
}

# fails DESCRIPTION ERROR COMMAND... - one test: COMMAND fails, and says ERROR.
fails() {
	tap_text=$1
	tap_error=$2
	shift 2
	if tap_output=$("$@" 2>&1); then
		result 'not ok' "$tap_text"
		echo "# should have failed: $*"
		return
	fi
	case $tap_output in
	*"$tap_error"*) result ok "$tap_text" ;;
	*)
		result 'not ok' "$tap_text"
		printf '# got:    %s\n# wanted: %s\n' "$tap_output" "$tap_error"
		;;
	esac
}

# is DESCRIPTION GOT WANTED - one test: both are equal.
is() {
	if [ "$2" = "$3" ]; then
		result ok "$1"
	else
		result 'not ok' "$1"
		printf '# got:    %s\n# wanted: %s\n' "$2" "$3"
	fi
}

# put TEXT FILE - writes TEXT, with \n for a newline, in one write. Unlike printf, echo says errors.
put() {
	# shellcheck disable=SC3037
	echo -ne "$1" >"$2"
}

# errno DESCRIPTION ERROR FILE TEXT - one test: writing TEXT to FILE fails with ERROR.
errno() {
	tap_output=$({ put "$4" "$3"; } 2>&1)
	case $tap_output in
	*"$2"*) result ok "$1" ;;
	*)
		result 'not ok' "$1"
		printf '# got:    %s\n# wanted: %s\n' "${tap_output:-success}" "$2"
		;;
	esac
}

result() {
	tap_number=$((tap_number + 1))
	[ "$1" = ok ] || tap_failed=$((tap_failed + 1))
	echo "$1 $tap_number - $2"
}

note() {
	echo "# $*"
}

# natural_hook - the hook that fits the kernel: the jump fits kernels with IBT, unless FineIBT's code fills the padding.
natural_hook() {
	if has_symbol ibt_save && ! dmesg | grep -q 'Using .*FineIBT'; then
		echo jump
	else
		echo kprobe
	fi
}

# leaks - the leaks of kmemleak that the module, or a module that was unloaded, has allocated: frames of an
# unloaded module have no symbol.
leaks() {
	# kmemleak reports an object that is unreachable and unchanged in two scans and 5 s old.
	for _ in 1 2; do
		sleep 6
		echo scan >$KMEMLEAK
	done
	awk '
		/^unreferenced object/ { object = "" }
		{ object = object "\n" $0 }
		/\[stackmap\]/ || /^ +0x[0-9a-f]+$/ { found[object] = 1 }
		END { for (object in found) print object }' $KMEMLEAK
}

# races MODULE - the data races that KCSAN has reported with an access in the module itself.
races() {
	sed 's/^[^;]*;//' /tmp/kmsg | awk -v name="[$1]" '
		/BUG: KCSAN:/ { report = ""; ours = 0; on = 1 }
		on { report = report "\n" $0 }
		on && top { ours = ours || index($0, name); top = 0 }
		on && / to 0x[0-9a-f]+ of / { top = 1 }
		on && /^=====/ && report ~ /KCSAN.*\n.*\n/ { if (ours) print report; on = 0 }'
}

# The last tests; the script's status is whether all went well, as planned.
finish() {
	if [ -e $KMEMLEAK ]; then
		# The kernel may have leaks of its own.
		echo 'stackmap-expect: kmemleak: [0-9]+ new suspected memory leaks' >/dev/kmsg
		is 'the module leaks no memory' "$(leaks)" ''
	fi
	if [ -e $KCSAN ]; then
		# The reader of the log ends if it cannot keep up.
		echo 'stackmap: end of the races' >/dev/kmsg
		sleep 1
		ok "the whole kernel log was read" grep -q 'stackmap: end of the races' /tmp/kmsg
		races stackmap >/tmp/races
		is 'KCSAN reports no data race in the module' "$(cat /tmp/races)" ''
		note "$(grep -c 'BUG: KCSAN: ' /tmp/kmsg) data races reported in all"
	fi
	[ "$tap_failed" = 0 ] && [ "$tap_number" = "$tap_plan" ]
	exit
}

# bail TEXT - the test cannot go on.
bail() {
	echo "Bail out! $*"
	exit 1
}

# grown_old - waits until the files of this guest are old enough to have indices: they are as old as it is.
grown_old() {
	until [ "$(cut -d. -f1 /proc/uptime)" -ge 6 ]; do
		sleep 0.5
	done
}

# load [PARAMETER...] - loads the module, or gives up.
load() {
	case " $*" in
	*' user_bits='*) grown_old ;;
	esac
	insmod $KO verify=$verify "$@" || bail "insmod: $(dmesg | tail -n 3)"
}

# override PARAMETER... - makes a function of the kernel fail, or gives up.
override() {
	insmod /tests/override.ko "$@" || bail "override: $(dmesg | tail -n 2)"
}

# hold_recorder COMMAND... - holds the first stack that COMMAND records, on CPU 1; the script stays on CPU 0.
#
# Nothing may sleep until release_recorder: a sleeper's timer may be that of CPU 1, where with PREEMPT_RT a thread runs
# it, which waits for the recorder.
hold_recorder() {
	taskset -p 1 $$ >/dev/null
	override hold=1
	taskset 2 "$@" >/dev/null &
	until [ "$(cat /sys/module/override/parameters/hits)" != 0 ]; do :; done
}

release_recorder() {
	echo 0 >/sys/module/override/parameters/hold
	wait
	rmmod override
	taskset -p 3 $$ >/dev/null
}

# spin SECONDS - waits for up to a second less, without sleeping.
spin() {
	read -r spin_start _ </proc/uptime
	spin_now=$spin_start
	until [ $((${spin_now%.*} - ${spin_start%.*})) -ge "$1" ]; do
		read -r spin_now _ </proc/uptime
	done
}

# slabs - KiB in use of what kmalloc serves. The kernel needs slab_debug for these slabs, or objects that it keeps count.
slabs() {
	awk '$1 ~ /^kmalloc-/ { s += $2 * $4 } END { print int(s / 1024) }' /proc/slabinfo
}

# value KEY - a value of stack_map_stat.
value() {
	awk -v key="$1:" '$1 == key { print $2 }' $T/stack_map_stat
}

# drops_add_up - one test: "drops" is the sum of its reasons.
drops_add_up() {
	is 'drops is the sum of its reasons' "$(value drops)" \
		"$(awk '/^drop_/ { s += $2 } END { print s + 0 }' $T/stack_map_stat)"
}

# entries - the line "entries" of stack_map_stat: now / at most.
entries() {
	sed -n 's/^entries: *//p' $T/stack_map_stat
}

# load_id - the load id in the header of stack_map_bin.
load_id() {
	head -c 16 $T/stack_map_bin | hexdump -e '4/4 "%u " "\n"' | cut -d ' ' -f 4
}

# clear_trace - empties the top-level buffer.
clear_trace() {
	echo >$T/trace
}

# ids - the ids in the top-level buffer, in order.
ids() {
	sed -n 's/.*<stack_id \([0-9]*\)>.*/\1/p' $T/trace
}

# full - the number of full stacks in the top-level buffer.
full() {
	grep -c '<stack trace>' $T/trace
}

# hook_text - the bytes around the entry of the function that is hooked.
hook_text() {
	cat /sys/kernel/debug/stackgen/text
}

# stackgen FILE DEPTH FIRST COUNT - makes stacks.
stackgen() {
	echo "$2 $3 $4" >/sys/kernel/debug/stackgen/"$1"
}
