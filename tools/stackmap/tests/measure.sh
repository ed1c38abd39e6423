#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# measure.sh STACKMAP DIR: how long the largest inputs take, and how much memory. DIR is where
# examples/synthesize has written them. Fails where a limit is passed. Limits are of processor time,
# so that they hold on a busy machine; the time that passed is told, too.
set -eu

stackmap=$1
dir=$2
failed=0

# measure SECONDS MIB NAME COMMAND...: runs COMMAND with its output thrown away.
measure()
{
	python3 - "$@" <<-'END' || failed=1
	import resource, subprocess, sys, time
	seconds, mib, name = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
	start = time.monotonic()
	quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
	status = subprocess.run(sys.argv[4:], **quiet).returncode
	passed = time.monotonic() - start
	usage = resource.getrusage(resource.RUSAGE_CHILDREN)
	took, used = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
	bad = status != 0 or took > seconds or used > mib
	print(f"{'FAIL' if bad else 'ok':4}  {name}: {took:.2f} s of {seconds:.0f} ({passed:.2f} s passed), "
	      f"{used:.0f} MiB of {mib:.0f}")
	sys.exit(bad)
	END
}

map="--kallsyms $dir/kallsyms"
# shellcheck disable=SC2086
{
measure 2 200 "dump" "$stackmap" dump $map "$dir/stack_map_bin"
measure 2 200 "dump --sort ref" "$stackmap" dump --sort ref $map "$dir/stack_map_bin"
measure 4 200 "dump --json" "$stackmap" dump --json $map "$dir/stack_map_bin"
if [ "$(wc -c < "$dir/trace")" -gt 1000000 ]; then
	measure 60 200 "resolve" "$stackmap" resolve --map "$dir/stack_map_bin" $map "$dir/trace"
	measure 60 200 "resolve --inline" \
		"$stackmap" resolve --inline --map "$dir/stack_map_bin" $map "$dir/trace"
fi
}
exit $failed
