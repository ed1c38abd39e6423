# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# A kernel of our own: the source of a Debian kernel with a configuration from kernels/.

# build_own DIR: DIR/build is the tree to build modules against, DIR/lib/modules what a kernel's
# packages would hold.
build_own() {
	# Warnings about the kernel's own code are off: they take a twelfth of the compiler's time.
	local make=(in_chroot make -C "$source_tree" O="$1/build" "${make_arguments[@]}" KCFLAGS=-w -j"$(($(nproc) + 1))")
	local release modules

	mkdir "$1/build"
	cat "${configs[@]}" > "$1/build/wanted.config"
	"${make[@]}" KCONFIG_ALLCONFIG="$1/build/wanted.config" allnoconfig
	verify_config "$1/build/wanted.config" "$1/build/.config"
	"${make[@]}" "${kernel_image##*/}" modules
	release=$(cat "$1/build/include/config/kernel.release")
	modules=$1/lib/modules/$release
	mkdir -p "$modules"
	cp "$1/build/$kernel_image" "$modules/vmlinuz"
	cp "$1"/build/modules.{builtin,builtin.modinfo,order} "$modules/"
	in_chroot depmod -b "$1" "$release"
	# Modules need the tools, the headers and the Rust crates; vmlinux has the symbols.
	find "$1/build" \( -path "$1/build/scripts" -o -path "$1/build/tools" \) -prune -o \
		\( -name '*.o' -o -name '*.a' -o -name '.*.o.cmd' -o -name 'vmlinux.unstripped' \
		-o -path "*/$kernel_image" -o -name 'vmlinux.bin*' \) -type f -exec rm -f {} +
	# What the build wrote of its own path is the path it will be renamed to.
	{ grep -rlIF "$1" "$1/build" --include=Makefile --include='*.cmd' --include='*.json' || true; } |
		xargs -r sed -i "s|$1|$cache/tree-$kernel-$tree_key|g"
}

# verify_config WANTED FILE: stops, and names them, if lines of WANTED did not make it into FILE.
verify_config() {
	local line symbol lacking=()

	while read -r line; do
		symbol=$(grep -o 'CONFIG_[A-Z0-9_]*' <<< "$line")
		case $line in
		*=*) grep -qxF "$line" "$2" || lacking+=("$line") ;;
		*) ! grep -q "^$symbol=" "$2" || lacking+=("$line") ;;
		esac
	done < <(grep -E '^(# )?CONFIG_' "$1")
	[[ ${#lacking[@]} = 0 ]] && return
	echo "$kernel: the configuration of this kernel cannot have"
	printf '    %s\n' "${lacking[@]}"
	return 1
}

# leave_out_excepted: has $configs end in two files, all but the last of them without the symbols of $except.
leave_out_excepted() {
	local last=$((${#configs[@]} - 1)) merged=$cache/.new/$kernel.config

	grep -hvE "^(# )?($(IFS='|' && echo "${except[*]}"))\\b" "${configs[@]:0:last}" > "$merged.$$"
	mv "$merged.$$" "$merged"
	configs=("$merged" "${configs[last]}")
}

# own_tree: sets $packages, $tree and $release, as kernel_tree does for a kernel of Debian.
own_tree() {
	# Its tree may be that of another one, which is booted otherwise.
	local kernel=${built_as:-$kernel}

	[[ ${#except[@]} = 0 ]] || leave_out_excepted
	tree_key=$(key_of "$version" "$toolchain_key" "${configs[@]}" "${make_arguments[*]}" \
		"$(declare -f build_own verify_config)")
	entry "tree-$kernel" "$tree_key" "kernel $kernel" 'about 12 minutes' build_own
	[[ $listing ]] && return
	packages=$entry
	tree=$entry/build
	release=$(cat "$tree/include/config/kernel.release")
}
