#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What DKMS is told when something is missing, for kernels that are made up here; that dkms.conf and the
# packages agree. "make package-test" builds for real kernels.

set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source-path=SCRIPTDIR/..
. selftests/tap.sh
prepare=$PWD/packaging/dkms/prepare

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# stub NAME SCRIPT - puts a command into the PATH.
stub() {
	printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
	chmod +x "$work/bin/$1"
}

# run - prepare, as DKMS runs it, but for whoever may be at the terminal: sets $output and $status.
run() {
	status=0
	output=$(cd "$work/build" && PATH=$work/bin setsid --wait env STACKMAP_SOURCES="$work/src" \
		bwrap --dev-bind / / --ro-bind "$work/os-release" "$(readlink -f /etc/os-release)" \
		"$prepare" "$kernel" "$headers" 2>&1) || status=$?
}

# says DESCRIPTION TEXT... - prepare stops with one paragraph, in which each TEXT is, and leaves nothing.
says() {
	local what=$1 text paragraph

	shift
	run
	paragraph=$(xargs <<<"${output//\'/}")
	for text; do
		[[ $paragraph = *"${text//\'/}"* ]] || { is "$what" "$paragraph" "... $text ..."; return; }
	done
	is "$what" "status $status, paragraphs: $(awk 'BEGIN { RS = "" } END { print NR }' <<<"$output"), left: $(ls "$work/build")" \
		'status 77, paragraphs: 1, left: '
}

# lacks DESCRIPTION TEXT - TEXT is not in the paragraph.
lacks() {
	run
	if [[ $output = *"$2"* ]]; then is "$1" "$output" "nothing of $2"; else result ok "$1"; fi
}

kernel=7.3.4+deb13-amd64
headers=$work/headers
wanted='rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)'
mkdir -p "$work"/{bin,src,build}
for tool in bash bwrap cat dirname env find fmt grep head ln readlink rm sed setsid sort stat tail tr; do
	ln -s "$(type -P $tool)" "$work/bin/$tool"
done
echo 'ID=debian' >"$work/os-release"
stub dpkg-query 'exit 1'

says 'no headers' "its headers are not at $headers." "Install linux-headers-$kernel, then run: dkms install -m stackmap"
mkdir -p "$headers/include/config" "$headers/rust"
printf '%s\n' 'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0"' \
	"CONFIG_RUSTC_VERSION_TEXT=\"$wanted\"" >"$headers/include/config/auto.conf"
for tool in x86_64-linux-gnu-gcc-14 bindgen bc bison flex pahole python3; do
	stub $tool 'exit 0'
done
stub rustc 'echo rustc 1.97.1'
says 'another rustc' "its Rust compiler $wanted"
# As apt says it, with a newer one from backports.
apt=(' rustc | 1.96.1+dfsg1-2~bpo13+1 | http://deb.debian.org/debian trixie-backports/main amd64 Packages'
	' rustc | 1.85.10+dfsg1-1 | http://deb.debian.org/debian trixie/main amd64 Packages'
	' rustc | 1.85.1+dfsg1-1+deb13u1 | http://deb.debian.org/debian trixie/main amd64 Packages')
stub apt-cache "[ \"\$*\" = 'madison rustc' ] && printf '%s\n' $(printf "'%s' " "${apt[@]}")"
says 'another rustc, and apt has the right one: its packages are named' \
	'Install rustc=1.85.1+dfsg1-1+deb13u1, libstd-rust-dev=1.85.1+dfsg1-1+deb13u1, rust-src=1.85.1+dfsg1-1+deb13u1,'
rm "$work/bin/apt-cache"
rm "$work/bin/rustc"
rm "$work/bin/x86_64-linux-gnu-gcc-14"
says 'no C compiler: its package' 'Install gcc-14, '
stub x86_64-linux-gnu-gcc-14 'exit 0'
stub rustc 'exit 127'
says 'no rustc' "its Rust compiler $wanted"
# As with Debian's and Ubuntu's packages of one version.
stub rustc-1.85 "[ \"\$1\" = --print ] && echo $work/sysroot || echo '$wanted'"
lacks 'one whose name has the version is taken' 'Rust compiler'
says 'no source of the core library' rust-src
mkdir -p "$work/sysroot/lib/rustlib/src/rust/library/core/src"
touch "$work/sysroot/lib/rustlib/src/rust/library/core/src/lib.rs"
lacks 'it is found where rustc says' 'rust-src'
rm -r "$work/sysroot/lib/rustlib/src/rust"
for each in 1.96.1 1.85.1; do
	mkdir -p "$work/rustc-$each/library/core/src"
	touch "$work/rustc-$each/library/core/src/lib.rs"
done
ln -s "$work/rustc-1.96.1" "$work/sysroot/lib/rustlib/src/rust"
says 'the source of another core library' 'rust-src is there in version 1.96.1, rustc in version 1.85.1.' 'rust-src'
stub apt-cache "[ \"\$*\" = 'madison rust-src' ] && echo ' rust-src | 1.85.1+dfsg1-1+deb13u1 | http://x trixie/main'"
says 'the source of another core library, and apt has the right one' 'rust-src=1.85.1+dfsg1-1+deb13u1, then run'
rm "$work/bin/apt-cache"
ln -sfn "$work/rustc-1.85.1" "$work/sysroot/lib/rustlib/src/rust"
lacks 'that of the same one is taken' 'rust-src'
says 'no linux-source' 'its headers lack the Rust metadata, which can be made from its source.' 'linux-source-7.3'
# shellcheck disable=SC2016
stub dpkg-query 'case $4 in linux-headers-7.3.4+deb13-amd64) echo "ii  7.3.4-1~bpo13+1" ;; *) echo "un " ;; esac'
says 'no linux-source, and what version it must be' 'linux-source-7.3=7.3.4-1~bpo13+1' \
	"then run: dkms install -m stackmap -v $(sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' dkms.conf) -k $kernel"
touch "$work/src/linux-source-7.3.tar.xz"
# shellcheck disable=SC2016
stub dpkg-query 'case $4 in linux-headers-7.3.4+deb13-amd64) echo "iF  7.3.4-1~bpo13+1" ;; *) echo "ii  7.3.9-1" ;; esac'
says 'linux-source of another version, while the headers are being installed' 'linux-source-7.3 is there in version 7.3.9-1, the kernel is 7.3.4-1~bpo13+1.' \
	'Install linux-source-7.3=7.3.4-1~bpo13+1'
echo 'ID=ubuntu' >"$work/os-release"
says "Ubuntu's own package of the metadata" "Install linux-lib-rust-$kernel"
touch "$headers/rust/libkernel.rmeta"
run
is 'headers with the metadata are taken as they are' "$status $(readlink "$work/build/kernel") $(xargs <"$work/build/arguments")" \
	"0 $headers CC=x86_64-linux-gnu-gcc-14 RUSTC=rustc-1.85"
rm "$work/bin/bindgen" "$work"/build/*
says 'no bindgen' 'not all of its compilers are there.' 'Install bindgen'

# rust-tree, which makes the metadata, refuses before it builds.
refused() {
	local text
	if text=$(PATH="$work/bin:$PATH" tools/rust-tree "$work/linux" "$headers" "$work/build" RUSTC=rustc-1.85 2>&1); then
		is "$1" taken "$2"
	elif [[ $text = *"$2"* ]]; then
		result ok "$1"
	else
		is "$1" "$text" "$2"
	fi
}
mkdir "$work/linux"
echo $kernel >"$headers/include/config/kernel.release"
cp "$headers/include/config/auto.conf" "$headers/.config"
printf 'kernelversion:\n\t@echo 7.3.40\n' >"$work/linux/Makefile"
refused 'the source of another kernel' 'the source is that of 7.3.40, the kernel is 7.3.4+deb13-amd64'
echo 'CONFIG_RUST=n' >"$headers/.config"
refused 'a kernel without Rust' 'has no Rust'

version=$(sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' dkms.conf)
is "the tool has dkms.conf's version" "$(sed -n 's/^version = "\(.*\)"/\1/p' tools/stackmap/Cargo.toml)" "$version"
is 'so has the package, before the revision of Debian' "$(sed -n '1s/.*(\(.*\)-[^-]*).*/\1/p' debian/changelog)" "$version"

# The scripts of the package, with a dkms that does what the real one does, but in no time: "make package-test"
# has that one.
system=$work/system
mkdir -p "$system"/{bin,etc/dkms,usr/src,var/lib/dkms} "$system/lib/modules/7.3.4/build/include"
for script in postinst prerm; do
	sed "s|/var/lib/|$system&|g; s|/usr/src/|$system&|g; s|/lib/modules/|$system&|g; s|/etc/dkms/|$system&|g" \
		"debian/stackmap-dkms.$script" >"$system/$script"
done
printf '#!/bin/bash\nset -e\nroot=%s\ntree=$root/var/lib/dkms/stackmap\n' "$system" >"$system/bin/dkms"
cat >>"$system/bin/dkms" <<'EOF'
action=$1 version='' kernel='' all='' state=''
shift
while [[ $# -gt 0 ]]; do
	case $1 in
	-v) version=$2; shift ;;
	-k) kernel=$2; shift ;;
	--all) all=yes ;;
	esac
	shift
done
link=$tree/kernel-$kernel-x86_64
case $action in
add)
	mkdir -p "$tree/$version"
	ln -s "$root/usr/src/stackmap-$version" "$tree/$version/source"
	;;
install)
	mkdir -p "$tree/$version/build"
	if [[ ! -e $root/linux-source ]]; then
		printf '# log\n\nstackmap is not built for %s: no source.\nInstall it\n\n# 77\n' "$kernel" \
			>"$tree/$version/build/make.log"
		exit 77
	fi
	mkdir -p "$tree/$version/$kernel/x86_64/module"
	cp "$tree/$version/source/content" "$root/lib/modules/$kernel/stackmap.ko"
	ln -sfn "$version/$kernel/x86_64" "$link"
	;;
remove)
	[[ -e $tree/$version/source/content ]]
	[[ ! $all ]] || kernel=$(cd "$tree/$version" && find . -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' -printf '%f')
	link=$tree/kernel-$kernel-x86_64
	if [[ $(readlink "$link") = "$version"/* ]]; then rm "$link" "$root/lib/modules/$kernel/stackmap.ko"; fi
	[[ ! $kernel ]] || rm -r "${tree:?}/$version/$kernel"
	compgen -G "$tree/$version/[0-9]*" >/dev/null || rm -r "${tree:?}/$version"
	rmdir --ignore-fail-on-non-empty "$tree"
	;;
status)
	[[ ! -d $tree/$version/$kernel ]] || state=built
	[[ $(readlink "$link") != "$version"/* ]] || state=installed
	[[ ! $state ]] || echo "stackmap/$version, $kernel, x86_64: $state"
	;;
esac
EOF
printf '#!/bin/sh\ncat %s/version\n' "$system" >"$system/bin/dpkg-query"
chmod +x "$system"/bin/* "$system"/{postinst,prerm}

script() {
	PATH="$system/bin:$PATH" "$system/$1" "${@:2}" >"$work/said" 2>&1 || echo "# $* ended with status $?"
}

# upgrade VERSION [CONTENT] - as dpkg does it; the first time it is the installation.
upgrade() {
	local before=''
	if [[ -e $system/version ]]; then
		before=$(<"$system/version")
		script prerm upgrade "$1"
		rm -r "$system/usr/src/stackmap-$before"
	fi
	mkdir "$system/usr/src/stackmap-$1"
	echo "${2:-$1}" >"$system/usr/src/stackmap-$1/content"
	echo "$1" >"$system/version"
	script postinst configure "$before"
}

# there - what is installed, the versions that DKMS has, and those that are kept.
there() {
	local versions kept

	versions=$(cd "$system/var/lib/dkms" && find . -name source -printf '%P\n' | sed 's|stackmap/||; s|/source||' | sort | xargs)
	kept=$(cd "$system/var/lib" && find . -path './stackmap-dkms/*' -prune -printf '%f\n' | sort | xargs)
	echo "$(cat "$system/lib/modules/7.3.4/stackmap.ko" 2>/dev/null || echo none), dkms: $versions, kept: $kept"
}

touch "$system/linux-source"
upgrade 1-1
is 'the package is installed: the module is' "$(there)" '1-1, dkms: 1-1, kept: '
rm "$system/linux-source"
upgrade 1-2
is "an upgrade without the kernel's source keeps the module" "$(there)" '1-1, dkms: 1-1 1-2, kept: 1-1'
is "and says in dpkg's output what to install" "$(grep -c '^Install it$' "$work/said")" 1
upgrade 1-3
is 'so does the next one, and what no module is of is gone' "$(there)" '1-1, dkms: 1-1 1-3, kept: 1-1'
touch "$system/linux-source"
script postinst triggered /usr/src
is 'when the source comes the module is that of the package' "$(there)" '1-3, dkms: 1-3, kept: '
rm "$system/linux-source"
upgrade 1-3
is 'the same package again keeps the module' "$(there)" '1-3, dkms: 1-3, kept: '
script prerm upgrade 1-4
script postinst abort-upgrade 1-4
is 'so does an upgrade that is given up' "$(there)" '1-3, dkms: 1-3, kept: '
is 'whose sources are where they were' "$(readlink "$system/var/lib/dkms/stackmap/1-3/source")" "$system/usr/src/stackmap-1-3"
touch "$system/linux-source"
upgrade 1-3 another
is 'another package of the same version is built' "$(there)" 'another, dkms: 1-3, kept: '
upgrade 1-2
is 'a downgrade has the older module' "$(there)" '1-2, dkms: 1-2, kept: '
rm "$system/linux-source"
upgrade 1-3
script prerm remove
is 'a removal removes all, what is kept, too' "$(there)" 'none, dkms: , kept: '

# Who maintains the packages, and where the project is, are filled in.
mkdir -p "$work/package"
filled() {
	rm -rf "$work/package/debian"
	cp -r debian "$work/package"
	DEBFULLNAME='Who Builds' DEBEMAIL=who@example.org packaging/identify "$work/package" "$@" 2>&1
}
printf '%s\n' "maintainer='Ann Example <ann@example.org>'" homepage=https://example.org/stackmap \
	repository=https://example.org/stackmap.git 'releases="https://example.org/tags .*/v(\d\S+)\.tar\.gz"' >"$work/identity"
is 'identify is silent where all is named' "$(filled "$work/identity")" ''
is 'the fields are those' "$(sed -n '/^Maintainer/,/^Vcs-B/p' "$work/package/debian/control" | xargs)" \
	'Maintainer: Ann Example <ann@example.org> Homepage: https://example.org/stackmap Vcs-Git: https://example.org/stackmap.git Vcs-Browser: https://example.org/stackmap'
is 'uscan watches the releases' "$(tail -n 1 "$work/package/debian/watch")" 'https://example.org/tags .*/v(\d\S+)\.tar\.gz'
is 'no placeholder is left' "$(grep -rlE '@[a-z]+@' "$work/package/debian")" ''
echo 'maintainer=nobody' >"$work/identity"
is 'a maintainer without an address is refused' "$(filled "$work/identity" | grep -c 'a name and an address')" 1
printf '%s\n' maintainer= homepage= repository= releases= >"$work/identity"
filled "$work/identity" >"$work/said"
is 'who builds is the maintainer where nobody is named' "$(sed -n 's/^Maintainer: //p' "$work/package/debian/control")" \
	'Who Builds <who@example.org>'
is 'and what nobody knows is left out' "$(grep -rlE '@[a-z]+@' "$work/package/debian"; ls "$work/package/debian/watch" 2>/dev/null)" ''
is 'no address is made up' "$(grep -rlF .invalid debian packaging dkms.conf || true)" ''

# The licences of the crates in the tool. One that is new has to be looked at.
licences=$(cargo tree --quiet --locked --package stackmap --edges normal --target x86_64-unknown-linux-gnu --prefix none \
	--format '{l}' | sed 's/ (\*)$//; s/ OR \| AND \| *\/ */\n/g' | tr -d '()' | sort -u)
accepted=$(sed -n '/^accepted/,/^]/s/^ *"\(.*\)",$/\1/p' packaging/licenses/about.toml)
is 'cargo-about knows a licence of each crate' \
	"$(grep -vxF "$accepted" <<<"$licences" | grep -vxE '0BSD|LGPL-.*|MIT-0|CC0-1.0|' | xargs)" ''
is 'debian/copyright names them' "$(while read -r licence; do
	sed 's/^ //' debian/copyright | paste -s -d ' ' | grep -qF "$licence" || echo "$licence"
done <<<"$accepted")" ''
finish
