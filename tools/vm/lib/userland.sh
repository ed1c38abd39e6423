# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The Debian userland: an image of the kernel's own suite that every run starts from afresh.

build_userland() {
	local include size

	still userland_key
	include=$(IFS=,; echo "${userland_present[*]}")
	bootstrap essential "$include" "$1/root.tar" \
		--customize-hook="mkdir -p \"\$1/share\" \"\$1/usr/lib/stackmap\" \"\$1/usr/lib/modules\"" \
		--customize-hook="copy-in $packages/lib/modules/$release /usr/lib/modules"
	size=$(($(stat -c %s "$1/root.tar") / 1048576 + 1024))
	in_chroot mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0 -L stackmap \
		-d "$1/root.tar" "$1/root.ext4" "${size}M"
	rm -f "$1/root.tar"
	[[ -z ${userland_lacking[*]} ]] || say "         $suite lacks ${userland_lacking[*]}"
}

# The same as files, for a kernel without disks.
build_userland_files() {
	mkdir "$1/root"
	in_chroot debugfs -R "rdump / $1/root" "$image"
	rm -rf "$1/root/usr/lib/modules" "$1/root/lost+found"
}

# userland NAME: sets $root, to an image, or to a directory for a kernel of our own, which has no disks. To
# nothing for busybox, which is all in the initramfs.
userland() {
	local image

	root=''
	[[ $1 = debian ]] || return 0
	if [[ $base != "$kernel" ]]; then
		# Where only listed, entries come before it.
		image=$({ load_kernel "$base" && lookup && kernel_tree && userland debian && echo "$root"; } | tail -n 1)
		entry "userland-files-$base" "$(key_of "${image%/*}" "$(declare -f build_userland_files)")" \
			"Debian userland as files" 'about 20 seconds' build_userland_files
		root=$entry/root
		return
	fi
	entry "userland-$kernel" "$(key_of "${packages##*/}" "$userland_key" \
		"$(declare -f bootstrap build_userland)")" \
		"Debian userland for $release" 'about 2 minutes' build_userland
	root=$entry/root.ext4
}
