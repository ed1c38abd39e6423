# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The kernel: its packages unpacked, its source, and the tree that modules are built against.

# fetch DIR PACKAGE...: downloads the packages, in the versions that were looked up, into DIR.
fetch() {
	local dir=$1 package wanted=()

	shift
	for package; do
		wanted+=("$package=$version")
	done
	if ! (cd "$dir" && apt-get -qq download "${wanted[@]}"); then
		echo "$version of ${*} is not available any more"
		exit "$moved_on"
	fi
}

build_packages() {
	local deb name wanted=()

	setup_apt
	for name in image binary modules base headers; do
		[[ -z $(apt-cache show "linux-$name-$release=$version" 2> /dev/null) ]] ||
			wanted+=("linux-$name-$release")
	done
	mapfile -t -O "${#wanted[@]}" wanted < <(
		apt-cache show "linux-headers-$release=$version" | sed -n 's/^Depends: //p' |
			grep -oE 'linux-(headers|kbuild)-[^ ,]*'
	)
	mkdir "$1/debs"
	fetch "$1/debs" "${wanted[@]}"
	for deb in "$1"/debs/*.deb; do
		dpkg-deb -x "$deb" "$1"
	done
	rm -r "$1/debs"
	[[ -d $1/lib/modules ]] || ln -s usr/lib "$1/lib"
	# The headers name their own place.
	sed -i "s|/usr/src/|$cache/kernel-$release-$packages_key/usr/src/|" "$1/usr/src/linux-headers-$release/Makefile"
	# Before Linux 7 the image is in /boot.
	[[ -f $1/lib/modules/$release/vmlinuz ]] || mv "$1/boot/vmlinuz-$release" "$1/lib/modules/$release/vmlinuz"
	in_chroot depmod -b "$1" "$release"
	[[ -f $1/lib/modules/$release/vmlinuz && -f $1/usr/src/linux-headers-$release/.config ]]
}

build_source() {
	setup_apt
	mkdir "$1/deb"
	fetch "$1/deb" "$source_package"
	dpkg-deb -x "$1"/deb/*.deb "$1/deb"
	xz -T0 -dc "$1/deb/usr/src/$source_package.tar.xz" | tar -C "$1" --strip-components=1 -xf -
	rm -r "$1/deb"
}

# build_tree: the kernel's headers with its Rust crates, which the headers package does not have.
build_tree() {
	local said

	said=$(in_chroot "$checkout/tools/rust-tree" "$source_tree" "$packages/usr/src/linux-headers-$release" \
		"$1" "${make_arguments[@]}" | tee >(cat >&2) | tail -n 1)
	say "         $said"
	# What the build wrote of its own path is the path it will be renamed to.
	grep -rlIF "$1" "$1" --include=Makefile --include='*.cmd' --include='*.json' |
		xargs -r sed -i "s|$1|$cache/tree-$kernel-$tree_key|g"
}

# kernel_tree: sets $packages, $source_tree and $tree, and $chroot on the way.
kernel_tree() {
	toolchain
	entry "source" "$version" "kernel source $version" 'about 1 minute' build_source
	source_tree=$entry
	if [[ $own ]]; then
		own_tree
		return
	fi
	packages_key=$(key_of "$version" "$(declare -f build_packages)")
	entry "kernel-$release" "$packages_key" "kernel packages $release" 'about 30 seconds' build_packages
	packages=$entry
	tree=$packages/usr/src/linux-headers-$release tree_key=$packages_key
}

build_image() {
	local packed=$packages/lib/modules/$release/vmlinuz sectors start size

	# See Documentation/arch/x86/boot.rst of the kernel: setup_sects, payload_offset and payload_length.
	sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$packed")
	read -r start size < <(od -An -tu4 -j $((0x248)) -N 8 "$packed")
	# The last four bytes are the unpacked size.
	dd if="$packed" iflag=skip_bytes,count_bytes skip=$(((sectors + 1) * 512 + start)) count=$((size - 4)) bs=1M |
		zstd -dc > "$1/vmlinux"
}

# image: sets $image to the kernel's ELF file.
image() {
	need zstd zstd
	entry "image-$release" "$(key_of "$packages_key" "$(declare -f build_image)")" "kernel image $release" '1 second' build_image
	image=$entry/vmlinux
}

# rust_tree: has $tree be one for RUST=kernel.
rust_tree() {
	[[ ! $own ]] || return 0
	tree_key=$(key_of "$version" "$toolchain_key" "$lib/kernels/$kernel" "$checkout/tools/rust-tree" \
		"$(declare -f build_tree)")
	entry "tree-$kernel" "$tree_key" "kernel tree $release with its Rust crates" \
		'about 3 minutes' build_tree
	tree=$entry
}
