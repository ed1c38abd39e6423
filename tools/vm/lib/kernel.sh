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
		echo "$version of ${*} cannot be had any more"
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

# build_tree: the kernel's configuration, generated headers, build tools and Rust crates. The
# headers package has no Rust metadata, so the crates are built again, by the same compiler from
# the same source; verify_tree is what says that they are the same.
build_tree() {
	local headers=$packages/usr/src/linux-headers-$release

	cp "$headers/.config" "$1/.config"
	in_chroot make -C "$source_tree" O="$1" KERNELRELEASE="$release" CC="x86_64-linux-gnu-$gcc" \
		-j"$(nproc)" olddefconfig modules_prepare rust/
	cp "$headers/Module.symvers" "$1/Module.symvers"
	# The kernel's BTF, in an ELF file that holds nothing else, for the BTF of the modules.
	[[ ! -f $headers/vmlinux ]] || cp "$headers/vmlinux" "$1/vmlinux"
	verify_tree "$1"
	# What the build wrote of its own path is the path it will be renamed to.
	grep -rlIF "$1" "$1" --include=Makefile --include='*.cmd' --include='*.json' |
		xargs -r sed -i "s|$1|$cache/tree-$kernel-$tree_key|g"
}

# verify_tree DIR: stops unless DIR builds what the running kernel will take.
verify_tree() {
	local dir=$1 headers=$packages/usr/src/linux-headers-$release symbols missing

	diff <(grep -v CC_VERSION_TEXT "$headers/.config" | grep -E '^(CONFIG_|# CONFIG_)' | sort) \
		<(grep -v CC_VERSION_TEXT "$dir/.config" | grep -E '^(CONFIG_|# CONFIG_)' | sort) || {
		echo "the configuration of $release comes out different in this toolchain (above)"
		return 1
	}
	[[ $(rustc_text "$dir/.config") = "$(in_chroot rustc --version)" ]] || {
		echo "built with '$(rustc_text "$dir/.config")', found '$(in_chroot rustc --version)'"
		return 1
	}
	[[ $(cat "$dir/include/config/kernel.release") = "$release" ]] || {
		echo "the tree says it is $(cat "$dir/include/config/kernel.release"), not $release"
		return 1
	}
	symbols=$(sed -n 's/^EXPORT_SYMBOL_RUST_GPL(\(_R.*\));$/\1/p' "$dir"/rust/exports_*_generated.h |
		sort -u)
	missing=$(comm -23 <(echo "$symbols") <(cut -f2 "$dir/Module.symvers" | sort -u))
	[[ -n $symbols && -z $missing ]] || {
		echo "of $(wc -l <<< "$symbols") Rust symbols the kernel lacks these:"
		echo "$missing"
		return 1
	}
	say "         $(wc -l <<< "$symbols") Rust symbols rebuilt, each one exported by $release"
}

rustc_text() {
	sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"/\1/p' "$1"
}

# kernel_tree: sets $packages, $source_tree and $tree, and $chroot on the way.
kernel_tree() {
	toolchain
	entry "source" "$version" "kernel source $version" 'about 1 minute' build_source
	source_tree=$entry
	if [[ ${#configs[@]} -gt 0 ]]; then
		own_tree
		return
	fi
	entry "kernel-$release" "$(key_of "$version" "$(declare -f build_packages)")" \
		"kernel packages $release" 'about 30 seconds' build_packages
	packages=$entry
	tree_key=$(key_of "$version" "$toolchain_key" "$vm/kernels/$kernel" \
		"$(declare -f build_tree verify_tree)")
	entry "tree-$kernel" "$tree_key" "kernel tree $release with its Rust crates" \
		'about 3 minutes' build_tree
	tree=$entry
}
