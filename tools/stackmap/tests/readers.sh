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

# need PACKAGE FILE: FILE is there, or comes with the Debian package.
need()
{
	[ ! -e "$2" ] || return 0
	if [ "$(id -u)" != 0 ] || ! apt-get install -y "$1" > "$work/log" 2>&1; then
		echo "$2 is missing: apt-get install $1"
		exit 1
	fi
}

need protobuf-compiler /usr/bin/protoc
need golang-github-google-pprof-dev $proto/profile.proto

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
