#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# readers.sh STACKMAP: what is exported is read back by other programs than our own: go tool pprof,
# and readers of the documented formats of folded stacks and of the Firefox Profiler.
set -eu

stackmap=$1
data=$(dirname "$0")/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for capture in before full function overwritten; do
	file=$data/$capture.data
	$stackmap export --format pprof -o "$work/pprof" "$file" 2> /dev/null
	$stackmap export --format firefox -o "$work/firefox" "$file" 2> /dev/null
	$stackmap export --format json -o "$work/json" "$file" 2> /dev/null
	$stackmap folded "$file" > "$work/folded" 2> /dev/null
	if command -v go > /dev/null; then
		go tool pprof -raw "$work/pprof" > "$work/raw"
		go tool pprof -traces "$work/pprof" > "$work/traces"
	else
		echo "note: no go tool pprof here"
	fi
	python3 - "$work" "$capture" <<-'END'
	import collections, json, os, re, sys

	work, capture = sys.argv[1:]
	path = lambda name: os.path.join(work, name)

	# The export that is ours, as the truth: stacks by name and how often each was seen.
	ours = json.load(open(path("json")))
	frames = {stack["id"]: stack["frames"] for stack in ours["stacks"]}
	label = lambda frame: frame["function"] + (f" [{frame['module']}]" if "module" in frame else "")
	want = collections.Counter()
	for event in ours["events"]:
	    if "stack" in event:
	        names = [label(frame) for frame in frames[event["stack"]]]
	    else:
	        names = event.get("frames") or ["(no stack)"]
	    want[event["event"], tuple(reversed(names))] += 1
	total = sum(want.values())
	assert total == len(ours["events"]) > 0

	# Folded, as flamegraph.pl and ui.perfetto.dev read it: the count behind the last blank, frames
	# between semicolons, and at least one of these in every line.
	folded = collections.Counter()
	for line in open(path("folded")):
	    stack, count = line.rstrip("\n").rsplit(" ", 1)
	    event, *names = stack.split(";")
	    assert names, line
	    folded[event, tuple(names)] += int(count)
	assert folded == want, "folded"

	# The processed format of the Firefox Profiler: tables of columns, per thread.
	firefox = json.load(open(path("firefox")))
	assert firefox["meta"]["preprocessedProfileVersion"] >= 24
	seen = collections.Counter()
	for thread in firefox["threads"]:
	    strings, stacks, table = thread["stringArray"], thread["stackTable"], thread["frameTable"]
	    def names(stack):
	        names = []
	        while stack is not None:
	            function = table["func"][stacks["frame"][stack]]
	            names.append(strings[thread["funcTable"]["name"][function]])
	            stack = stacks["prefix"][stack]
	        return tuple(reversed(names))
	    samples, markers = thread["samples"], thread["markers"]
	    assert samples["length"] == len(samples["stack"])
	    assert markers["length"] == len(markers["name"])
	    for stack in samples["stack"]:
	        seen[names(stack) or ("(no stack)",)] += 1
	expected = collections.Counter()
	for (_, stack), count in want.items():
	    expected[stack] += count
	assert seen == expected, "firefox"

	if os.path.exists(path("raw")):
	    raw = open(path("raw")).read()
	    samples = raw.split("Samples:\n")[1].split("Locations\n")[0]
	    counts = [int(count) for count in re.findall(r"^ +(\d+): [\d ]+$", samples, re.M)]
	    assert sum(counts) == total, f"pprof: {sum(counts)} of {total}"
	    for event in {event for event, _ in want}:
	        assert f"event:[{event}]" in raw, event
	    traces = open(path("traces")).read()
	    hottest = max(want, key=want.get)[1]
	    for name in hottest:
	        assert name.split(" [")[0] in traces, name
	print(f"ok: {capture}: {total} events, {len(want)} stacks")
	END
done
