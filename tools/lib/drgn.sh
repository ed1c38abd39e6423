# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# What reads a dump of a guest's memory: drgn, from PyPI, and the kernel's debug information.

# Debian's own package in the suites that this machine may have is too old for these kernels.
drgn_version=0.3.0

build_drgn() {
	python3 -m pip install --quiet --no-deps --only-binary :all: --target "$1" "drgn==$drgn_version"
}

# Of the whole package, whose modules nobody reads, 400 MB are kept.
build_debug_info() {
	setup_apt
	mkdir "$1/debs"
	fetch "$1/debs" "linux-image-$release-dbg"
	dpkg-deb --fsys-tarfile "$1"/debs/*.deb | tar -C "$1" -x --wildcards --no-wildcards-match-slash \
		"./usr/lib/debug/lib/modules/$release/vmlinux"
	rm -r "$1/debs"
	mv "$1/usr/lib/debug/lib/modules/$release/vmlinux" "$1"
	rm -r "${1:?}/usr"
}

# debug_info: sets $drgn, a directory for PYTHONPATH, and $debug_vmlinux.
debug_info() {
	[[ ! $own ]] || die "$kernel was built without debug information"
	if [[ ! $listing ]]; then
		python3 -m pip --version > /dev/null 2>&1 || need pip3 python3-pip
	fi
	entry drgn "$(key_of "$drgn_version" "$(python3 --version)" "$(declare -f build_drgn)")" "drgn $drgn_version" \
		'a few seconds' build_drgn
	drgn=$entry
	entry "vmlinux-$release" "$(key_of "$version" "$(declare -f build_debug_info)")" \
		"debug information of $release" 'about 2 minutes, 1.2 GB to download' build_debug_info
	debug_vmlinux=$entry/vmlinux
}
