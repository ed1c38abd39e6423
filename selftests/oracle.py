#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Compares events that were recorded twice: as stack ids, and as full stacks.

DIR holds what selftests/guest/oracle.sh, contexts.sh or sources.sh left there. Every event of one recording must have its twin
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
# Stands for the event of a stack that has none.
ALONE = "no event"
CONTEXTS = ("task", "softirq", "hardirq", "nmi", "kprobe", "kretprobe", "fprobe_entry", "fprobe_exit")
# Where the same stack can be had twice, one after the other.
PRINTK_CONTEXTS = ("task", "kprobe", "kretprobe", "fprobe_entry", "fprobe_exit")
# What each script records: names, and what the events look like, their flags in front of them.
SOURCES = {
    "oracle": {
        "syscalls": r"\S+ sys_",
        "kmem": r"\S+ (k(malloc|free|mem)|mm_|rss_stat)",
        "sched": r"\S+ sched_",
    },
    "contexts": {name: rf"\S+ context_hit: context={name} " for name in CONTEXTS},
    "sources": {
        **{f"func_stack_trace_{name}": rf"\S+ hit <\w+> <-(in|run)_{name}(_context)?\b" for name in CONTEXTS},
        "stacktrace_trigger": r"\S+ context_hit: ",
        "stacktrace_command": rf"\S+ {ALONE}$",
        **{f"trace_printk_{name}": rf"\S+ record.*: printk context={name}$" for name in PRINTK_CONTEXTS},
        "bpf_tracepoint": r"\S+ bpf_trace_printk: tp hit",
        "bpf_tracepoint_nmi": r"\S*[zZ]\S* bpf_trace_printk: tp hit",
        "bpf_kprobe": r"\S+ bpf_trace_printk: kp hit",
        "kprobe_event": r"\S+ dyn_kprobe: ",
        "kretprobe_event": r"\S+ dyn_kretprobe: ",
        "fprobe_event": r"\S+ dyn_fprobe: ",
        "sysrq": r"\S*[zZ]\S* console: ",
    },
}

LINE = re.compile(r"^ *.+-(?P<pid>\d+) +\[\d+\] (?P<flags>\S+) +[\d.]+: (?P<text>.*)$")
FRAME = re.compile(r"^ => .*<([0-9a-f]{16})>$")
STACK_ID = re.compile(r"<stack_id (\d+)>")
TRAMPOLINE = " => [FTRACE TRAMPOLINE]"
TRAMPOLINE_MARKER = 0x7FFF_FFFF


def read_map(path):
    """The stacks of a stack_map_bin, by id."""
    data = path.read_bytes()
    magic, version, nr_stacks, load_id = struct.unpack_from("=4I", data)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"{path}: magic {magic:#x}, version {version}")
    if load_id == 0:
        raise ValueError(f"{path}: no load id")
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

    An interrupt may come between an event and its stack; the flags tell the levels apart. A stack
    without an event is one by itself.
    """
    events, waiting, owner, frames = [], {}, None, None
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
        # Need-resched, the second flag, may come up between an event and its stack, or its twin.
        context = match["flags"][:1] + match["flags"][2:]
        level = (match["pid"], context)
        stack_id = STACK_ID.fullmatch(match["text"])
        is_stack = stack_id or match["text"] == "<stack trace>"
        if not is_stack or level not in waiting:
            waiting[level] = [(match["pid"], context, ALONE if is_stack else match["text"]), None]
            events.append(waiting[level])
        if stack_id:
            waiting.pop(level)[1] = int(stack_id[1])
        elif is_stack:
            owner, frames = waiting.pop(level), []
    if frames is not None:
        owner[1] = tuple(frames)
    return events


class Comparison:
    """What the comparison of all CPUs found."""

    def __init__(self, stacks, sources):
        self.stacks = stacks
        self.sources = {name: re.compile(text) for name, text in sources.items()}
        self.pairs = self.mismatches = self.alone = self.fulls = 0
        self.seen, self.full, self.used = collections.Counter(), collections.Counter(), collections.Counter()
        self.cpus = set()

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
        sources = [name for name, text in self.sources.items() if text.match(" ".join(key[1:]))]
        self.seen.update(sources)
        if isinstance(stack, int):
            self.used[stack] += 1
            found = self.stacks.get(stack)
        else:
            self.fulls += 1
            self.full.update(sources)
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
    parser.add_argument("--of", choices=SOURCES, default="oracle", help="the script that recorded them")
    parser.add_argument("--least", metavar="N", type=int, default=10_000, help="events wanted (default 10000)")
    parser.add_argument("--full", metavar="PERCENT", type=float, default=1.0,
                        help="of which so many may be full stacks (default 1)")
    parser.add_argument("--missed", metavar="SOURCE,...", type=lambda text: list(filter(None, text.split(","))),
                        help="the full stacks are those of these sources, and of these there is no id")
    parser.add_argument("--without", metavar="PREFIX", help="sources of such names are not in this kernel")
    options = parser.parse_args()

    sources = {name: text for name, text in SOURCES[options.of].items()
               if not options.without or not name.startswith(options.without)}
    result = Comparison(read_map(options.directory / "stack_map_bin"), sources)
    for cpu in (0, 1):
        result.add_cpu(cpu, *(read_events(options.directory / f"{kind}.{cpu}") for kind in ("ids", "full")))

    seen = ", ".join(f"{name} {result.seen[name]}" for name in sources)
    print(f"# {result.pairs} events recorded twice ({seen}): {sum(result.used.values())} as ids of "
          f"{len(result.used)} stacks, {result.fulls} in full"
          + (f" ({', '.join(f'{name} {nr}' for name, nr in result.full.items())})" if result.full else ""))
    checks = [
        (result.pairs >= options.least, f"at least {options.least} events"),
        (all(result.seen[name] for name in sources), f"from {len(sources)} sources"),
        (result.cpus == {0, 1}, "on both CPUs"),
        (result.alone == 0, f"every event has its twin ({result.alone} have none)"),
        (result.fulls <= options.full / 100 * result.pairs, f"at most {options.full:g} % of them in full"),
        (result.fulls <= counted(options.directory / "stack_map_stat"), "the full ones are counted"),
        (options.missed is None or result.full == {name: result.seen[name] for name in options.missed},
         "full are all stacks of the sources that are missed, and no others"),
        (result.mismatches == 0, f"every id resolves to the frames of its twin ({result.mismatches} do not)"),
    ]
    for number, (good, text) in enumerate(checks, 1):
        print(f"{'ok' if good else 'not ok'} {number} - {text}")
    print(f"1..{len(checks)}")
    return 0 if all(good for good, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
