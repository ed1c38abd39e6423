#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Measures the tool with inputs as large as they get: a map of 200,000 stacks of 20 frames with
# 210,000 symbols, and 1 GiB of trace. Prints seconds, the median of three, and the most memory of
# any; fails if that is more than 200 MiB. How long it took is for a person to judge.
set -eu
cd "$(dirname "$(readlink -f "$0")")/../../.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
stackmap=$(tools/stackmap/build-static --bins --example synthesize)
"${stackmap%/*}/examples/synthesize" "$dir" 200000 20 1024

# measure NAME COMMAND...: runs COMMAND three times with its output thrown away.
measure()
{
	python3 - "$@" <<-'END'
	import resource, statistics, subprocess, sys, time
	name, command = sys.argv[1], sys.argv[2:]
	passed, used = [], []
	for _ in range(3):
	    before = resource.getrusage(resource.RUSAGE_CHILDREN)
	    start = time.monotonic()
	    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
	    passed.append(time.monotonic() - start)
	    after = resource.getrusage(resource.RUSAGE_CHILDREN)
	    used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
	memory = after.ru_maxrss / 1024
	print(f"{name:24} {statistics.median(passed):6.2f} s, {statistics.median(used):6.2f} s of CPU, "
	      f"{memory:4.0f} MiB")
	sys.exit(memory > 200)
	END
}

set -- --kallsyms "$dir/kallsyms"
measure 'dump' "$stackmap" dump "$@" "$dir/stack_map_bin"
measure 'dump --sort ref' "$stackmap" dump --sort ref "$@" "$dir/stack_map_bin"
measure 'dump --json' "$stackmap" dump --json "$@" "$dir/stack_map_bin"
measure 'resolve' "$stackmap" resolve --map "$dir/stack_map_bin" "$@" "$dir/trace"
measure 'resolve --inline' "$stackmap" resolve --inline --map "$dir/stack_map_bin" "$@" "$dir/trace"
