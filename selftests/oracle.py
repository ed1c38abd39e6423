#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Compares events that were recorded twice: as stack ids, and as full stacks.

DIR holds what selftests/guest/oracle.sh, or contexts.sh, left there. Every event of one recording must have its twin
in the other, and every id must resolve through stack_map_bin to exactly the frames of its twin.
Prints TAP.
"""

import argparse
import collections
import pathlib
import re
import struct
import sys

MAGIC, VERSION = 0x464D5342, 2
SHOWN = 5
SYSTEMS = {
    "syscalls": re.compile(r"sys_"),
    "kmem": re.compile(r"k(malloc|free|mem)|mm_|rss_stat"),
    "sched": re.compile(r"sched_"),
}
CONTEXTS = {name: re.compile(f"context_hit: context={name} ") for name in (
    "task", "softirq", "hardirq", "nmi", "kprobe", "kretprobe", "fprobe_entry", "fprobe_exit")}

LINE = re.compile(r"^ *.+-(?P<pid>\d+) +\[\d+\] (?P<flags>\S+) +[\d.]+: (?P<text>.*)$")
FRAME = re.compile(r"^ => .*<([0-9a-f]{16})>$")
STACK_ID = re.compile(r"<stack_id (\d+)>")
TRAMPOLINE = " => [FTRACE TRAMPOLINE]"
TRAMPOLINE_MARKER = 0x7FFF_FFFF


def read_map(path):
    """The stacks of a stack_map_bin, by id."""
    data = path.read_bytes()
    magic, version, nr_stacks, _ = struct.unpack_from("=4I", data)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"{path}: magic {magic:#x}, version {version}")
    offset, stacks = 16, {}
    for _ in range(nr_stacks):
        stack_id, nr, _, _ = struct.unpack_from("=4I", data, offset)
        stacks[stack_id] = struct.unpack_from(f"={nr}Q", data, offset + 16)
        offset += 16 + 8 * nr
    if offset != len(data):
        raise ValueError(f"{path}: {len(data) - offset} bytes behind the last stack")
    return stacks


def read_events(path):
    """The events of one CPU as (key, stack), a stack being an id, a tuple of frames or None.

    An interrupt may come between an event and its stack; the flags tell the levels apart.
    """
    events, waiting, frames = [], {}, None
    for line in path.read_text(errors="replace").splitlines():
        if frames is not None:
            if match := FRAME.match(line):
                frames.append(int(match[1], 16))
                continue
            if line == TRAMPOLINE:
                frames.append(TRAMPOLINE_MARKER)
                continue
            owner[1] = tuple(frames)
            frames = None
        match = LINE.match(line)
        if not match:
            continue
        level = (match["pid"], match["flags"])
        if match["text"] == "<stack trace>":
            owner, frames = waiting.pop(level), []
        elif stack_id := STACK_ID.fullmatch(match["text"]):
            waiting.pop(level)[1] = int(stack_id[1])
        else:
            # Need-resched, the second flag, may come up between the two recordings.
            context = match["flags"][:1] + match["flags"][2:]
            waiting[level] = [(match["pid"], context, match["text"]), None]
            events.append(waiting[level])
    if frames is not None:
        owner[1] = tuple(frames)
    return events


class Comparison:
    """What the comparison of all CPUs found."""

    def __init__(self, stacks, sources):
        self.stacks = stacks
        self.sources = sources
        self.pairs = self.mismatches = self.alone = self.fulls = 0
        self.seen, self.used, self.cpus = collections.Counter(), collections.Counter(), set()

    def add_cpu(self, cpu, ids, fulls):
        """Pairs equal events in their order: each key has a queue of stacks."""
        twins = collections.defaultdict(collections.deque)
        for key, stack in fulls:
            twins[key].append(stack)
        for key, stack in ids:
            if twins[key]:
                self.cpus.add(cpu)
                self.add_pair(key, stack, twins[key].popleft())
            else:
                self.lonely(key, "has no full stack")
        for key, queue in twins.items():
            for _ in queue:
                self.lonely(key, "has no id")

    def lonely(self, key, what):
        """Counts an event without a twin."""
        self.alone += 1
        if self.alone <= SHOWN:
            print(f"# {key} {what}")

    def add_pair(self, key, stack, expected):
        """Compares the two stacks of an event."""
        self.pairs += 1
        self.seen.update(name for name, text in self.sources.items() if text.match(key[2]))
        if isinstance(stack, int):
            self.used[stack] += 1
            found = self.stacks.get(stack)
        else:
            self.fulls += 1
            found = stack
        if found is None or found != expected:
            self.mismatches += 1
            if self.mismatches <= SHOWN:
                print(f"# {key}: stack {stack}")
                print(f"#   found    {hexes(found)}\n#   expected {hexes(expected)}")


def hexes(frames):
    """Frames as text."""
    return None if frames is None else " ".join(f"{frame:x}" for frame in frames)


def counted(path):
    """All fallbacks to full stacks that a stack_map_stat counts."""
    return sum(int(value) for value in re.findall(r"^drop_\w+: *(\d+)$", path.read_text(), re.MULTILINE))


def main():
    """Compares, prints TAP, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--contexts", action="store_true", help="the events are those of the module contexts")
    parser.add_argument("--least", metavar="N", type=int, default=10_000, help="events wanted (default 10000)")
    parser.add_argument("--full", metavar="PERCENT", type=float, default=1.0,
                        help="of which so many may be full stacks (default 1)")
    options = parser.parse_args()

    sources = CONTEXTS if options.contexts else SYSTEMS
    result = Comparison(read_map(options.directory / "stack_map_bin"), sources)
    for cpu in (0, 1):
        result.add_cpu(cpu, *(read_events(options.directory / f"{kind}.{cpu}") for kind in ("ids", "full")))

    seen = ", ".join(f"{name} {result.seen[name]}" for name in sources)
    print(f"# {result.pairs} events recorded twice ({seen}): {sum(result.used.values())} as ids of "
          f"{len(result.used)} stacks, {result.fulls} in full")
    checks = [
        (result.pairs >= options.least, f"at least {options.least} events"),
        (all(result.seen[name] for name in sources), f"from {len(sources)} sources"),
        (result.cpus == {0, 1}, "on both CPUs"),
        (result.alone == 0, f"every event has its twin ({result.alone} have none)"),
        (result.fulls <= options.full / 100 * result.pairs, f"at most {options.full:g} % of them in full"),
        (result.fulls <= counted(options.directory / "stack_map_stat"), "the full ones are counted"),
        (result.mismatches == 0, f"every id resolves to the frames of its twin ({result.mismatches} do not)"),
    ]
    for number, (good, text) in enumerate(checks, 1):
        print(f"{'ok' if good else 'not ok'} {number} - {text}")
    print(f"1..{len(checks)}")
    return 0 if all(good for good, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
