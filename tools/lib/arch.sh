# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# What depends on the architecture of a kernel: compilers, make's arguments and QEMU.

# load_arch: for $arch and $gcc, sets the compilers that the toolchain chroot needs, the arguments that make
# wants for modules, unless the kernel has its own, the make target of the image, and the QEMU that runs the guest.
# The chroot is amd64.
load_arch() {
	case $arch in
	amd64)
		triplet=x86_64-linux-gnu
		compiler_packages=("$gcc")
		[[ ${#make_arguments[@]} -gt 0 ]] || make_arguments=(CC="$triplet-$gcc")
		kernel_image=arch/x86/boot/bzImage qemu=qemu-system-x86_64 qemu_package=qemu-system-x86
		;;
	arm64)
		triplet=aarch64-linux-gnu
		# The vDSO for 32-bit programs is in the configuration, and needs a compiler of its own. The C++
		# library is for programs of the tests.
		compiler_packages=(
			"$gcc-$triplet" "binutils-$triplet"
			"gcc-$triplet" gcc-arm-linux-gnueabihf libc6-dev-arm64-cross "libstdc++-${gcc#gcc-}-dev-arm64-cross"
		)
		[[ ${#make_arguments[@]} -gt 0 ]] || make_arguments=(
			ARCH=arm64 CROSS_COMPILE="$triplet-" CROSS_COMPILE_COMPAT=arm-linux-gnueabihf-
			CC="$triplet-$gcc"
		)
		kernel_image=arch/arm64/boot/Image qemu=qemu-system-aarch64 qemu_package=qemu-system-arm
		;;
	*)
		die "no architecture '$arch'"
		;;
	esac
}
