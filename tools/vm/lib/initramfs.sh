# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The initramfs: busybox, the guest's init and the modules that a test may want.

# Names for modprobe, which adds their dependencies. Absent modules are left out.
initramfs_modules=(
	virtio_pci virtio_console virtio_blk virtio_net virtio_rng 9p 9pnet_virtio ext4 overlay fuse
	loop brd null_blk zram dummy veth tun
)

# build_busybox DIR: the busybox of another architecture, of the release that the chroot has.
build_busybox() {
	setup_apt
	mkdir "$1/deb"
	(cd "$1/deb" && apt-get -qq download "busybox-static:$arch")
	dpkg-deb -x "$1"/deb/*.deb "$1"
	rm -r "$1/deb"
	[[ -x $1/usr/bin/busybox ]] || mv "$1/bin" "$1/usr/"
}

# guest_busybox: sets $busybox to the one that the guest runs.
guest_busybox() {
	busybox=$chroot/bin/busybox
	[[ $arch = amd64 ]] && return
	entry "busybox-$suite-$arch" "$(key_of "$toolchain_key" "$(declare -f build_busybox)")" \
		"busybox of $suite for $arch" 'about 5 seconds' build_busybox
	busybox=$entry/usr/bin/busybox
}

build_initramfs() {
	local root=$1/root name file

	mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,etc,proc,sys,dev,run,tmp,root,lib/stackmap}
	chmod 1777 "$root/tmp"
	cp "$busybox" "$root/bin/busybox"
	ln "$root/bin/busybox" "$root/lib/stackmap/busybox"
	while read -r file; do
		[[ -e $root/$file ]] || ln -s /bin/busybox "$root/$file"
	done < <("$chroot/bin/busybox" --list-full)
	cp "$vm/guest/init" "$root/init"
	cp "$vm/guest/session" "$vm/guest/overlay" "$root/lib/stackmap/"
	chmod 755 "$root/init"
	cat > "$root/etc/passwd" <<-EOF
		root:x:0:0:root:/root:/bin/sh
		nobody:x:65534:65534:nobody:/tmp:/bin/sh
	EOF
	printf 'root:x:0:\ntty:x:5:\nnogroup:x:65534:\n' > "$root/etc/group"
	printf '127.0.0.1 localhost stackmap\n' > "$root/etc/hosts"

	mkdir -p "$root/lib/modules/$release"
	cp "$packages/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$release/"
	for name in "${initramfs_modules[@]}"; do
		in_chroot modprobe -q -d "$packages" -S "$release" --show-depends "$name" || true
	done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u > "$1/list"
	while read -r file; do
		name=$root/lib/modules/$release/${file#*"/modules/$release/"}
		mkdir -p "${name%/*}"
		case $file in
		*.xz) xz -dc "$file" > "${name%.xz}" ;;
		*.zst) zstd -qdc "$file" > "${name%.zst}" ;;
		*) cp "$file" "$name" ;;
		esac
	done < "$1/list"
	in_chroot depmod -b "$root" "$release"
	python3 -B "$vm/host/cpio.py" "$root" > "$1/initramfs.cpio"
	rm -rf "$root" "$1/list"
}

# initramfs: sets $initramfs and $busybox.
initramfs() {
	guest_busybox
	entry "initramfs-$kernel" "$(key_of "${packages##*/}" "$toolchain_key" "$vm/guest/init" \
		"$vm/guest/session" "$vm/guest/overlay" "$vm/host/cpio.py" "${initramfs_modules[*]}" \
		"$(declare -f build_initramfs)")" \
		"initramfs for $release" 'about 5 seconds' build_initramfs
	initramfs=$entry/initramfs.cpio
}
