#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# readers.sh STACKMAP: what is exported is read back by other programs than our own. Prints TAP.
#
# pprof profiles are decoded by protoc with pprof's own profile.proto; readers.py reads folded
# stacks, profiles of the Firefox Profiler and texts of ftrace as their formats are documented.
set -eu

stackmap=$1
here=$(dirname "$(readlink -f "$0")")
proto=/usr/share/gocode/src/github.com/google/pprof/proto
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/../../lib/need" /usr/bin/protoc protobuf-compiler
"$here/../../lib/need" $proto/profile.proto golang-github-google-pprof-dev

for capture in before full function overwritten; do
	file=$here/data/$capture.data
	mkdir "$work/$capture"
	cd "$work/$capture"
	{
		"$stackmap" export --format pprof -o pprof "$file"
		"$stackmap" export --format firefox -o firefox "$file"
		"$stackmap" export --format json -o json "$file"
		"$stackmap" folded "$file" > folded.text
		"$stackmap" resolve "$file" > resolved
	} 2> notes
	gzip -dc pprof |
		protoc --decode=perftools.profiles.Profile -I $proto profile.proto > pprof.text
done
"$here/readers.py" "$work"
