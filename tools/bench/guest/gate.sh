#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Whether a recorded stack still takes no more instructions than /bench/expected says, as TAP.
#
# Both are taken over those of the kernel's own full stack, in the same run: a kernel that unwinds
# otherwise, or is emulated otherwise, changes both.
# shellcheck source=SCRIPTDIR/../../lib/guest/tap.sh
. /tests/tap.sh
plan 10

/bench/cost.sh >/tmp/figures || bail "cost.sh: $(tail -n 1 /tmp/figures)"
awk '
	FNR == NR {
		if ($1 == "guest")
			wanted[$2] = $3
		next
	}
	$1 == "figure" { got[$2] = $3 }
	# The full stack that a count is compared with: that of its depth, or of 12 further frames.
	function full(name,  part) {
		split(name, part, ".")
		return "full." (name ~ /^filled/ ? 12 : part[3])
	}
	function group(name,  part) {
		split(name, part, ".")
		return name ~ /^filled/ ? part[1] : part[1] "." part[2]
	}
	END {
		for (name in wanted) {
			if (name !~ /^(remembered|searched|insert|filled)/)
				continue
			one = group(name)
			checked[one]++
			if (!(name in got)) {
				worse[one] = worse[one] "# " name " was not measured\n"
				continue
			}
			change = got[name] / got[full(name)] / (wanted[name] / wanted[full(name)]) - 1
			if (!(one in most) || change > most[one])
				most[one] = change
			if (change > 0.03)
				worse[one] = worse[one] sprintf("# %s: %d instructions, %.2f of a full stack; it was %d, %.2f\n",
					name, got[name], got[name] / got[full(name)],
					wanted[name], wanted[name] / wanted[full(name)])
		}
		for (one in checked) {
			printf "%s %d - instructions, %s: none of %d worse by over 3 %%\n",
				one in worse ? "not ok" : "ok", ++number, one, checked[one]
			failed += one in worse
			printf "%s", worse[one]
			if (most[one] > all)
				all = most[one]
		}
		printf "# the largest change: %+.2f %%\n", all * 100
		if (failed)
			print "# to accept what is now: tools/bench/gate --accept"
		printf "1..%d\n", number
		exit failed || number == 0
	}' /bench/expected /tmp/figures
