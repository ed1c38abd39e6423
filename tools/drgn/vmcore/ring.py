# SPDX-License-Identifier: GPL-2.0
"""The ring buffers of ftrace: their pages, and the records on a page."""

import dataclasses
import struct

from drgn import FaultError, Object, container_of
from drgn.helpers.linux.list import list_for_each_entry

from . import Problem

# kernel/trace/ring_buffer.c: what the lowest bits of a pointer to the next page say.
HEAD, FLAGS = 1, 3
# Above the length of a page.
COMMIT_FLAGS = 3 << 30
# include/linux/ring_buffer.h: kinds of records.
PADDING, TIME_EXTEND, TIME_STAMP = 29, 30, 31
DELTA_BITS = 27
# What a time stamp record lacks.
STAMP_MISSING = 0xf8 << 56


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of a CPU's buffer: the time at which it begins, and its records as they are in memory."""

    time: int
    data: bytes


def trace_arrays(prog):
    """All trace arrays by name; that of the top level has an empty one."""
    arrays = list_for_each_entry("struct trace_array", prog["ftrace_trace_arrays"].address_of_(), "list")
    return {tr.name.string_().decode() if tr.name else "": tr for tr in arrays}


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
        # Pages that cannot be read, by their addresses.
        self.damaged = set()
        self._buffer = tr.array_buffer.buffer
        layout = self.prog.type("struct buffer_data_page")
        self.header, self.commit_offset = layout.member("data").offset, layout.member("commit").offset
        self.page_size = self.prog["PAGE_SIZE"].value_() << self._buffer.subbuf_order.value_()
        clock = self.prog["trace_clocks"][tr.clock_id]
        self.clock, self.counts_ns = clock.name.string_().decode(), bool(clock.in_ns)

    def cpus(self):
        """The CPUs that have a buffer, and it."""
        possible = self.prog["nr_cpu_ids"].value_()
        for cpu in range(possible):
            buffer = self._buffer.buffers[cpu]
            if buffer:
                yield cpu, buffer

    def _page(self, page, begin=0):
        """A page; records before `begin` were read by somebody. One that cannot be read has none."""
        try:
            raw = self.prog.read(page.page.value_(), self.page_size)
        except FaultError:
            self.damaged.add(page.page.value_())
            return Page(0, b"")
        time, = struct.unpack_from("<Q", raw)
        commit, = struct.unpack_from("<I", raw, self.commit_offset)
        end = min(commit & ~COMMIT_FLAGS, self.page_size - self.header)
        data = raw[self.header:self.header + end]
        if begin:
            for now, at, _ in records(Page(time, data)):
                if at >= begin:
                    break
                time = now
            data = data[begin:]
        return Page(time, data)

    def pages(self, cpu_buffer):
        """The pages of a CPU that hold records, the oldest first.

        As the kernel's own readers do: the page that readers have taken out of the ring, then the ring from its
        head to the page that was committed to last. A page that a writer was just taking has nothing any more.
        """
        reader, last = cpu_buffer.reader_page, cpu_buffer.commit_page
        page = self._page(reader, reader.read.value_())
        if page.data:
            yield page
        if reader == last:
            return
        page = self._head(cpu_buffer)
        for _ in range(cpu_buffer.nr_pages.value_()):
            content = self._page(page)
            if content.data:
                yield content
            if page == last:
                return
            page, _ = self._next(page)

    def _next(self, page):
        """The page after one in the ring, and the flags of the pointer to it."""
        pointer = page.list.next.value_()
        entry = Object(self.prog, page.list.next.type_, value=pointer & ~FLAGS)
        return container_of(entry, "struct buffer_page", "list"), pointer & FLAGS

    def _head(self, cpu_buffer):
        """The oldest page of the ring: the one that is flagged, or the one behind it if it is being taken."""
        page = container_of(cpu_buffer.pages, "struct buffer_page", "list")
        for _ in range(cpu_buffer.nr_pages.value_() + 1):
            page, flags = self._next(page)
            if flags:
                return page if flags == HEAD else self._next(page)[0]
        raise Problem(f"the ring buffer of CPU {cpu_buffer.cpu.value_()} has no first page: it is damaged")

    @staticmethod
    def stats(cpu_buffer):
        """What per_cpu/cpuN/stats shows."""
        counts = {name: getattr(cpu_buffer, name).a.counter.value_()
                  for name in ("entries", "overrun", "dropped_events", "commit_overrun", "entries_bytes")}
        return {"entries": counts["entries"] - counts["overrun"] - cpu_buffer.read.value_(),
                "overrun": counts["overrun"], "bytes": counts["entries_bytes"],
                "dropped": counts["dropped_events"] + counts["commit_overrun"]}


def records(page):
    """The records of a page: the time, where it begins, and the data."""
    data, time, at = page.data, page.time, 0
    while at + 4 <= len(data):
        begin = at
        word, = struct.unpack_from("<I", data, at)
        kind, delta = word & 31, word >> 5
        at += 4
        first, = struct.unpack_from("<I", data, at) if at + 4 <= len(data) else (0,)
        if kind == PADDING:
            if not delta:
                return
            time += delta
            at += first
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
            if end > len(data) or end < at:
                return
            yield time, begin, data[at:end]
            at = end
