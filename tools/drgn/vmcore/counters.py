# SPDX-License-Identifier: GPL-2.0
"""The counters: the texts of stack_map_stat and stack_map_user_stat.

The module has a list of them, each with its key and with what it was at the last reset. Those that are not in a map are
read where the module counts them; the few that the module computes are left out.
"""

import struct

from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.percpu import per_cpu

from .rust import CRATE, Vector, locked, number, published, static

# By what the map calls them.
OF_MAP = {"hits": "Hits", "inserts": "Inserts", "bytes_saved": "BytesSaved", "drop_full": "DropFull",
          "drop_pool": "DropPool", "drop_growing": "DropGrowing", "drop_probe": "DropProbe",
          "drop_contended": "DropContended", "drop_reset": "DropReset"}
# Statics of the module.
STATICS = {"drop_unwatched": "record::UNWATCHED", "drop_foreign": "record::FOREIGN",
           "unwind_verified": "unwind::VERIFIED", "unwind_mismatches": "unwind::MISMATCHES"}
# How a walk calls them.
OF_WALK = {"unwind_fast": "Fast", "unwind_slow_new": "New", "unwind_slow_text": "Text", "unwind_slow_odd": "Odd",
           "unwind_slow_regs": "Registers", "unwind_slow_return": "Return", "unwind_slow_stack": "Stack",
           "unwind_slow_whole": "Whole"}


class Counters:
    """The counters of a list of the module: COUNTERS or USER."""

    def __init__(self, prog, name, stacks):
        self.prog = prog
        self._totals = stacks.totals() if stacks else {}
        self.values = []
        for counter in static(prog, f"counters::{name}"):
            key = prog.read(counter.key.data_ptr.value_(), counter.key.length.value_()).decode().rstrip(":")
            value = self._value(key)
            if key not in OF_MAP and value is not None:
                # The variant of one that is counted elsewhere: a function, then the count at the last reset.
                source = counter.source
                _, before = struct.unpack("<QQ", prog.read(source.address_, source.type_.size))
                value = max(value - before, 0)
            if value is not None:
                self.values.append((key, value))

    def _value(self, key):
        """The count of a counter since the module was loaded, or of the map since its reset; None: it is computed."""
        prog = self.prog
        if key in OF_MAP:
            return self._totals.get(OF_MAP[key], 0)
        if key in STATICS:
            return number(static(prog, STATICS[key]))
        if key == "drop_nested":
            return prog["stack_nested"].counter.value_()
        if key == "drop_missed":
            return prog["hook_missed"].value_() + prog["hook_kprobe"].nmissed.value_()
        if key in OF_WALK:
            return self._walked(OF_WALK[key])
        constant = f"STACKMAP_USER_{key.upper()}"
        if constant in prog:
            at = prog[constant].value_()
            return sum(per_cpu(prog["user_counts"], cpu).nr[at].value_() for cpu in for_each_possible_cpu(prog))
        return None

    def _walked(self, name):
        walker = published(static(self.prog, "unwind::WALKER"))
        kinds = self.prog.type(f"enum {CRATE}::unwind::unwinder::WalkCounter").enumerators
        at = {kind: value for kind, value in kinds}[name]
        whole = number(static(self.prog, "unwind::UNWATCHED")) if name == "Whole" else 0
        notes = Vector(walker.notes) if walker is not None else ()
        return whole + sum(number(note.counts[at]) for note in notes)


def stat(prog, stacks):
    """The text of stack_map_stat."""
    counters = Counters(prog, "COUNTERS", stacks).values
    successes = sum(value for key, value in counters if key in ("hits", "inserts"))
    drops = sum(value for key, value in counters if key.startswith("drop_"))
    control = locked(static(prog, "control::CONTROL"))
    # Before the map is made, it is known how large it will be.
    bits = control.bits.value_()
    before_walks = [(key, value) for key, value in counters if not key.startswith("unwind_")]
    yield f"{'entries:':<16}{stacks.entries if stacks else 0} / {1 << bits}\n"
    rows = [("table_size", 2 << bits), ("successes", successes), ("drops", drops)]
    if successes + drops:
        rows.append(("success_rate", f"{100 * successes // (successes + drops)}%"))
    rows += [*before_walks, ("pool_bytes", stacks.pool_bytes if stacks else 0),
             ("table_bytes", stacks.table_bytes if stacks else 0)]
    hooks = {value: name.lower() for name, value in control.hook.type_.enumerators}
    rows += [("bits", bits), ("hook", hooks.get(control.hook.value_(), "?"))]
    for key, value in rows:
        yield f"{key + ':':<16}{value}\n"
    for key, value in counters:
        if key.startswith("unwind_"):
            yield f"{key + ':':<20}{value}\n"


def user_stat(prog, users):
    """The text of stack_map_user_stat."""
    yield f"{'entries:':<20}{users.map.entries if users.map else 0} / {users.map.capacity if users.map else 0}\n"
    rows = [*Counters(prog, "USER", users.map).values, ("binaries", len(users.binaries)), ("files", users.files),
            ("pool_bytes", users.map.pool_bytes if users.map else 0),
            ("table_bytes", users.map.table_bytes if users.map else 0)]
    for key, value in rows:
        yield f"{key + ':':<20}{value}\n"
