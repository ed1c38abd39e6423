# SPDX-License-Identifier: GPL-2.0
"""Running the scripts of tools/bench/guest, and reading the figures that they print."""

import dataclasses
import subprocess
import time

from . import CACHE, TOP

KERNEL = "deb13"
# Those on which only the costs are measured.
OTHER_KERNELS = ("deb14", "deb13-rt")
ICOUNT = ("--icount",)
DEBIAN = ("--userland", "debian")


@dataclasses.dataclass(frozen=True)
class Guest:
    """A script and the guest that it wants."""

    script: str
    arguments: tuple = ()
    options: tuple = ICOUNT
    kernel: str = KERNEL


# The longest first.
GUESTS = {
    "memory": Guest("memory", ("10:1024", "14:16384", "18:200000"), ("--smp", "1", "--mem", "2048")),
    "growth": Guest("growth", ("1000", "10000", "100000", "1000000"), (*ICOUNT, "--mem", "2048")),
    "retention": Guest("retention", (), (*ICOUNT, *DEBIAN)),
    "others": Guest("others", (), (*ICOUNT, *DEBIAN)),
    "tracepoints": Guest("tracepoints"),
    "tracepoints again": Guest("tracepoints"),
    "cost": Guest("cost"),
    "cost again": Guest("cost"),
    "user": Guest("user"),
    "perf": Guest("perf", (), (*ICOUNT, *DEBIAN)),
    "agree": Guest("agree", (), DEBIAN),
    "cpus": Guest("cpus", (), (*ICOUNT, "--smp", "8")),
    **{f"{name} {kernel}": Guest(name, kernel=kernel) for kernel in OTHER_KERNELS for name in ("tracepoints", "cost")},
}


class BenchError(Exception):
    """A guest or a build has failed."""


def build(directory, kernel):
    """Builds the module of a directory for a kernel; returns its path."""
    done = subprocess.run([TOP / "tools/vm/module", "--kernel", kernel, "--quiet", directory], text=True,
                          stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BenchError(f"{directory} does not build for {kernel}")
    return done.stdout.split()[-1]


def program():
    """Builds the program whose user stacks are measured."""
    path = CACHE / "bench-entry"
    subprocess.run([TOP / "tools/vm/in-chroot", "--bind", CACHE, "gcc", "-O2", "-static-pie", "-o", path,
                    TOP / "tools/bench/guest/entry.c"], check=True)
    return path


def modules(names):
    """Builds the module and the one that measures, for each kernel of these guests, and the program."""
    entry = program()
    return {kernel: (build(TOP, kernel), build(TOP / "tools/bench/stackcost", kernel), entry)
            for kernel in {GUESTS[name].kernel for name in names}}


def run(guest, built):
    """Runs a guest; returns what it printed."""
    stackmap, stackcost, entry = built[guest.kernel]
    command = [TOP / "tools/vm/boot", "--kernel", guest.kernel, "--boot-timeout", "600", "--timeout", "1800", *guest.options,
               "--add", f"{TOP}/tools/lib/guest:/tests", "--add", f"{TOP}/tools/bench/guest:/bench",
               "--add", f"{stackcost}:/tests/stackcost.ko", "--add", f"{entry}:/tests/entry", "--module", stackmap,
               "--", TOP / f"tools/bench/guest/{guest.script}", *guest.arguments]
    done = subprocess.run(command, cwd=TOP, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace", check=False)
    if done.returncode or "\nfinished" not in done.stdout:
        raise BenchError(f"{guest.script} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def figures(output):
    """The figures that a guest printed, by their names."""
    found = {}
    for line in output.splitlines():
        if line.startswith("figure "):
            _, name, value = line.split()
            found[name] = float(value) if "." in value else int(value)
    return found


def release(kernel=KERNEL):
    """The release of a kernel."""
    done = subprocess.run([TOP / "tools/vm/setup", "--env", kernel], text=True, stdout=subprocess.PIPE, check=True)
    return next(line.split("=", 1)[1] for line in done.stdout.splitlines() if line.startswith("RELEASE="))


def timed(name, built, say):
    """Runs a guest, says how long it took; returns what it printed."""
    start = time.monotonic()
    output = run(GUESTS[name], built)
    say(f"{name}: {time.monotonic() - start:.0f} s")
    return output
