# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Results of tests on the host, as TAP; tools/lib/guest/tap.sh is for guests.

number=0
failed=0

# result 'ok' or 'not ok' DESCRIPTION
result() {
	number=$((number + 1))
	[[ $1 = ok ]] || failed=1
	echo "$1 $number - $2"
}

# is DESCRIPTION GOT WANTED
is() {
	if [[ $2 = "$3" ]]; then
		result ok "$1"
	else
		result 'not ok' "$1"
		printf '# got:    %s\n# wanted: %s\n' "${2//$'\n'/$'\n#         '}" "$3"
	fi
}

# finish - the end of all results, and the status of the script.
finish() {
	echo "1..$number"
	exit "$failed"
}
