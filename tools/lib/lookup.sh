# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Which versions: what the suites of a kernel offer now, asked once and remembered.

# shellcheck source-path=SCRIPTDIR
. "$lib/arch.sh"

# The packages of the toolchain chroot, besides the kernel's compiler and what its configuration needs.
toolchain_packages=(
	apt bash bc bindgen binutils bison busybox-static clang cpio diffutils e2fsprogs flex gcc
	kmod libarchive13t64 libc6-dev libelf-dev libssl-dev lld llvm make openssl pahole patch perl
	python3 rsync rust-clippy rust-src rustc rustfmt xz-utils zstd
)

debian_userland_packages=(
	age bash bpftrace coreutils fzf gawk gdb gron iputils-ping kmod linux-perf mount procps python3-minimal
	strace trace-cmd util-linux
)

kernel_names() {
	local file

	for file in "$lib"/kernels/*; do
		[[ $file = *.config ]] || basename "$file"
	done
}

# load_kernel NAME: reads its definition. $base is the kernel whose versions it goes by; $own says whether
# it is one of our own. Modules are built with make_arguments.
load_kernel() {
	kernel=$1 base=$1 own='' built_as='' newer_than='' oldest='' patience=1 memory=1024 cmdline='' arch=amd64
	make_arguments=() configs=() except=() more_packages=()
	[[ $kernel != */* && $kernel != *.config && -f $lib/kernels/$kernel ]] ||
		die "no kernel '$kernel'; there are: $(kernel_names | tr '\n' ' ')"
	# shellcheck source=/dev/null
	. "$lib/kernels/$kernel"
	[[ ${#configs[@]} = 0 ]] || own=yes
	load_arch
	compiler_packages+=("${more_packages[@]}")
}

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The apt of this machine, with a state of its own: its lists, keys and settings stay untouched. What the
# host runs is amd64, also where the kernel is not.
setup_apt() {
	local archive foreign=''

	[[ $arch = amd64 ]] || foreign="\"$arch\";"
	apt=$cache/apt/$base
	export APT_CONFIG=$apt/apt.conf
	need apt-get apt "$keyring" debian-archive-keyring
	mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$apt"/etc/{apt.conf,preferences}.d
	touch "$apt/status"
	for archive in $archives; do
		echo "deb [signed-by=$keyring] $mirror $archive main"
	done > "$apt/sources.list"
	cat > "$APT_CONFIG" <<-EOF
		Dir::State "$apt";
		Dir::State::status "$apt/status";
		Dir::Cache "$apt/cache";
		Dir::Etc "$apt/etc";
		Dir::Etc::sourcelist "$apt/sources.list";
		Acquire::Languages "none";
		APT::Architecture "amd64";
		APT::Architectures { "amd64"; $foreign };
		APT::Get::AllowUnauthenticated "false";
		APT::Install-Recommends "false";
		APT::Sandbox::User "root";
	EOF
	[[ -f $apt/updated ]] || update_apt
	[[ ! $oldest ]] || image=$(oldest_image)
}

# oldest_image: the oldest kernel that $kernel_archive still has, with its headers.
oldest_image() {
	apt-cache search --names-only "^linux-headers-[0-9.]+[+]deb[0-9]+-${image##*-}\$" | cut -d' ' -f1 |
		xargs apt-cache madison | sed -n "s|^ *linux-headers-\([^ ]*\) .* $kernel_archive/.*|linux-image-\1|p" | sort -V |
		sed -n 1p
}

# An expired Release file is taken, with a warning: mirrors can lag. Its signature is still checked. A list that cannot be
# fetched is an error, and no warning.
update_apt() {
	local log=$cache/logs/apt-update-$base.log

	rm -f "$apt/expired" "$apt/updated"
	if apt-get update --error-on=any > "$log" 2>&1 && ! grep -q '^E:' "$log"; then
		touch "$apt/updated"
		return
	fi
	if grep -q 'is expired' "$log"; then
		say "warning: $(grep -m1 -o 'Release file for.*is expired[^.]*' "$log"); used anyway"
		touch "$apt/expired"
		if apt-get -o Acquire::Check-Valid-Until=false update --error-on=any > "$log" 2>&1; then
			touch "$apt/updated"
			return
		fi
	fi
	cat "$log" >&"$user"
	die "the package lists of $archives cannot be fetched from $mirror"
}

# closure PACKAGE...: every package, with its version, that installing these would bring.
closure() {
	apt-get -s -qq install "$@" | sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1=\2/p' | sort
}

# chosen_file: where the choice for $kernel is remembered.
chosen_file() {
	echo "$cache/chosen/$base-$(key_of "$lib/kernels/$base" "$mirror" \
		"${toolchain_packages[*]} ${compiler_packages[*]} ${debian_userland_packages[*]} $(declare -f choose)")"
}

# is_newer FILE: ends, and says so, where the kernel that FILE names is not newer than that of $newer_than.
is_newer() {
	local found other

	found=$(sed -n 's/^version=\([^-]*\).*/\1/p' "$1")
	other=$(load_kernel "$newer_than" && lookup "" && echo "${version%%-*}")
	dpkg --compare-versions "$found" gt "$other" ||
		die "no kernel '$kernel': $kernel_archive has Linux $found, $newer_than is $other already"
}

# lookup [refresh]: sets $release, $version, $source_package, and the keys of the two roots.
lookup() {
	local file start=$SECONDS lock

	file=$(chosen_file)
	mkdir -p "$cache/chosen"
	ours "$file"
	if [[ -f $file && ${1:-} != refresh ]]; then
		# shellcheck source=/dev/null
		. "$file"
		return
	fi
	exec {lock}> "$cache/.lock/chosen-$base"
	flock "$lock"
	if [[ ! -f $file || ${1:-} = refresh ]]; then
		rm -f "$cache/apt/$base/updated"
		setup_apt
		choose > "$file.new"
		[[ ! $newer_than ]] || is_newer "$file.new"
		mv "$file.new" "$file"
	fi
	exec {lock}>&-
	# shellcheck source=/dev/null
	. "$file"
	say "$(printf '[%4d s] %s is Linux %s, package version %s, with %s' \
		$((SECONDS - start)) "$base" "$release" "$version" "$compilers")"
}

choose() {
	local release version wanted package closure present=() lacking=()

	release=$(apt-cache show --no-all-versions -t "$kernel_archive" "$image" |
		grep -o 'linux-image-[0-9][^ ,]*' | head -n1)
	release=${release#linux-image-}
	version=$(apt-cache show --no-all-versions -t "$kernel_archive" "linux-image-$release" |
		sed -n 's/^Version: //p')
	[[ -n $release && -n $version ]] || die "$kernel_archive has no $image"
	echo "release=$release"
	echo "version=$version"
	echo "source_package=linux-source-$(cut -d. -f1,2 <<< "$release")"
	closure=$(closure "${toolchain_packages[@]}" "${compiler_packages[@]}")
	echo "compilers='$(grep -E "^(rustc|bindgen|${compiler_packages[0]})=" <<< "$closure" | xargs | tr '=' ' ')'"
	echo "toolchain_key=$(sha256sum <<< "$closure" | cut -c1-12)"

	wanted=$(apt-cache policy "${debian_userland_packages[@]}" |
		sed -n '/^[a-z]/{s/:$//;h}; /^  Candidate: [0-9]/{g;p}')
	for package in "${debian_userland_packages[@]}"; do
		if grep -qxF "$package" <<< "$wanted"; then
			present+=("$package")
		else
			lacking+=("$package")
		fi
	done
	echo "userland_present=(${present[*]})"
	echo "userland_lacking=(${lacking[*]})"
	echo "userland_key=$(closure "${present[@]}" | sha256sum | cut -c1-12)"
}

# still NAME: ends with $moved_on where the archive has, so that NAME is not what it was when chosen.
still() {
	setup_apt
	[[ $(find "$apt/updated" -mmin +360) ]] || return 0
	update_apt
	[[ $(choose | sed -n "s/^$1=//p") = "${!1}" ]] || {
		echo "the packages that $archives offers are not those chosen earlier"
		exit "$moved_on"
	}
}
