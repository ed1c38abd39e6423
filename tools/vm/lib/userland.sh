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

# userland NAME: sets $root, to nothing for busybox, which is all in the initramfs. The modules in
# that of Debian are the base kernel's; a kernel of our own needs none.
userland() {
	root=''
	[[ $1 = debian ]] || return 0
	if [[ $base != "$kernel" ]]; then
		root=$(load_kernel "$base" && lookup && kernel_tree && userland debian && echo "$root")
		return
	fi
	entry "userland-$kernel" "$(key_of "${packages##*/}" "$userland_key" \
		"$(declare -f bootstrap build_userland)")" \
		"Debian userland for $release" 'about 2 minutes' build_userland
	root=$entry/root.ext4
}
