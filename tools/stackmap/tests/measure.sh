#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Measures the tool with inputs as large as they get: a map of 200,000 stacks of 20 frames with
# 210,000 symbols, 1 GiB of trace, a capture of 1,000,000 events. Prints seconds, the median of three,
# and the most memory of any; fails if that is more than is given, if a profile for Firefox takes more
# than twice the memory of one for pprof, or if naming stacks takes more than twice the CPU of
# inferno-collapse-perf. How long the rest took is for a person to judge.
set -eu
cd "$(dirname "$(readlink -f "$0")")/../../.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
stackmap=$(tools/stackmap/build-static --bins --examples)
"${stackmap%/*}/examples/synthesize" "$dir" 200000 20 "${1:-1024}" 1000000

# measure NAME MIB COMMAND... [--beside NAME MIB COMMAND...]: runs each three times, in turn, with its output
# thrown away. $dir/NAME has seconds of CPU and MiB.
measure()
{
	python3 - "$dir" "$@" <<-'END'
	import os, statistics, subprocess, sys, time
	dir, jobs = sys.argv[1], [[]]
	for word in sys.argv[2:]:
	    jobs.append([]) if word == "--beside" else jobs[-1].append(word)
	found = {name: [] for name, *_ in jobs}
	for name, _, *command in jobs * 3:
	    start = time.monotonic()
	    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
	    _, status, used = os.wait4(child.pid, 0)
	    if status:
	        sys.exit(f"{name}: status {status}")
	    found[name].append((time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
	for name, *_ in jobs:
	    passed, used, memory = zip(*found[name])
	    with open(f"{dir}/{name}", "w") as file:
	        print(statistics.median(used), max(memory), file=file)
	    print(f"{name:24} {statistics.median(passed):6.2f} s, {statistics.median(used):6.2f} s of CPU, "
	          f"{max(memory):4.0f} MiB")
	sys.exit(any(max(row[2] for row in found[name]) > int(most) for name, most, *_ in jobs))
	END
}

# twice NAME OTHER COLUMN WHAT: fails if one needs more than twice what another does.
twice()
{
	awk -v column="$3" -v what="$4" -v names="$1, $2" '
		{ value[NR] = $column }
		END {
			printf "%-24s %6.2f times the %s\n", names, value[1] / value[2], what
			exit value[1] > 2 * value[2]
		}' "$dir/$1" "$dir/$2"
}

set -- --kallsyms "$dir/kallsyms"
map=$dir/stack_map_bin
measure 'dump' 200 "$stackmap" dump "$@" "$map"
measure 'dump --sort ref' 200 "$stackmap" dump --sort ref "$@" "$map"
measure 'dump --json' 200 "$stackmap" dump --json "$@" "$map"
measure 'resolve' 200 "$stackmap" resolve --map "$map" "$@" "$dir/trace"
measure 'resolve --inline' 200 "$stackmap" resolve --inline --map "$map" "$@" "$dir/trace"
measure 'folded' 400 "$stackmap" folded "$@" "$map" --beside \
	'inferno-collapse-perf' 4096 sh -c "\"${stackmap%/*}/examples/collapse\" < \"$dir/perf.script\""
twice 'folded' 'inferno-collapse-perf' 1 CPU
measure 'flame' 400 "$stackmap" flame -o - "$@" "$map"
measure 'flame --inverted' 400 "$stackmap" flame --inverted -o - "$@" "$map"
measure 'diff --flame' 400 "$stackmap" diff --flame - "$@" "$map" "$map"
measure 'export pprof' 2048 "$stackmap" export --format pprof -o /dev/null "$dir/capture" --beside \
	'export firefox' 2048 "$stackmap" export --format firefox -o /dev/null "$dir/capture"
twice 'export firefox' 'export pprof' 2 memory
