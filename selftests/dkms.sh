#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What DKMS is told when something is missing, for kernels that are made up here; that dkms.conf and the
# packages agree. "make package-test" builds for real kernels.

set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source-path=SCRIPTDIR/..
. selftests/tap.sh
prepare=$PWD/packaging/dkms/prepare

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# stub NAME SCRIPT - puts a command into the PATH.
stub() {
	printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
	chmod +x "$work/bin/$1"
}

# run - prepare, as DKMS runs it, but for whoever may be at the terminal: sets $output and $status.
run() {
	status=0
	output=$(cd "$work/build" && PATH=$work/bin setsid --wait env STACKMAP_SOURCES="$work/src" \
		bwrap --dev-bind / / --ro-bind "$work/os-release" "$(readlink -f /etc/os-release)" \
		"$prepare" "$kernel" "$headers" 2>&1) || status=$?
}

# says DESCRIPTION TEXT... - prepare stops with one paragraph, in which each TEXT is, and leaves nothing.
says() {
	local what=$1 text paragraph

	shift
	run
	paragraph=$(xargs <<<"${output//\'/}")
	for text; do
		[[ $paragraph = *"${text//\'/}"* ]] || { is "$what" "$paragraph" "... $text ..."; return; }
	done
	is "$what" "status $status, paragraphs: $(awk 'BEGIN { RS = "" } END { print NR }' <<<"$output"), left: $(ls "$work/build")" \
		'status 77, paragraphs: 1, left: '
}

# lacks DESCRIPTION TEXT - TEXT is not in the paragraph.
lacks() {
	run
	if [[ $output = *"$2"* ]]; then is "$1" "$output" "nothing of $2"; else result ok "$1"; fi
}

kernel=7.3.4+deb13-amd64
headers=$work/headers
wanted='rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)'
mkdir -p "$work"/{bin,src,build}
for tool in bash bwrap cat dirname env find fmt grep head ln readlink rm sed setsid sort stat tail tr; do
	ln -s "$(type -P $tool)" "$work/bin/$tool"
done
echo 'ID=debian' >"$work/os-release"
stub dpkg-query 'exit 1'

says 'no headers' "its headers are not at $headers." "Install linux-headers-$kernel, then run: dkms install -m stackmap"
mkdir -p "$headers/include/config" "$headers/rust"
printf '%s\n' 'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0"' \
	"CONFIG_RUSTC_VERSION_TEXT=\"$wanted\"" >"$headers/include/config/auto.conf"
for tool in x86_64-linux-gnu-gcc-14 bindgen bc bison flex pahole python3; do
	stub $tool 'exit 0'
done
stub rustc 'echo rustc 1.97.1'
says 'another rustc' "its Rust compiler $wanted"
# As apt says it, with a newer one from backports.
apt=(' rustc | 1.96.1+dfsg1-2~bpo13+1 | http://deb.debian.org/debian trixie-backports/main amd64 Packages'
	' rustc | 1.85.10+dfsg1-1 | http://deb.debian.org/debian trixie/main amd64 Packages'
	' rustc | 1.85.1+dfsg1-1+deb13u1 | http://deb.debian.org/debian trixie/main amd64 Packages')
stub apt-cache "[ \"\$*\" = 'madison rustc' ] && printf '%s\n' $(printf "'%s' " "${apt[@]}")"
says 'another rustc, and apt has the right one: its packages are named' \
	'Install rustc=1.85.1+dfsg1-1+deb13u1, libstd-rust-dev=1.85.1+dfsg1-1+deb13u1, rust-src=1.85.1+dfsg1-1+deb13u1,'
rm "$work/bin/apt-cache"
rm "$work/bin/rustc"
rm "$work/bin/x86_64-linux-gnu-gcc-14"
says 'no C compiler: its package' 'Install gcc-14, '
stub x86_64-linux-gnu-gcc-14 'exit 0'
stub rustc 'exit 127'
says 'no rustc' "its Rust compiler $wanted"
# As with Debian's and Ubuntu's packages of one version.
stub rustc-1.85 "[ \"\$1\" = --print ] && echo $work/sysroot || echo '$wanted'"
lacks 'one whose name has the version is taken' 'Rust compiler'
says 'no source of the core library' rust-src
mkdir -p "$work/sysroot/lib/rustlib/src/rust/library/core/src"
touch "$work/sysroot/lib/rustlib/src/rust/library/core/src/lib.rs"
lacks 'it is found where rustc says' 'rust-src'
rm -r "$work/sysroot/lib/rustlib/src/rust"
for each in 1.96.1 1.85.1; do
	mkdir -p "$work/rustc-$each/library/core/src"
	touch "$work/rustc-$each/library/core/src/lib.rs"
done
ln -s "$work/rustc-1.96.1" "$work/sysroot/lib/rustlib/src/rust"
says 'the source of another core library' 'rust-src is there in version 1.96.1, rustc in version 1.85.1.' 'rust-src'
stub apt-cache "[ \"\$*\" = 'madison rust-src' ] && echo ' rust-src | 1.85.1+dfsg1-1+deb13u1 | http://x trixie/main'"
says 'the source of another core library, and apt has the right one' 'rust-src=1.85.1+dfsg1-1+deb13u1, then run'
rm "$work/bin/apt-cache"
ln -sfn "$work/rustc-1.85.1" "$work/sysroot/lib/rustlib/src/rust"
lacks 'that of the same one is taken' 'rust-src'
says 'no linux-source' 'its headers lack the Rust metadata, which can be made from its source.' 'linux-source-7.3'
# shellcheck disable=SC2016
stub dpkg-query 'case $4 in linux-headers-7.3.4+deb13-amd64) echo "ii  7.3.4-1~bpo13+1" ;; *) echo "un " ;; esac'
says 'no linux-source, and what version it must be' 'linux-source-7.3=7.3.4-1~bpo13+1' \
	"then run: dkms install -m stackmap -v $(sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' dkms.conf) -k $kernel"
touch "$work/src/linux-source-7.3.tar.xz"
# shellcheck disable=SC2016
stub dpkg-query 'case $4 in linux-headers-7.3.4+deb13-amd64) echo "iF  7.3.4-1~bpo13+1" ;; *) echo "ii  7.3.9-1" ;; esac'
says 'linux-source of another version, while the headers are being installed' 'linux-source-7.3 is there in version 7.3.9-1, the kernel is 7.3.4-1~bpo13+1.' \
	'Install linux-source-7.3=7.3.4-1~bpo13+1'
echo 'ID=ubuntu' >"$work/os-release"
says "Ubuntu's own package of the metadata" "Install linux-lib-rust-$kernel"
touch "$headers/rust/libkernel.rmeta"
run
is 'headers with the metadata are taken as they are' "$status $(readlink "$work/build/kernel") $(xargs <"$work/build/arguments")" \
	"0 $headers CC=x86_64-linux-gnu-gcc-14 RUSTC=rustc-1.85"
rm "$work/bin/bindgen" "$work"/build/*
says 'no bindgen' 'not all of its compilers are there.' 'Install bindgen'

# rust-tree, which makes the metadata, refuses before it builds.
refused() {
	local text
	if text=$(PATH="$work/bin:$PATH" tools/rust-tree "$work/linux" "$headers" "$work/build" RUSTC=rustc-1.85 2>&1); then
		is "$1" taken "$2"
	elif [[ $text = *"$2"* ]]; then
		result ok "$1"
	else
		is "$1" "$text" "$2"
	fi
}
mkdir "$work/linux"
echo $kernel >"$headers/include/config/kernel.release"
cp "$headers/include/config/auto.conf" "$headers/.config"
printf 'kernelversion:\n\t@echo 7.3.40\n' >"$work/linux/Makefile"
refused 'the source of another kernel' 'the source is that of 7.3.40, the kernel is 7.3.4+deb13-amd64'
echo 'CONFIG_RUST=n' >"$headers/.config"
refused 'a kernel without Rust' 'has no Rust'

version=$(sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' dkms.conf)
is "the tool has dkms.conf's version" "$(sed -n 's/^version = "\(.*\)"/\1/p' tools/stackmap/Cargo.toml)" "$version"
is 'so has the package' "$(sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog)" "$version"
finish
