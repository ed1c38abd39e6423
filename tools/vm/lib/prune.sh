# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Removes cache entries that no kernel uses by its present definition and versions.

# entries: the directories that the kernels use, one a line.
entries() {
	local listing=yes

	for kernel in $(kernel_names); do
		load_kernel "$kernel"
		[[ -f $(chosen_file) ]] || continue
		lookup
		kernel_tree
		initramfs
		[[ $own || $arch != amd64 ]] || image
		[[ $own || $arch != amd64 ]] || debug_info
		(
			userland debian
			[[ $base != "$kernel" || $arch != amd64 ]] || machine
		)
		echo "$cache/module/$kernel-$tree_key"
		rust_tree
		echo "$cache/module/$kernel-$tree_key"
		chosen_file
	done
	builder
}

prune() {
	local used path

	used=$(entries)
	for path in "$cache"/{target,toolchain,kernel,image,source,tree,busybox,initramfs,userland,builder,machine,drgn,vmlinux}-* \
		"$cache"/module/* "$cache"/chosen/*; do
		if [[ -e $path ]] && ! grep -qxF "$path" <<< "$used"; then
			say "removing ${path#"$cache/"}"
			rm -rf --one-file-system "$path"
		fi
	done
}
