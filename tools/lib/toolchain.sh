# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The toolchain chroot of a kernel's suite: its compilers build the module, as on a user's machine with that kernel.

# bootstrap VARIANT PACKAGES TARGET [OPTION...]: mmdebstrap of $suite with the settings found by
# the look-up. TARGET is a directory or, ending in .tar, an archive. A package that is NAME:arm64 is of
# that architecture, the others are of amd64.
bootstrap() {
	local variant=$1 packages=$2 target=$3 archive lines=() options=() apart=() architectures=amd64

	shift 3
	need mmdebstrap mmdebstrap
	for archive in $archives; do
		lines+=("deb [signed-by=$keyring] $mirror $archive main")
	done
	[[ $packages != *:arm64* ]] || architectures+=,arm64
	[[ ! -f $apt/expired ]] || options+=(--aptopt='Acquire::Check-Valid-Until "false"')
	if [[ $(id -u) = 0 ]]; then
		# Its mounts disappear with its last process, even if it is killed.
		apart=(env TMPDIR="${target%/*}" unshare --mount --pid --fork --mount-proc --kill-child)
	else
		need newuidmap uidmap
	fi
	"${apart[@]}" env -u APT_CONFIG SOURCE_DATE_EPOCH=0 mmdebstrap --mode=auto --variant="$variant" \
		--architectures="$architectures" --aptopt='APT::Install-Recommends "false"' \
		--aptopt='APT::Sandbox::User "root"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--include="$packages" "${options[@]}" "$@" "$suite" "$target" "${lines[@]}"
}

build_toolchain() {
	local packages

	still toolchain_key
	packages=$(IFS=,; echo "${toolchain_packages[*]},${compiler_packages[*]}")
	if [[ $(id -u) = 0 ]]; then
		bootstrap minbase "$packages" "$1"
	else
		# Not root: the files are the user's own, which is enough to run what is in them.
		bootstrap minbase "$packages" "$1/root.tar"
		tar -C "$1" --no-same-owner --exclude='./dev/*' -xf "$1/root.tar"
		rm -f "$1/root.tar"
	fi
	rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*
}

# toolchain: sets $chroot.
toolchain() {
	entry "toolchain-$suite" "$toolchain_key" "toolchain chroot of $suite" 'about 2 minutes' \
		build_toolchain
	chroot=$entry
}

# in_chroot [-w DIR]... COMMAND...: runs a command in $chroot, which it sees read-only, with the
# checkout, the cache, the current directory and each DIR at their own paths.
in_chroot() {
	local binds=() dir path arguments=()

	need bwrap bubblewrap
	for dir in "$checkout" "$cache"; do
		binds+=(--bind "$dir" "$dir")
	done
	while [[ ${1:-} = -w ]]; do
		binds+=(--bind "$2" "$2")
		shift 2
	done
	case $PWD in
	/ | /bin* | /dev* | /etc* | /lib* | /proc* | /sbin* | /sys* | /usr* | /var)
		binds+=(--chdir "$checkout")
		;;
	*)
		binds+=(--bind "$PWD" "$PWD" --chdir "$PWD")
		;;
	esac
	for path in usr etc var opt bin sbin lib lib32 lib64; do
		if [[ -L $chroot/$path ]]; then
			arguments+=(--symlink "$(readlink "$chroot/$path")" "/$path")
		elif [[ -d $chroot/$path ]]; then
			arguments+=(--ro-bind "$chroot/$path" "/$path")
		fi
	done
	arguments+=(--proc /proc --dev /dev --ro-bind /sys /sys --tmpfs /tmp --tmpfs /run --dir /root
		--tmpfs /var/tmp "${binds[@]}" --unshare-pid --unshare-uts --die-with-parent
		--hostname "$suite" --clearenv --setenv HOME /root --setenv LC_ALL C.UTF-8
		--setenv PATH /usr/sbin:/usr/bin:/sbin:/bin)
	for path in TERM KBUILD_BUILD_TIMESTAMP STACKMAP_CACHE; do
		[[ -z ${!path:-} ]] || arguments+=(--setenv "$path" "${!path}")
	done
	[[ ! -f /etc/resolv.conf ]] || arguments+=(--ro-bind /etc/resolv.conf /etc/resolv.conf)
	bwrap "${arguments[@]}" -- "$@"
}
