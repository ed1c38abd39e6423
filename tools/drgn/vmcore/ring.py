# SPDX-License-Identifier: GPL-2.0
"""The ring buffers of ftrace: their pages, and the records on a page."""

import dataclasses
import struct

from drgn import FaultError, Object, container_of
from drgn.helpers.linux.list import list_for_each_entry

from . import DAMAGE, Problem, shown, walk

# kernel/trace/ring_buffer.c: what the lowest bits of a pointer to the next page say.
HEAD, FLAGS = 1, 3
# Above the length of a page.
COMMIT_FLAGS = 3 << 30
# include/linux/ring_buffer.h: kinds of records.
PADDING, TIME_EXTEND, TIME_STAMP = 29, 30, 31
DELTA_BITS = 27
# What a time stamp record lacks.
STAMP_MISSING = 0xf8 << 56
# A page of a buffer has at most 2^ORDER_MAX pages of memory.
ORDER_MAX = 10


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of a CPU's buffer: the time at which it begins, its bytes, and its records."""

    time: int
    data: bytes
    records: tuple


def trace_arrays(prog):
    """All trace arrays by name; that of the top level has an empty one."""
    arrays = list_for_each_entry("struct trace_array", prog["ftrace_trace_arrays"].address_of_(), "list")
    return {shown(tr.name.string_()) if tr.name else "": tr for tr in walk(arrays, "instances of ftrace")}


def find(prog, name):
    """The trace array with this name."""
    arrays = trace_arrays(prog)
    if name not in arrays:
        known = ", ".join(sorted(filter(None, arrays))) or "none"
        raise Problem(f"there is no instance {name}", f"instances of this kernel: {known}")
    return arrays[name]


class Buffer:
    """The ring buffer of a trace array."""

    def __init__(self, tr):
        self.prog = tr.prog_
        self.tr = tr
        self._buffer = tr.array_buffer.buffer
        layout = self.prog.type("struct buffer_data_page")
        self.header, self.commit_offset = layout.member("data").offset, layout.member("commit").offset
        order = self._buffer.subbuf_order.value_()
        if not 0 <= order <= ORDER_MAX:
            raise Problem(f"the ring buffer is damaged: its pages have the order {order}")
        self.page_size = self.prog["PAGE_SIZE"].value_() << order
        clocks, number = self.prog["trace_clocks"], tr.clock_id.value_()
        if not 0 <= number < len(clocks):
            DAMAGE["clocks"].add(number)
            number = 0
        self.clock, self.counts_ns = clocks[number].name.string_().decode(), bool(clocks[number].in_ns)

    def cpus(self):
        """The CPUs that have a buffer, and it."""
        possible = self.prog["nr_cpu_ids"].value_()
        for cpu in range(possible):
            buffer = self._buffer.buffers[cpu]
            if buffer:
                yield cpu, buffer

    def _page(self, page, begin=0):
        """A page; records before `begin` were read by somebody. What cannot be read of it is left out."""
        address = page.page.value_()
        try:
            raw = self.prog.read(address, self.page_size)
        except FaultError:
            DAMAGE["pages of the buffer"].add(address)
            return Page(0, b"", ())
        time, = struct.unpack_from("<Q", raw)
        commit, = struct.unpack_from("<I", raw, self.commit_offset)
        commit &= ~COMMIT_FLAGS
        data = raw[self.header:self.header + commit]
        found, end = parse(time, data)
        if end < commit or begin > end:
            DAMAGE["ends of pages of the buffer"].add(address)
        old = [record for record in found if record[1] < begin]
        return Page(old[-1][0] if old else time, data[begin:end],
                    tuple((now, at - begin, record) for now, at, record in found[len(old):]))

    def pages(self, cpu_buffer):
        """The pages of a CPU that hold records, the oldest first.

        As the kernel's own readers do: the page that readers have taken out of the ring, then the ring from its
        head to the page that was committed to last. A page that a writer was just taking has nothing any more.
        """
        try:
            yield from self._pages(cpu_buffer)
        except FaultError:
            DAMAGE["parts of buffers of CPUs"].add(cpu_buffer.value_())

    def _pages(self, cpu_buffer):
        reader, last = cpu_buffer.reader_page, cpu_buffer.commit_page
        page = self._page(reader, reader.read.value_())
        if page.data:
            yield page
        if reader == last:
            return
        for page in self._ring(self._head(cpu_buffer)):
            content = self._page(page)
            if content.data:
                yield content
            if page == last:
                return

    def _ring(self, page):
        """The pages of a ring, from this one on. It has to be a ring."""
        seen = set()
        while page.value_() not in seen:
            seen.add(page.value_())
            yield page
            page, _ = self._next(page)
        raise FaultError("the ring buffer is no ring", page.value_())

    def _next(self, page):
        """The page after one in the ring, and the flags of the pointer to it."""
        pointer = page.list.next.value_()
        entry = Object(self.prog, page.list.next.type_, value=pointer & ~FLAGS)
        return container_of(entry, "struct buffer_page", "list"), pointer & FLAGS

    def _head(self, cpu_buffer):
        """The oldest page of the ring: the one that is flagged, or the one after it if it is being taken."""
        for page in self._ring(container_of(cpu_buffer.pages, "struct buffer_page", "list")):
            page, flags = self._next(page)
            if flags:
                return page if flags == HEAD else self._next(page)[0]
        raise FaultError("the ring buffer has no first page", cpu_buffer.value_())

    @staticmethod
    def stats(cpu_buffer):
        """What per_cpu/cpuN/stats shows."""
        names = ("entries", "overrun", "dropped_events", "commit_overrun", "entries_bytes")
        try:
            counts = {name: getattr(cpu_buffer, name).a.counter.value_() for name in names}
            read = cpu_buffer.read.value_()
        except FaultError:
            DAMAGE["parts of buffers of CPUs"].add(cpu_buffer.value_())
            counts, read = dict.fromkeys(names, 0), 0
        return {"entries": counts["entries"] - counts["overrun"] - read,
                "overrun": counts["overrun"], "bytes": counts["entries_bytes"],
                "dropped": counts["dropped_events"] + counts["commit_overrun"]}


def parse(time, data):
    """The records of a page: the time, where it begins, and the data of each; and where the last one ends that is whole."""
    found, at = [], 0
    while at + 4 <= len(data):
        begin = at
        word, = struct.unpack_from("<I", data, at)
        kind, delta = word & 31, word >> 5
        at += 4
        first, = struct.unpack_from("<I", data, at) if at + 4 <= len(data) else (0,)
        if kind == PADDING:
            if not delta:
                return found, len(data)
            time += delta
            at += first
            if first < 4:
                return found, begin
        elif kind == TIME_EXTEND:
            time += (first << DELTA_BITS) + delta
            at += 4
        elif kind == TIME_STAMP:
            stamp = (first << DELTA_BITS) + delta
            if time & STAMP_MISSING:
                stamp |= time & STAMP_MISSING
                stamp += 1 << 59 if stamp < time else 0
            time = stamp
            at += 4
        else:
            time += delta
            if kind:
                end = at + 4 * kind
            else:
                end, at = at + first, at + 4
            if at <= end <= len(data):
                found.append((time, begin, data[at:end]))
            at = end if at <= end else len(data) + 1
        if at > len(data):
            return found, begin
    return found, at
