# SPDX-License-Identifier: GPL-2.0
"""The maps of stacks, as src/map/ of the module lays them out.

Where a field lies says the debug information of the module. What it does not say are the bits of words: those of a
slot and of an id, of references that a CPU holds back, and how long a chunk of the pool is. They are here, and
`Map.check` refuses a map that differs.
"""

import dataclasses
import struct

from drgn import Architecture, FaultError

from . import DAMAGE, Problem
from .rust import CRATE, Vector, number, published, static

# src/map/record.rs: the number of frames in the upper half of a slot.
NR_MASK = (1 << 11) - 1
# src/map/sys.rs: sizes.
CHUNK_WORDS = 32 * 1024
POOL_BYTES_PER_STACK = 2048
REFS_MAX = 2**31 - 1
# src/map/mod.rs.
BITS_MAX = 20


@dataclasses.dataclass(frozen=True)
class Stack:
    """A stack of a map: its id, its frames with the innermost first, and the epoch of its insert."""

    id: int
    refs: int
    frames: tuple
    epoch: int


class Map:
    """A map as it was when the machine stopped.

    A slot is empty or names a complete record: the module publishes a stack by one word. So a stack that was just
    being inserted is not there, and nothing is half there.
    """

    def __init__(self, obj, what):
        self.prog = obj.prog_
        # What its stacks are called.
        self._what = what
        self.capacity = number(obj.capacity)
        # The generation as bits of an id; 0 while a reset runs.
        self.generation = number(obj.state)
        self.entries = min(number(obj.entries), self.capacity)
        self._obj = obj
        self._slots = Vector(obj.slots)
        self._pool = obj.pool
        self._limit = number(obj.pool.limit)
        self._chunks = Vector(obj.pool.chunks)
        self._contexts = Vector(obj.contexts)
        self.check()
        self._words = self._slots.words()
        self._chunk_addresses = self._chunks.words()
        self._has_hints = bool(obj.pool.has_hints) and self.prog.platform.arch != Architecture.AARCH64
        self._moved = Vector(obj.refs).words()
        self._held = self._read_held()

    @classmethod
    def of(cls, prog, store):
        """The map of a store: KERNEL or USER. None: it was not made yet."""
        obj = published(static(prog, f"store::{store}").map)
        what = {"KERNEL": "stacks of the map", "USER": "user stacks"}[store]
        return None if obj is None else cls(obj, what)

    def check(self):
        """Refuses a map that is not laid out as this file says."""
        sane = (self.capacity and self.capacity & (self.capacity - 1) == 0
                and len(self._slots) == 2 * self.capacity
                and len(self._chunks) * CHUNK_WORDS * 8 == POOL_BYTES_PER_STACK * self.capacity
                and self._limit % CHUNK_WORDS == 0 and self._limit // CHUNK_WORDS <= len(self._chunks)
                and self.generation & (2 * self.capacity - 1) == 0)
        if not sane:
            raise Problem("the map of this module has another layout than this script knows, or it is damaged",
                          "use the script of the same version of stackmap as the module")

    def _read_held(self):
        """The references that CPUs hold back, by slot."""
        context = self.prog.type(f"{CRATE}::map::context::Context")
        held = context.member("held")
        sets, ways = held.type.length, held.type.type.length
        one = (2 << BITS_MAX) // sets
        data, refs = self._contexts.bytes(), {}
        for begin in range(held.offset, len(data), context.size):
            for index, word in enumerate(struct.unpack_from(f"<{sets * ways}I", data, begin)):
                if word >= one:
                    slot = word % one * sets + index // ways
                    refs[slot] = refs.get(slot, 0) + word // one
        return refs

    @property
    def slots(self):
        """The number of slots of the table."""
        return len(self._slots)

    @property
    def pool_bytes(self):
        """Memory of the stacks."""
        return self._limit * 8

    @property
    def table_bytes(self):
        """Memory of the table and its references."""
        return len(self._slots) * 8 + len(self._moved) * 4

    def _read(self, slot, word):
        """The stack that a slot names; None if it cannot be read, which costs the others nothing."""
        nr, offset = word >> 32 & NR_MASK, word & 0xffffffff
        chunk, within = divmod(offset, CHUNK_WORDS)
        if offset == 0 or offset >= self._limit or within + 1 + nr > CHUNK_WORDS:
            DAMAGE[self._what].add(slot)
            return None
        try:
            data = self.prog.read(self._chunk_addresses[chunk] + 8 * within, 8 * (1 + nr))
        except FaultError:
            DAMAGE[self._what].add(slot)
            return None
        header, *frames = struct.unpack(f"<{1 + nr}Q", data)
        if self._has_hints:
            # The lower half of an address in the kernel's text says all of it.
            frames = [frame & 0xffffffff | (frame & 0x80000000 and 0xffffffff00000000) for frame in frames]
        refs = min(self._moved[slot], REFS_MAX) + self._held.get(slot, 0)
        return Stack(self.generation | slot, min(refs, REFS_MAX), tuple(frames), header & 0xffffffff)

    def stacks(self):
        """All stacks, in the order of stack_map. None of them is valid while a reset runs."""
        for slot, word in enumerate(self._words):
            stack = self._read(slot, word) if word and self.generation else None
            if stack:
                yield stack

    def find(self, stack_id):
        """The stack of an id. None: a reset has removed it, or it is of another load of the module."""
        slot = stack_id & (self.slots - 1)
        word = self._words[slot]
        if not word or not self.generation or self.generation | slot != stack_id:
            return None
        return self._read(slot, word)

    def totals(self):
        """What is counted in the map since its last reset, by the names of the enum `Counter`."""
        context = self.prog.type(f"{CRATE}::map::context::Context")
        names = [name for name, _ in self.prog.type(f"enum {CRATE}::map::context::MapCounter").enumerators]
        sums = dict.fromkeys(names, 0)
        moved = 0
        for ctx in self._contexts:
            moved += number(ctx.moved)
            for name, counter in zip(names, ctx.counters):
                sums[name] += number(counter)
        # Each event with an id is a reference, so hits have no counter of their own.
        sums["Hits"] = max(moved + sum(self._held.values()) - sums["Inserts"], 0)
        if context.member("counters").type.length != len(names):
            raise LookupError("the counters of the map are others")
        before = [number(word) for word in self._obj.before]
        return {name: max(sums[name] - old, 0) for name, old in zip(names, before)}
