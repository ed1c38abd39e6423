#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# One more kernel in KERNELS of selftests/suite, as CONTRIBUTING.md says, gets its cases, and no other loses any.

set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source-path=SCRIPTDIR/..
. selftests/tap.sh

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/selftests"
cp selftests/results.py "$copy/selftests/"
sed 's/^\(KERNELS = (.*\))$/\1, "new", "newer")/' selftests/suite >"$copy/selftests/suite"

# list COPY ARGUMENT... - the cases by that copy of the runner, or what went wrong.
list() {
	python3 "$1/selftests/suite" "${@:2}" --list 2>&1 || true
}

for more in '' --long --packages; do
	# shellcheck disable=SC2086
	{
		now=$(list . $more)
		more_kernels=$(list "$copy" $more)
		only=$(list "$copy" $more --kernel new --kernel newer guest)
	}
	is "${more:-without options}: the cases of the others are as before" "$(grep -v '\bnewe\?r\?: \|: newe\?r\?$' <<<"$more_kernels")" "$now"
	is 'and those of the new ones are run' "$(grep '^newe\?r\?: ' <<<"$more_kernels")" "$only"
	for kernel in new newer; do
		is "$kernel has some" "$(grep -c "^$kernel: " <<<"$more_kernels" | sed 's/^[1-9][0-9]*$/some/')" some
	done
done
for hook in jump kprobe; do
	is "each of the new ones is run with the hook $hook" "$(list "$copy" | grep -c "^newe\?r\?: lifetime $hook$")" 2
done
finish
