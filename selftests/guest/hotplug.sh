#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# A CPU that goes and comes: where a grace period does not wait for it, its stacks are full stacks.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 8

online() {
	echo "$1" >/sys/devices/system/cpu/cpu1/online
}

load
# Called while the CPU is not online: going, after it was taken out; coming, before it is put in.
functions=
for function in sched_cpu_dying rcutree_dying_cpu hrtimers_cpu_dying smpcfd_dying_cpu tick_cpu_dying \
	x86_pmu_dying_cpu notify_cpu_starting sched_cpu_starting x86_pmu_starting_cpu hrtimers_cpu_starting \
	set_cpu_sibling_map ap_init_aperfmperf; do
	! grep -qx $function $T/available_filter_functions || functions="$functions $function"
done
note "functions:$functions"
echo "$functions" >$T/set_ftrace_filter
echo 1 >$T/options/stackmap
echo 1 >$T/options/func_stack_trace
echo function >$T/current_tracer
rounds=4
for _ in $(seq $rounds); do
	online 0
	online 1
done
# A change of the tracer empties the buffers.
echo 0 >$T/tracing_on

# kinds - function, and what stack its event has on the CPU that goes: full, id, or none.
kinds() {
	grep -v '^#' $T/per_cpu/cpu1/trace | awk '
		/<stack trace>/ { if (name) print name, "full"; name = ""; next }
		/<stack_id/ { if (name) print name, "id"; name = ""; next }
		/^ =>/ { next }
		{ if (name) print name, "none"; name = $(NF - 1) }
		END { if (name) print name, "none" }'
}
kinds | sort | uniq -c | sed 's/^/# /'
ok 'functions were traced as the CPU went' sh -c "grep -c '_dying' $T/per_cpu/cpu1/trace | grep -v '^0'"
ok 'and as it came' sh -c "grep -c '_starting' $T/per_cpu/cpu1/trace | grep -v '^0'"
is 'none of their stacks is an id' "$(kinds | grep -c 'id$')" 0
is 'none is missing' "$(kinds | grep -c 'none$')" 0
is 'they are counted' "$(value drop_unwatched)" "$(kinds | grep -c 'full$')"
drops_add_up

# Beside resets.
(while [ ! -e /tmp/off ]; do
	echo 0 >$T/tracing_on
	put reset $T/stack_map
	echo 1 >$T/tracing_on
done) &
for _ in $(seq $rounds); do
	online 0
	online 1
done
: >/tmp/off
wait
echo 0 >$T/tracing_on
is 'beside resets: no id either' "$(kinds | grep -c 'id$')" 0
ok 'rmmod' rmmod stackmap
finish
