#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# attack.sh prepare|run: programs with names that pass for lines of a trace, and running them as
# nobody. Needs root to become nobody.
set -eu

A=/tmp/attack
LF='
'
# An event of init with a stack of our choice, and a loss.
forged="x$LF            init-1       [000] .....     9.000000: kmalloc: call_site=evil$LF"
forged="$forged            init-1       [000] .....     9.000001: <stack_id 34489>${LF}CPU:0 [LOST 4198 EVENTS]$LF"

case $1 in
prepare)
	grep -q '^nobody:' /etc/passwd 2> /dev/null ||
		echo 'nobody:x:65534:65534:nobody:/:/bin/sh' >> /etc/passwd
	mkdir -p $A
	cd $A
	for name in "$forged" 'e-1 [7] . 1: x' '=> evil' '<stack_id 34489>' "a${LF}1 evil"; do
		printf '#!/bin/sh\ntrue\nread x < /proc/version\n' > "$name"
		chmod 755 "$name"
	done
	;;
run)
	cd $A
	su -s /bin/sh nobody -c "cd $A; for i in 1 2 3; do for name in *; do \"./\$name\"; done; done; id -u"
	;;
esac
