#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What "make" says of build trees that cannot build the module, that it builds with one that can, and
# what "make install" installs. Argument: the command-line tool.

set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source-path=SCRIPTDIR/..
. selftests/tap.sh
tool=$1

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

check() {
	RUSTC="$tree/rustc" BINDGEN="$tree/bindgen" tools/check-kdir "${kdir:-$tree}" 2>&1
}

# refused DESCRIPTION TEXT - the tree is refused, with TEXT.
refused() {
	local output
	if output=$(check); then
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
refused 'a tree without a version' 'is not configured'
release=$tree/include/config/kernel.release
echo unknown >"$release"
refused 'a version that is none' 'has no version of a kernel: unknown'
for old in 6.12.57+deb13-amd64 7.1.0 7.1-rc3 7.0; do
	echo "$old" >"$release"
	is "Linux $old: one sentence says what is needed" "$(check)" \
		"stackmap: the module needs Linux 7.2 or newer (Debian: trixie-backports, forky), and $tree is of $old"
done
echo 7.2.12+deb14-amd64 >"$release"
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
printf '#!/bin/sh\n' >"$tree/bindgen"
chmod +x "$tree/bindgen"
for known in 7.2.12+deb14-amd64 7.2.0-rc1 7.3.4+deb13-amd64 7.3; do
	echo "$known" >"$release"
	is "Linux $known: nothing is said" "$(check; echo "status $?")" 'status 0'
done
for new in 7.4.0-rc1 7.10.2 8.0; do
	echo "$new" >"$release"
	is "Linux $new: one sentence, and on it goes" "$(check; echo "status $?")" \
		"stackmap: $tree is of $new, and the module is tested up to Linux 7.3: it may not build, or not load"$'\nstatus 0'
done
is 'the oldest kernel is that of DKMS' "$(sed -n 's/^BUILD_EXCLUSIVE_KERNEL_MIN="\(.*\)"/\1/p' dkms.conf)" \
	"$(sed -n 's/^tested=(\([0-9.]*\).*/\1/p' tools/check-kdir)"

# The real thing, in a copy of the sources: there "make" leaves its objects beside them.
copy=$tree/copy
mkdir "$copy"
sources=(Kbuild Makefile include packaging src tools/check-kdir)
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

# succeeds DESCRIPTION COMMAND...
succeeds() {
	local what=$1 log
	shift
	if log=$("$@" 2>&1); then
		result ok "$what"
	else
		result 'not ok' "$what"
		tail -n 20 <<<"$log" | sed 's/^/# /'
	fi
}

root=$tree/root
release=$(cat "$real/include/config/kernel.release")
succeeds 'make install-module takes KDIR and DESTDIR' tools/vm/in-chroot --bind "$tree" \
	make -C "$copy" KDIR="$real" CC="$gcc" DESTDIR="$root" install-module
# Compressed as the kernel's own.
succeeds 'and installs the module for that kernel' compgen -G "$root/lib/modules/$release/updates/stackmap.ko*"
succeeds 'make install-tool takes DESTDIR and PREFIX' make -C "$copy" DESTDIR="$root" PREFIX=/usr TOOL="$tool" install-tool
for file in bin/stackmap share/man/man1/stackmap.1 share/man/man1/stackmap-record.1 share/man/man4/stackmap.4 \
	share/bash-completion/completions/stackmap share/zsh/site-functions/_stackmap \
	share/fish/vendor_completions.d/stackmap.fish share/doc/stackmap/examples/modprobe.conf; do
	succeeds "and installs $file" test -s "$root/usr/$file"
done
succeeds 'make uninstall' make -C "$copy" DESTDIR="$root" PREFIX=/usr KDIR="$real" uninstall
# What the kernel's build adds for depmod is not the module's.
left=$(find "$root" -type f ! -name 'modules.*')
succeeds "leaves nothing${left:+: $left}" test -z "$left"
make -s -C "$copy" clean
if left=$( (cd "$copy" && find . -type f | sort) | diff "$tree/before" -); then
	result ok 'make clean leaves the sources only'
else
	result 'not ok' 'make clean leaves the sources only'
	echo "# $(tr '\n' ' ' <<<"$left")"
fi
finish
