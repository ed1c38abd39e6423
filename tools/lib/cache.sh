# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# The cache: entries that are complete or absent, built once, with each step and its time printed.
#
# An entry is a directory $cache/NAME-KEY. It is built in $cache/.new/NAME.XXXXXX and renamed when
# complete, so an entry that is only half built never looks complete. The builder holds the lock of NAME; so
# a process with that lock removes any leftover directory of NAME under .new.

lib=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
checkout=$(cd "$lib/../.." && pwd -P)
cache=${STACKMAP_CACHE:-${HOME:?}/.cache/stackmap}
mirror=${STACKMAP_MIRROR:-http://deb.debian.org/debian}
# The status of a build that wanted a version which the archive no longer has.
moved_on=75
invocation=("$0" "$@")
umask 022
exec {user}>&2
mkdir -p "$cache"
cache=$(cd "$cache" && pwd -P)

# say TEXT...: prints a line for the user, even where the output goes to a log.
say() {
	printf '%s\n' "$*" >&"$user"
}

die() {
	say "${0##*/}: $*"
	exit 126
}

# ours PATH...: stops if a path belongs to another user or others can write to it: files below it are run.
ours() {
	local path mode

	for path; do
		[[ -e $path ]] || continue
		[[ -O $path || $(stat -L -c %u "$path") = 0 ]] ||
			die "$path belongs to another user ($(stat -L -c %U "$path")): give STACKMAP_CACHE=..."
		mode=$(stat -L -c %a "$path")
		(((8#$mode & 8#22) == 0)) || die "other users can write to $path (mode $mode): check its contents, then run chmod go-w"
	done
}
ours "$cache"
mkdir -p "$cache"/{.new,.lock,logs}
ours "$cache"/{.new,.lock,logs,chosen}

# key_of FILE-OR-STRING...: a short hash of the contents of the files and of the strings.
key_of() {
	local arg

	for arg; do
		if [[ -f $arg ]]; then
			cat "$arg"
		else
			printf '%s\n' "$arg"
		fi
	done | sha256sum | cut -c1-12
}

# need COMMAND-OR-FILE PACKAGE...: installs what is missing when root, else names all of it.
need() {
	local lock missing=()

	missing "$@"
	[[ ${#missing[@]} = 0 ]] && return
	if [[ $(id -u) = 0 ]] && command -v apt-get > /dev/null; then
		# Where several miss something at the same time, one after the other.
		exec {lock}> "$cache/.lock/apt"
		flock "$lock"
		missing "$@"
		if [[ ${#missing[@]} -gt 0 ]]; then
			say "installing ${missing[*]}"
			install_packages "${missing[@]}" > "$cache/logs/apt-${missing[0]}.log" 2>&1 || true
			hash -r
		fi
		exec {lock}>&-
		missing "$@"
		[[ ${#missing[@]} = 0 ]] && return
	fi
	die "install what is missing: apt install ${missing[*]}"
}

# missing COMMAND-OR-FILE PACKAGE...: sets $missing to the packages of the missing ones.
missing() {
	missing=()
	while [[ $# -gt 0 ]]; do
		found "$1" || missing+=("$2")
		shift 2
	done
}

found() {
	[[ -f $1 ]] || command -v "$1" > /dev/null
}

install_packages() {
	local apt_get=(env -u APT_CONFIG DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300)

	"${apt_get[@]}" install --no-install-recommends "$@" && return
	"${apt_get[@]}" update
	"${apt_get[@]}" install --no-install-recommends "$@"
}

# Set to something, makes entry only tell which directory it would use.
listing=''

# entry NAME KEY TITLE DURATION FUNCTION: sets $entry to the directory, after having called
# FUNCTION with an empty directory to fill if there was none. FUNCTION's output goes to a log. Where
# it ends with $moved_on, versions are chosen once more and the whole command begins again.
entry() {
	local name=$1 key=$2 title=$3 duration=$4 build=$5
	local log=$cache/logs/setup-$1.log new lock start status

	entry=$cache/$name-$key
	if [[ $listing ]]; then
		echo "$entry"
		return
	fi
	[[ -d $entry ]] && return

	exec {lock}> "$cache/.lock/$name"
	if ! flock -n "$lock"; then
		say "[  ... ] waiting for another set-up of $title"
		flock "$lock"
	fi
	if [[ -d $entry ]]; then
		exec {lock}>&-
		return
	fi

	rm -rf --one-file-system "$cache/.new/$name".??????
	new=$(mktemp -d "$cache/.new/$name.XXXXXX")
	chmod 755 "$new"
	say "[  ... ] $title ($duration)"
	start=$SECONDS
	set +e
	(
		set -e
		"$build" "$new"
	) > "$log" 2>&1
	status=$?
	set -e
	if [[ $status = "$moved_on" && $BASH_SUBSHELL = 0 && ! ${STACKMAP_CHOSEN_AGAIN:-} ]]; then
		say "         $(tail -n 1 "$log"); choosing again"
		rm -rf --one-file-system "$new"
		exec {lock}>&-
		lookup refresh
		STACKMAP_CHOSEN_AGAIN=yes exec "${invocation[@]}"
	fi
	if [[ $status != 0 ]]; then
		say "[failed] $title; the end of $log:"
		tail -n 25 "$log" >&"$user"
		rm -rf --one-file-system "$new"
		exit 126
	fi
	mv "$new" "$entry"
	exec {lock}>&-
	say "$(printf '[%4d s] %s' $((SECONDS - start)) "$title")"
}
