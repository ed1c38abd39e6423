#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What "make" says of build trees that cannot build the module, and that it builds with one that can.

set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

number=0
failed=0
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

result() {
	number=$((number + 1))
	[[ $1 = ok ]] || failed=1
	echo "$1 $number - $2"
}

# refused DESCRIPTION TEXT - the tree is refused, with TEXT.
refused() {
	local output
	if output=$(RUSTC="$tree/rustc" BINDGEN="$tree/bindgen" tools/check-kdir "${kdir:-$tree}" 2>&1); then
		result 'not ok' "$1: taken"
	elif [[ $output = *"$2"* ]]; then
		result ok "$1"
	else
		result 'not ok' "$1"
		echo "# got: $output"
	fi
}

# config OPTION=VALUE... - adds to the tree's configuration.
config() {
	printf '%s\n' "$@" >>"$tree/include/config/auto.conf"
}

kdir=$tree/none refused 'no build tree' 'there is no kernel build tree'
refused 'a tree that is not configured' 'is not configured'
mkdir -p "$tree/include/config" "$tree/rust"
config CONFIG_MODULES=y
refused 'a kernel without Rust' 'has no Rust (CONFIG_RUST is off)'
config CONFIG_RUST=y
refused 'a kernel without ftrace' 'CONFIG_TRACING is off'
config CONFIG_TRACING=y
refused 'a kernel without stacks' 'CONFIG_STACKTRACE is off'
config CONFIG_STACKTRACE=y
refused 'a kernel without kprobes' 'CONFIG_KPROBES is off'
config CONFIG_KPROBES=y
refused 'headers without Rust metadata' 'has no Rust metadata (rust/libkernel.rmeta)'
touch "$tree/rust/libkernel.rmeta"
config 'CONFIG_RUSTC_VERSION_TEXT="rustc 1.85.1"'
refused 'no rustc' 'rustc is missing'
printf '#!/bin/sh\necho rustc 1.86.0\n' >"$tree/rustc"
chmod +x "$tree/rustc"
refused 'another rustc' 'rustc is another one than the kernel was built with'
printf '#!/bin/sh\necho rustc 1.85.1\n' >"$tree/rustc"
refused 'no bindgen' 'bindgen is missing'

# The real thing, in a copy of the sources: there "make" leaves its objects beside them.
copy=$tree/copy
mkdir "$copy"
sources=(Kbuild Makefile include src tools/check-kdir)
tar -c "${sources[@]}" | tar -x -C "$copy"
(cd "$copy" && find . -type f | sort) >"$tree/before"
kernel=$(tools/vm/setup --env)
real=$(sed -n 's/^TREE=//p' <<<"$kernel")
gcc=$(sed -n 's/^GCC=//p' <<<"$kernel")
if log=$(tools/vm/in-chroot --bind "$tree" make -C "$copy" KDIR="$real" CC="$gcc" 2>&1) && [[ -s $copy/stackmap.ko ]]; then
	result ok 'a tree with all of it: make builds stackmap.ko'
else
	result 'not ok' 'a tree with all of it: make builds stackmap.ko'
	tail -n 20 <<<"$log" | sed 's/^/# /'
fi
make -s -C "$copy" clean
if left=$( (cd "$copy" && find . -type f | sort) | diff "$tree/before" -); then
	result ok 'make clean leaves the sources only'
else
	result 'not ok' 'make clean leaves the sources only'
	echo "# $(tr '\n' ' ' <<<"$left")"
fi
echo "1..$number"
exit $failed
