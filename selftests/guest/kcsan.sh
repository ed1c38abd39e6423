#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The check for data races itself, in a kernel that has KCSAN: it finds the one that stackgen has. Runs
# on CPUs that are really parallel.
# shellcheck source=SCRIPTDIR/../../tools/lib/guest/tap.sh
. /tests/tap.sh
plan 2

ok 'KCSAN runs' test -e $KCSAN
insmod /tests/stackgen.ko || bail 'stackgen'
stackgen race 4 0 4096
sleep 1
ok 'a data race of a module is found' test -n "$(races stackgen)"
finish
