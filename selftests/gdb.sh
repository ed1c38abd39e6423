#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A guest is debugged by gdb as CONTRIBUTING.md says.

set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source-path=SCRIPTDIR/..
. selftests/tap.sh
. tools/lib/cache.sh
need gdb gdb
eval "$(tools/vm/setup --kernel debug --env)"
work=$(mktemp -d)
tools/vm/boot --kernel debug --no-module --append nokaslr --qemu=-s -- sh -c 'echo up; sleep 1000' >"$work/out" 2>&1 &
guest=$!
trap 'kill $guest; wait $guest || true; rm -rf "$work"' EXIT
for _ in $(seq 600); do
	! grep -q up "$work/out" || break
	kill -0 $guest || { sed 's/^/# /' "$work/out"; exit 1; }
	sleep 1
done
# shellcheck disable=SC2154
gdb -nx -batch "$TREE/vmlinux" -ex 'target remote :1234' -ex 'x/s &linux_banner' -ex 'hbreak __schedule' \
	-ex continue -ex 'x/i $pc' -ex detach >"$work/gdb" 2>&1 || true
# has DESCRIPTION TEXT
has() {
	if grep -q "$2" "$work/gdb"; then
		result ok "$1"
	else
		result 'not ok' "$1"
		sed 's/^/# /' "$work/gdb"
	fi
}
# shellcheck disable=SC2154
has "the kernel's memory is read by its symbols" "Linux version $RELEASE"
has 'a breakpoint is hit' 'Breakpoint 1, .*__schedule'
has 'instructions have names' '^=> 0x.*<__schedule'
finish
