# SPDX-License-Identifier: GPL-2.0
"""A capture, as `stackmap record` writes it, of what is in memory.

Documentation/abi/capture.rst lists the members, tools/stackmap/src/capture/ of the tool writes and reads them.
"""

import contextlib
import json
import os
import stat
import struct
import sys
import tempfile
import zipfile

from drgn.helpers.linux.module import for_each_module
from drgn.helpers.linux.timekeeping import ktime_get_real_seconds

from . import Problem, counters, shown, walk
from .events import Events, Tasks
from .rust import locked, static

MAGIC, MAGIC_USER, VERSION = 0x464d5342, 0x554d5346, 2
HEADER_EVENT = """# compressed entry header
\ttype_len    :    5 bits
\ttime_delta  :   27 bits
\tarray       :   32 bits

\tpadding     : type == 29
\ttime_extend : type == 30
\ttime_stamp : type == 31
\tdata max type_len  == 28
"""


def stack_map_bin(magic, stacks, load_id):
    """The binary export of a map."""
    parts = [struct.pack("<4I", s.id, len(s.frames), s.refs, 0) + struct.pack(f"<{len(s.frames)}Q", *s.frames)
             for s in (stacks.stacks() if stacks else ())]
    return struct.pack("<4I", magic, VERSION, len(parts), load_id) + b"".join(parts)


@contextlib.contextmanager
def output(path):
    """The file that a capture is written to; "-" is standard output.

    A regular file, also one that a link leads to, is replaced when the new one is complete. Devices and FIFOs are written to,
    and so are links in /dev and /proc, as that to standard output. What another user may have put into a directory that others
    can write to is neither followed nor written to.
    """
    if path == "-":
        yield sys.stdout.buffer
        return
    about, trusted = os.stat(os.path.dirname(path) or "."), (0, os.geteuid())
    shared = about.st_mode & 0o1002 or about.st_uid not in trusted
    found = os.lstat(path) if os.path.lexists(path) else None
    is_link = found and stat.S_ISLNK(found.st_mode)
    if found and shared and not stat.S_ISREG(found.st_mode) and (is_link or found.st_uid not in trusted):
        raise Problem(f"{path} may be a link or a pipe that another user has made, in a directory that others can write to",
                      "remove it, or write to another path")
    if found and (not os.path.isfile(path) or is_link and path.startswith(("/dev/", "/proc/"))):
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY | (os.O_NOFOLLOW if shared else 0)
        with os.fdopen(os.open(path, flags), "wb") as file:
            yield file
        return
    path = os.path.realpath(path)
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".stackmap-", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


class Capture:
    """What is written of a ring buffer and the maps."""

    def __init__(self, buffer, stacks, users, names):
        self.prog = buffer.prog
        self.buffer, self.stacks, self.users, self.names = buffer, stacks, users, names
        self.events, self.tasks = Events(self.prog), Tasks(self.prog)
        self.kinds, self.pids, self.times = set(), set(), []
        self.load_id = locked(static(self.prog, "control::CONTROL")).load_id.value_()

    def write(self, path):
        """Writes it. Returns the number of records."""
        with output(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            return self._members(archive)

    def _members(self, archive):
        pages, nr = self._pages()
        member = archive.writestr
        member("trace_pipe_raw", pages)
        member("stack_map_bin", stack_map_bin(MAGIC, self.stacks, self.load_id))
        member("stack_map_stat", "".join(counters.stat(self.prog, self.stacks)))
        if self.users.map:
            member("stack_map_user_bin", stack_map_bin(MAGIC_USER, self.users.map, self.load_id))
            binaries = enumerate(self.users.binaries, self.users.first)
            member("stack_map_binaries", "".join(binary.line(index) for index, binary in binaries))
            member("stack_map_user_stat", "".join(counters.user_stat(self.prog, self.users)))
        member("events/header_page", self._header_page())
        member("events/header_event", HEADER_EVENT)
        for event in filter(None, map(self.events.get, sorted(self.kinds))):
            member(f"events/{event.system}/{event.name}/format", self.events.format(event))
        member("printk_formats", "".join(self.events.printk_formats()))
        comms = {pid: self.tasks.comm(pid) for pid in self.pids}
        tgids = {pid: self.tasks.tgid(pid) for pid in self.pids}
        member("tasks.json", json.dumps({"comms": {pid: comm for pid, comm in comms.items() if comm != "<...>"},
                                         "tgids": {pid: tgid for pid, tgid in tgids.items() if tgid}}))
        member("kallsyms", "".join(self.names.kallsyms()))
        member("modules", "".join(self._modules()))
        member("manifest.json", json.dumps(self._manifest(), indent=2))
        return nr

    def _pages(self):
        """The pages in the order of their first records, and the number of records."""
        pages, nr = [], 0
        for cpu, cpu_buffer in self.buffer.cpus():
            for page in self.buffer.pages(cpu_buffer):
                first = None
                for time, _, data in page.records:
                    first, nr = time if first is None else first, nr + 1
                    if len(data) >= 8:
                        kind, pid = struct.unpack_from("<HxxI", data)
                        self.kinds.add(kind)
                        self.pids.add(pid)
                if first is not None:
                    self.times += [first, time]
                    raw = struct.pack("<QQ", page.time, len(page.data)) + page.data
                    pages.append((first, cpu, struct.pack("<2I", cpu, len(raw)) + raw))
        return b"".join(raw for _, _, raw in sorted(pages)), nr

    def _header_page(self):
        size = self.buffer.page_size - self.buffer.header
        return ("\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
                "\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
                "\tfield: char overwrite;\toffset:8;\tsize:1;\tsigned:0;\n"
                f"\tfield: char data;\toffset:16;\tsize:{size};\tsigned:0;\n")

    def _modules(self):
        modules = walk(for_each_module(self.prog), "modules")
        for module, table in zip(modules, self.names.modules):
            name = table.module
            size = sum(end - begin for begin, end in table.ranges)
            begin = module.mem[self.prog["MOD_TEXT"].value_()].base.value_()
            yield f"{name} {size} 0 - Live {begin:#018x}\n"

    def _manifest(self):
        prog = self.prog
        uts = prog["init_uts_ns"].name
        build_id = prog.main_module().build_id
        cpus = [{"cpu": cpu, **self.buffer.stats(cpu_buffer)} for cpu, cpu_buffer in self.buffer.cpus()]
        kinds = filter(None, map(self.events.get, self.kinds))
        recorded = {"events": sorted(f"{kind.system}:{kind.name}" for kind in kinds if kind.system != "ftrace"),
                    "functions": [], "command": []}
        duration = max(self.times) - min(self.times) if self.times and self.buffer.counts_ns else 0
        if self.buffer.tr.name:
            recorded["instance"] = shown(self.buffer.tr.name.string_())
        manifest = {
            "format": "stackmap-capture", "version": 2, "tool": "tools/drgn/stackmap.py",
            "time": ktime_get_real_seconds(prog).value_(), "duration_ns": duration,
            "release": uts.release.string_().decode(), "machine": uts.machine.string_().decode(),
            "build_id": build_id.hex() if build_id else None,
            "kaslr_base": f"{prog.symbol('_text').address:#x}",
            "load_id": self.load_id, "big_endian": False, "no_args": False, "clock": self.buffer.clock,
            "modules_changed": False, "recorded": recorded, "cpus": cpus}
        if self.stacks:
            bits = self.stacks.slots.bit_length() - 1
            manifest["generation"], manifest["slot_bits"] = self.stacks.generation >> bits, bits
        return manifest
