# SPDX-License-Identifier: GPL-2.0
"""What scripts need that start guests themselves: programs, modules, and results as they come (TAP)."""

import pathlib
import subprocess
import sys

from cases import COMPILERS, PROGRAMS

TOP = pathlib.Path(__file__).resolve().parent.parent


def output_of(*command):
    """What a command prints."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"Bail out! {command} failed")
    return done.stdout


def program(name, work):
    """Builds a program for the guests."""
    source, flags = PROGRAMS[name]
    output_of(TOP / "tools/vm/in-chroot", "--bind", work, *COMPILERS[pathlib.Path(source).suffix], *flags,
              "-o", work / name, TOP / source)
    return work / name


def modules_of(kernel, directory, *options):
    """The modules of a directory, built for a kernel."""
    return list(map(pathlib.Path, output_of(TOP / "tools/vm/module", "--kernel", kernel, *options, directory).split()))


class Tap:
    """Results, as they come."""

    def __init__(self):
        self.number, self.failed = 0, 0

    def ok(self, text, good, *notes):
        """One test."""
        self.number += 1
        self.failed += not good
        print(f"{'' if good else 'not '}ok {self.number} - {text}", flush=True)
        for note in notes if not good else ():
            print(f"# {str(note)[:2000]}")

    def same(self, text, got, wanted):
        """One test: both are equal."""
        notes = []
        if got != wanted:
            if isinstance(got, dict) and isinstance(wanted, dict):
                keys = [key for key in {**wanted, **got} if got.get(key) != wanted.get(key)]
                got, wanted = ({key: part.get(key) for key in keys[:3]} for part in (got, wanted))
            elif isinstance(got, list) and isinstance(wanted, list):
                at = next((at for at, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted)))
                notes = [f"{len(got)} and {len(wanted)}; the first difference is at {at}"]
                got, wanted = got[at:at + 2], wanted[at:at + 2]
            notes += [f"got:    {got}", f"wanted: {wanted}"]
        self.ok(text, not notes, *notes)

    def end(self):
        """The plan, and the exit status."""
        print(f"1..{self.number}")
        return 1 if self.failed else 0
