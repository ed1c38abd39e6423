#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""readers.py DIR: reads what readers.sh exported, by the documented formats. Prints TAP."""

import collections
import json
import pathlib
import re
import sys


def truth(directory):
    """What the JSON export says: each event, with the names of its stack, outermost first."""
    ours = json.loads((directory / "json").read_text())
    stacks = {stack["id"]: [label(frame) for frame in stack["frames"]] for stack in ours["stacks"]}
    events = []
    for event in ours["events"]:
        names = stacks[event["stack"]] if "stack" in event else event.get("frames")
        events.append((event, tuple(reversed(names or ["(no stack)"]))))
    assert events
    return events


def label(frame):
    """How a frame is called."""
    return frame["function"] + (f" [{frame['module']}]" if "module" in frame else "")


def folded(directory, events):
    """As flamegraph.pl reads it: frames between semicolons, the count behind the last blank."""
    seen = collections.Counter()
    for line in (directory / "folded.text").read_text().splitlines():
        stack, count = line.rsplit(" ", 1)
        event, *names = stack.split(";")
        # ui.perfetto.dev takes a file for this format by its first lines: digits behind the last
        # blank, a semicolon before it, and no '#' at the beginning.
        assert names and all(names) and count.isdigit() and int(count) > 0, line
        assert not line[0].isspace() and line[0] != "#", line
        seen[event, tuple(names)] += int(count)
    assert seen == collections.Counter((event["event"], names) for event, names in events)


def firefox(directory, events):
    """The processed format of the Firefox Profiler: for each thread, tables made of columns."""
    profile = json.loads((directory / "firefox").read_text())
    assert profile["meta"]["preprocessedProfileVersion"] >= 24
    seen = collections.Counter()
    markers = 0
    for thread in profile["threads"]:
        strings, stacks, frames = thread["stringArray"], thread["stackTable"], thread["frameTable"]
        for table in (stacks, frames, thread["funcTable"], thread["samples"], thread["markers"]):
            columns = [column for column in table.values() if isinstance(column, list)]
            assert all(len(column) == table["length"] for column in columns)
        assert thread["samples"]["time" if "time" in thread["samples"] else "timeDeltas"]
        for stack in thread["samples"]["stack"]:
            names = []
            while stack is not None:
                function = frames["func"][stacks["frame"][stack]]
                names.append(strings[thread["funcTable"]["name"][function]])
                stack = stacks["prefix"][stack]
            seen[tuple(reversed(names)) or ("(no stack)",)] += 1
        for name, data in zip(thread["markers"]["name"], thread["markers"]["data"]):
            markers += 1
            assert strings[name] and data["type"] == "ftrace"
    assert seen == collections.Counter(names for _, names in events)
    assert markers == len(events)


def message(lines):
    """A message as protoc prints it: the values of each field."""
    fields = collections.defaultdict(list)
    for line in lines:
        line = line.strip()
        if line == "}":
            break
        if line.endswith(" {"):
            fields[line[:-2]].append(message(lines))
        else:
            name, value = line.split(": ", 1)
            is_text = value.startswith('"')
            value = value[1:-1].encode().decode("unicode_escape") if is_text else value
            assert is_text or not name.isdigit(), f"no field of profile.proto: {line}"
            fields[name].append(value if is_text else int(value, 0) if value[-1] != "e" else value)
    return fields


def first(fields, name):
    """The value of a field that may be left out."""
    return fields[name][0] if fields[name] else 0


def pprof(directory, events):
    """pprof, with what its own Profile.CheckValid() asks for."""
    profile = message(iter((directory / "pprof.text").read_text().splitlines()))
    strings = profile["string_table"]
    assert strings[0] == ""
    tables = {}
    for name in ("mapping", "location", "function"):
        tables[name] = {first(entry, "id"): entry for entry in profile[name]}
        assert 0 not in tables[name] and len(tables[name]) == len(profile[name]), name
    for location in profile["location"]:
        mapping = first(location, "mapping_id")
        assert not mapping or mapping in tables["mapping"]
        assert all(first(line, "function_id") in tables["function"] for line in location["line"])
        if mapping and first(location, "address"):
            start, limit = (first(tables["mapping"][mapping], key)
                            for key in ("memory_start", "memory_limit"))
            assert not limit or start <= first(location, "address") < limit, location
    kinds = [(strings[first(kind, "type")], strings[first(kind, "unit")])
             for kind in profile["sample_type"]]
    assert kinds == [("events", "count")], kinds

    seen = collections.Counter()
    for sample in profile["sample"]:
        assert len(sample["value"]) == len(kinds)
        labels = {strings[first(entry, "key")]: strings[first(entry, "str")]
                  for entry in sample["label"]}
        names = []
        for location in sample["location_id"]:
            for line in tables["location"][location]["line"]:
                names.append(strings[first(tables["function"][first(line, "function_id")], "name")])
        names = tuple(reversed(names)) or ("(no stack)",)
        seen[labels["event"], labels["comm"], names] += sample["value"][0]
    # Modules are mappings there, not parts of names.
    bare = collections.Counter()
    for event, names in events:
        names = tuple(re.sub(r" \[.*\]$", "", name) for name in names)
        bare[event["event"], event["comm"], names] += 1
    plain = collections.Counter()
    for (event, comm, names), count in seen.items():
        plain[event, comm, tuple(re.sub(r" \[.*\]$", "", name) for name in names)] += count
    assert plain == bare


# A line of ftrace's text as ui.perfetto.dev documents and takes it: a task and its pid, perhaps
# its process, the CPU, perhaps flags, seconds, the event; lines that begin with '#' are comments.
EVENT = re.compile(r"-(\d+)\s+(?:\(\s*(?:\d+|-+)\)\s+)?\[(\d+)\]\s+(?:[a-zA-Z0-9.]{1,5}\s+)?"
                   r"(\d+\.\d+):\s+(\S+):\s?(.*)")


def perfetto(directory, events):
    """The text of ftrace."""
    text = (directory / "resolved").read_text()
    assert "# tracer" in text[:4096]
    seen = []
    for line in text.splitlines():
        match = EVENT.search(line)
        if match and not line.startswith("#") and not line.startswith(" => "):
            seen.append((line[:match.start()].strip(), int(match[1]), int(match[2]), match[3],
                         match[4], match[5]))
    # Calls of functions are no events in this format.
    wanted = [(event["comm"], event["pid"], event["cpu"], event["time"], event["event"],
               event["fields"]) for event, _ in events if not event["event"].endswith("()")]
    assert sorted(seen) == sorted(wanted)


def main():
    """Reads everything with everything."""
    number = failed = 0
    for directory in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        if not directory.is_dir():
            continue
        events = truth(directory)
        for reader in (folded, firefox, pprof, perfetto):
            number += 1
            try:
                reader(directory, events)
                print(f"ok {number} - {directory.name}: {reader.__name__}, {len(events)} events")
            except (AssertionError, KeyError, IndexError, ValueError) as error:
                failed += 1
                print(f"not ok {number} - {directory.name}: {reader.__name__}")
                print(f"# {type(error).__name__} in line {error.__traceback__.tb_next.tb_lineno}: "
                      f"{str(error)[:500]}")
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
