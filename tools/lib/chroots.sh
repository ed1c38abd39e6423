# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# The chroots in which packages are built and tested, kept in the cache.

# What builds them, for amd64 and arm64: of forky, whose rustc is new enough for the tool.
builder_packages=(
	apt bash build-essential ca-certificates cargo crossbuild-essential-arm64 debhelper dh-dkms libstd-rust-dev
	libstd-rust-dev:arm64 lintian qemu-user rustc
)

build_builder() {
	bootstrap minbase "$(IFS=,; echo "${builder_packages[*]}")" "$1"
	rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*
}

# builder: sets $chroot. Its key has the versions of forky's toolchain.
builder() {
	load_kernel deb14
	lookup
	setup_apt
	entry "builder-$suite" "$(key_of "$toolchain_key" "${builder_packages[*]}" \
		"$(declare -f bootstrap build_builder)")" "chroot of $suite to build packages in" \
		'about 2 minutes' build_builder
	chroot=$entry
}

# The packages of a machine to install them on: those that start a kernel, and none that the packages
# depend on.
machine_packages() {
	echo apt,bash,ca-certificates,initramfs-tools,kmod,linux-base
}

# headers RELEASE: the packages of its headers.
headers() {
	echo "linux-headers-$1"
	apt-cache depends "linux-headers-$1" | sed -n 's/^  Depends: \(linux-\(headers\|kbuild\|base\)-[0-9].*\)/\1/p'
}

# older: the newest kernel of an older series than $release, or nothing.
older() {
	apt-cache search --names-only "^linux-headers-[0-9.]+[+]deb[0-9]+-$flavour\$" |
		sed -n 's/^linux-headers-\([^ ]*\) .*/\1/p' | grep -v "^$(cut -d. -f1,2 <<<"$release")\." |
		sort -V | sed "/^$(cut -d. -f1,2 <<<"$release" | sed 's/\./\\./')/,\$d" | tail -n 1
}

# build_machine: a chroot with all of that, and in /debs/RELEASE the headers of kernels.
build_machine() {
	local kernel each wanted

	bootstrap minbase "$(machine_packages)" "$1"
	rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*
	for each in "$release" $before; do
		version=$(apt-cache show --no-all-versions "linux-headers-$each" | sed -n 's/^Version: //p')
		mapfile -t wanted < <(headers "$each")
		mkdir -p "$1/debs/$each"
		fetch "$1/debs/$each" "${wanted[@]}"
	done
}

# machine: sets $machine, $flavour, and $before to the kernel before the current one, or to nothing.
machine() {
	setup_apt
	flavour=${release#*+deb*-}
	before=$(older || true)
	entry "machine-$suite-$flavour" "$(key_of "$version" "$toolchain_key" "$before" "$(machine_packages)" \
		"$(declare -f bootstrap build_machine headers fetch)")" \
		"chroot of $suite to install packages in" 'about 4 minutes' build_machine
	machine=$entry
}
