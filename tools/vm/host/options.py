# SPDX-License-Identifier: GPL-2.0
"""The command line of tools/vm/boot."""

import argparse
import os

KERNELS = sorted(name for name in os.listdir(os.path.join(os.path.dirname(__file__), "..", "..", "lib", "kernels"))
                 if not name.endswith(".config"))

HANG = 124
GUEST_FAILED = 125
NOT_STARTED = 126

DESCRIPTION = """\
Boots a stock Debian kernel in QEMU, without KVM, and runs SCRIPT in it as root: a file of this
machine, which is copied in, or a command of the guest. Its output is shown as it comes and its
exit status becomes that of this command. What is missing is made first, see tools/vm/setup.
"""

EPILOG = """\
examples:
  tools/vm/boot -- sh                       a shell in the guest (leave it with exit or Ctrl-D)
  tools/vm/boot -- cat /proc/version
  tools/vm/boot --kernel deb14 -- ./test.sh 1 2
  tools/vm/boot --userland debian -- trace-cmd list -t
  tools/vm/boot --share /tmp/out -- sh -c 'cat /sys/kernel/tracing/trace > /share/trace'

in the guest:
  /lib/stackmap/stackmap.ko   the module, built for this kernel; it is not loaded
  /sys/kernel/tracing         tracefs; proc, sys, dev, debugfs, bpf and cgroup2 are mounted too
  /share                      the directory given by --share

A warning, oops, lockdep, RCU or sanitizer report on the console makes the run fail, unless the
script has announced it to the kernel's log before, by a regular expression:
  echo "stackmap-expect: WARNING: .*hello_init" > /dev/kmsg
An announced "Kernel panic" ends the run with status 0.

exit status:
  that of SCRIPT (128 + N if signal N ended it), or
  124   it ran longer than --timeout, or the guest did not come up
  125   the guest failed: panic, unannounced report on the console, powered off by itself
  126   the guest could not be started
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors do not exit with a status that a script may have."""

    def error(self, message):
        self.exit(NOT_STARTED, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser():
    """The parser, for --help as well."""
    parse = Parser(
        prog="tools/vm/boot", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [OPTION]... -- SCRIPT [ARGUMENT]...")
    add = parse.add_argument
    add("--kernel", default="deb13", metavar="K", choices=KERNELS,
        help=f"the kernel: {', '.join(KERNELS)} (default deb13)")
    add("--userland", default="busybox", choices=["busybox", "debian"],
        help="debian: bash, gawk, trace-cmd, bpftrace, perf and so on; slower to boot")
    add("--smp", type=int, metavar="N", help="number of CPUs (default 2)")
    add("--mem", type=int, metavar="MIB", help="memory (default 1024; debug, kcsan, debug-rt: 2048)")
    add("--tcg", default="single", choices=["single", "multi"],
        help="threads that run the CPUs (default single). With multi, even a stock kernel dies "
             "(Oops: int3) when its text is patched under load; for races that patch nothing")
    add("--icount", action="store_true",
        help="guest time counts instructions, on one CPU unless --smp is given: for figures that "
             "can be compared and do not depend on the load of this machine")
    add("--timeout", type=float, metavar="S",
        help="seconds that SCRIPT may take (default 300, debug, kcsan and debug-rt: 2400; none for a terminal). "
             "Time in which QEMU waits for a CPU of this machine does not count")
    add("--boot-timeout", type=float, metavar="S",
        help="seconds until SCRIPT starts (default 90, debug, kcsan and debug-rt: 720)")
    add("--add", action="append", default=[], metavar="HOST:GUEST",
        help="copies a file or directory into the guest; can be repeated")
    add("--share", metavar="DIR",
        help="mounts a directory of this machine at /share, writable; debug, kcsan and debug-rt, which have "
             "no file systems for that, copy it in, and out when SCRIPT has ended. It must belong to you; "
             "set-user-ID files, links that lead out and devices do not stay in it")
    which = parse.add_mutually_exclusive_group()
    which.add_argument("--module", metavar="KO",
                       help="the file to put at /lib/stackmap/stackmap.ko, instead of building it")
    which.add_argument("--no-module", action="store_true", help="no module; nothing is built")
    add("--initramfs", metavar="FILE",
        help="boots with this initramfs of initramfs-tools, which needs virtio_pci, virtio_blk, "
             "virtio_console and ext4, in the place of our own; for --userland debian")
    add("--unpacked", action="store_true",
        help="boots the kernel from its ELF file, which the bzImage has: a third faster, but without KASLR; "
             "for Debian's kernels on x86-64")
    add("--append", default="", metavar="ARGS", help="more arguments for the kernel")
    add("--qemu", action="append", default=[], metavar="ARG",
        help="one more argument for QEMU; can be repeated")
    add("-t", "--tty", action="store_true",
        help="gives SCRIPT this terminal; implied for sh and bash. Ctrl-] leaves it (status 129)")
    add("-v", "--verbose", action="store_true", help="shows the kernel's console as well")
    add("script", metavar="SCRIPT", nargs="?", help=argparse.SUPPRESS)
    add("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parse


def read(argv):
    """The options, checked."""
    parse = parser()
    if "--" in argv:
        split = argv.index("--")
        namespace = parse.parse_args(argv[:split])
        if namespace.script:
            parse.error(f"'{namespace.script}' before --")
        namespace.script, *namespace.arguments = argv[split + 1:] or [None]
    else:
        namespace = parse.parse_args(argv)
    if not namespace.script:
        parse.error("no SCRIPT")
    if namespace.icount:
        if namespace.tcg == "multi":
            parse.error("--icount needs --tcg single")
        namespace.smp = namespace.smp or 1
    namespace.smp = namespace.smp or 2
    for pair in namespace.add:
        source, colon, _ = pair.rpartition(":")
        if not colon or not os.path.exists(source):
            parse.error(f"--add {pair}: not HOST:GUEST with an existing HOST")
    if namespace.share and not os.path.isdir(namespace.share):
        parse.error(f"--share {namespace.share}: not a directory")
    if namespace.initramfs and not (os.path.isfile(namespace.initramfs) and namespace.userland == "debian"):
        parse.error(f"--initramfs {namespace.initramfs}: not a file, or without --userland debian")
    if namespace.module and not os.path.isfile(namespace.module):
        parse.error(f"--module {namespace.module}: not a file")
    return namespace
