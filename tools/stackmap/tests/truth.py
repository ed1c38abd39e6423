#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""truth.py STACKMAP DIR: counts the events of DIR/mixed.data in every output, and on its own in
DIR/mixed.trace.gz, which is the kernel's text of the same buffer. Says what differs."""

import collections
import gzip
import json
import pathlib
import re
import subprocess
import sys

# A name of a task is padded to 16 columns.
LINE = re.compile(r"^(.{16})-(\d+) +\[(\d+)\] (\S+) +([\d.]+): (.*)$")
STACK_ID = re.compile(r"^<stack_id (\d+)>$")
SYSCALL = re.compile(r"^sys_(\w+)(\(| -> )")


def truth(text):
    """Each event of the kernel's text: its name, its task, its CPU, its time, the id of its stack."""
    events, waiting = [], {}
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            assert line.startswith("#"), line
            continue
        _, pid, cpu, flags, time, body = match.groups()
        key = cpu, pid, flags
        found = STACK_ID.match(body)
        if found:
            waiting.pop(key)["stack"] = int(found[1])
            continue
        assert not body.startswith("<stack trace>"), "a full stack: the map was full"
        syscall = SYSCALL.match(body)
        if syscall:
            name = ("sys_enter_" if syscall[2] == "(" else "sys_exit_") + syscall[1]
        else:
            name = body.split(":", 1)[0]
        event = {"event": name, "pid": int(pid), "cpu": int(cpu), "time": time, "stack": None}
        waiting[key] = event
        events.append(event)
    return events


def by_stack(events):
    """How often each event came with each stack."""
    return collections.Counter((event["event"], event["stack"]) for event in events)


def by_event(events):
    """How often each event came."""
    return collections.Counter(event["event"] for event in events)


def varint(data, at):
    """A number as protobuf has it, and what follows."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def message(data):
    """The fields of a protobuf message: number and value."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2, key
            size, at = varint(data, at)
            value = data[at:at + size]
            at += size
        yield key >> 3, value


def pprof(data):
    """The values of all samples, by the label "event"."""
    fields = list(message(gzip.decompress(data)))
    strings = [value.decode() for number, value in fields if number == 6]
    seen = collections.Counter()
    for sample in (dict_of(value) for number, value in fields if number == 2):
        labels = {strings[label[1][0]]: strings[label[2][0]]
                  for label in map(dict_of, sample[3])}
        value = sample[2][0]
        seen[labels["event"]] += value if isinstance(value, int) else varint(value, 0)[0]
    return seen


def dict_of(data):
    """The fields of a message by their numbers."""
    fields = collections.defaultdict(list)
    for number, value in message(data):
        fields[number].append(value)
    return fields


def main():
    """Compares."""
    stackmap, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    capture = str(directory / "mixed.data")

    def run(*arguments):
        result = subprocess.run([stackmap, *arguments], check=True, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL)
        return result.stdout

    with gzip.open(directory / "mixed.trace.gz", "rt", errors="replace") as file:
        events = truth(file.read())
    counts, total = by_event(events), len(events)
    failed = 0

    def same(what, got, want):
        nonlocal failed
        if got == want:
            print(f"ok - {what}")
            return
        failed += 1
        print(f"not ok - {what}")
        if isinstance(want, collections.Counter):
            print(f"# too many: {dict((got - want).most_common(5))}")
            print(f"# missing: {dict((want - got).most_common(5))}")
        else:
            print(f"# got {str(got)[:300]}\n# want {str(want)[:300]}")

    systems = {"kmalloc", "sched_switch", "timer_start", "softirq_entry", "sys_enter_openat",
               "sys_exit_openat"}
    same("the trace has kmem, sched, timer, irq and syscalls", systems - counts.keys(), set())

    ours = json.loads(run("export", "--format", "json", capture))
    for event in ours["events"]:
        event.setdefault("stack", None)
    same("json: events and their stacks", by_stack(ours["events"]), by_stack(events))

    def who(events):
        return sorted((event["time"], event["cpu"], event["pid"], event["event"])
                      for event in events)

    same("json: times, CPUs and tasks", who(ours["events"]), who(events))

    folded = collections.Counter()
    for line in run("folded", "--plumbing" if "--plumbing" in sys.argv else "--by", "event",
                    capture).decode().splitlines():
        stack, count = line.rsplit(" ", 1)
        folded[stack.split(";")[0]] += int(count)
    same("folded: events", folded, counts)

    svg = run("flame", "-o", "-", capture).decode()
    found = re.search(r"<title>all \(([\d,]+) ", svg)
    same("flame: all", int(found[1].replace(",", "")), total)

    same("pprof: events", pprof(run("export", "--format", "pprof", capture)), counts)

    profile = json.loads(run("export", "--format", "firefox", capture))
    markers = collections.Counter()
    samples = 0
    for thread in profile["threads"]:
        strings = thread.get("stringArray") or profile["shared"]["stringArray"]
        markers.update(strings[name] for name in thread["markers"]["name"])
        samples += len(thread["samples"]["stack"])
    same("firefox: markers", markers, counts)
    same("firefox: samples", samples, total)

    report = run("report", "--top", "1000000", "--depth", "1", capture).decode()
    # A heading for each event: its name, how often it came, its share.
    heads = re.findall(r"^(\S+): (\d+) events?$", report, re.M)
    same("report: events", collections.Counter({name: int(count) for name, count in heads}), counts)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
