# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The Debian userland of the kernel's own suite, an image that every run starts from afresh.

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

# The same for a kernel without disks, in the initramfs, without the many packages that it cannot run.
build_userland_archive() {
	local include

	still userland_key
	include=$(printf '%s\n' "${userland_present[@]}" | grep -vxE 'age|bpftrace|fzf|gdb|gron|linux-perf|python3-minimal' | paste -s -d,)
	bootstrap essential "$include" "$1/root.tar" --customize-hook="mkdir -p \"\$1/share\" \"\$1/usr/lib/stackmap\""
	mkdir -p "$1/root/userland"
	tar -C "$1/root/userland" --no-same-owner --exclude='./dev/*' -xf "$1/root.tar"
	python3 -B "$vm/host/cpio.py" "$1/root" > "$1/userland.cpio"
	rm -rf "$1/root" "$1/root.tar"
}

# userland NAME: sets $root to an image or, for a kernel of our own, $archive to what follows the initramfs.
# Neither for busybox, which is all in the initramfs.
userland() {
	root='' archive=''
	[[ $1 = debian ]] || return 0
	if [[ $arch != amd64 ]]; then
		[[ $listing ]] && return
		die "there is no Debian userland for $arch: its packages cannot be configured on this machine"
	fi
	if [[ $own ]]; then
		entry "userland-archive-$base" "$(key_of "$userland_key" "$(declare -f bootstrap build_userland_archive)")" \
			"Debian userland as an archive" 'about 1 minute' build_userland_archive
		archive=$entry/userland.cpio
		return
	fi
	entry "userland-$kernel" "$(key_of "${packages##*/}" "$userland_key" \
		"$(declare -f bootstrap build_userland)")" \
		"Debian userland for $release" 'about 2 minutes' build_userland
	root=$entry/root.ext4
}
