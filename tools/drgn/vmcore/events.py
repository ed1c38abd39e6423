# SPDX-License-Identifier: GPL-2.0
"""The kinds of events: their fields, as the kernel describes them, and the files that describe them in tracefs."""

import dataclasses
import struct

from drgn import FaultError, Object
from drgn.helpers.linux.list import list_for_each_entry

from . import DAMAGE, shown, walk


# Fields that are addresses, whatever their type.
ADDRESSES = ("ip", "parent_ip", "call_site", "func", "__probe_ip", "__probe_func", "__probe_ret_ip")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of an event."""

    type: str
    name: str
    offset: int
    size: int
    signed: bool
    len: int

    @classmethod
    def read(cls, obj):
        """A field from a `struct ftrace_event_field`."""
        return cls(text(obj.type), text(obj.name), obj.offset.value_(), obj.size.value_(), bool(obj.is_signed),
                   obj.len.value_())

    def line(self):
        """Its line of a format file."""
        kind, name = self.type, self.name
        if "[" in kind and not kind.startswith("__data_loc"):
            kind, name = kind.partition("[")[0], f"{name}[{self.len or ''}]"
        return f"\tfield:{kind} {name};\toffset:{self.offset};\tsize:{self.size};\tsigned:{self.signed:d};\n"

    def number(self, data):
        """The value, where it is one number."""
        return int.from_bytes(data[self.offset:self.offset + self.size], "little", signed=self.signed)

    def show(self, data, names):
        """The value as text."""
        if self.type.startswith(("__data_loc", "__rel_loc")):
            where = int.from_bytes(data[self.offset:self.offset + 4], "little")
            begin = where & 0xffff
            if self.type.startswith("__rel_loc"):
                begin += self.offset + self.size
            return self._array(data[begin:begin + (where >> 16)], self.type)
        if "[" in self.type or self.size not in (1, 2, 4, 8):
            return self._array(data[self.offset:self.offset + self.size] if self.size else data[self.offset:], self.type)
        value = self.number(data)
        if self.type.endswith("*") or self.name in ADDRESSES:
            value &= (1 << 8 * self.size) - 1
            return names.current(value) or f"{value:#x}"
        return str(value)

    @staticmethod
    def _array(data, kind):
        if "char" in kind and "unsigned char" not in kind:
            return shown(data.partition(b"\0")[0])
        return data.hex() or "{}"


@dataclasses.dataclass(frozen=True)
class Event:
    """A kind of events."""

    id: int
    system: str
    name: str
    fields: tuple
    print_fmt: str

    def field(self, name):
        """The field of this name."""
        return next(field for field in self.fields if field.name == name)


def text(pointer):
    """The string at a pointer; empty where there is none."""
    return pointer.string_().decode(errors="replace") if pointer else ""


class Events:
    """All kinds of events, by the number that a record has."""

    def __init__(self, prog):
        self.prog = prog
        self.common = tuple(self._fields(prog["ftrace_common_fields"].address_of_()))
        self._by_id = {}
        calls = list_for_each_entry("struct trace_event_call", prog["ftrace_events"].address_of_(), "list")
        for call in walk(calls, "kinds of events"):
            self._by_id.setdefault(call.event.type.value_(), call)
        self._read = {}

    def get(self, number):
        """The kind with this number, or None."""
        if number not in self._read:
            call = self._by_id.get(number)
            try:
                self._read[number] = None if call is None else self._event(number, call)
            except FaultError:
                DAMAGE["kinds of events"].add(number)
                self._read[number] = None
        return self._read[number]

    def _fields(self, head):
        # The kernel adds each field in front of those before it.
        fields = walk(list_for_each_entry("struct ftrace_event_field", head, "link"), "fields of events")
        return reversed([Field.read(obj) for obj in fields])

    def _event(self, number, call):
        kind = call.member_("class")
        head = kind.fields.address_of_()
        if kind.get_fields and kind.get_fields.value_() == self.prog["syscall_get_enter_fields"].address_:
            metadata = Object(self.prog, self.prog.type("struct syscall_metadata"), address=call.data.value_())
            head = metadata.enter_fields.address_of_()
        flags = call.flags.value_()
        name = call.name
        if flags & self.prog["TRACE_EVENT_FL_TRACEPOINT"] and not flags & self.prog["TRACE_EVENT_FL_CUSTOM"]:
            name = call.tp.name
        return Event(number, text(kind.system), text(name), tuple(self._fields(head)), text(call.print_fmt))

    def format(self, event):
        """The format file of a kind."""
        lines = [f"name: {event.name}\nID: {event.id}\nformat:\n", *(field.line() for field in self.common), "\n",
                 *(field.line() for field in event.fields), f"\nprint fmt: {event.print_fmt}\n"]
        return "".join(lines)

    def printk_formats(self):
        """The lines of printk_formats: strings that events name by their address."""
        prog = self.prog
        pointers = []
        for name in ("trace_bprintk_fmt", "tracepoint_str"):
            try:
                begin, end = (prog.symbol(f"__{part}___{name}").address for part in ("start", "stop"))
            except LookupError:
                continue
            pointers += struct.unpack(f"<{(end - begin) // 8}Q", prog.read(begin, end - begin))
        if "trace_bprintk_fmt_list" in prog:
            head = prog["trace_bprintk_fmt_list"].address_of_()
            entries = list_for_each_entry("struct trace_bprintk_fmt", head, "list")
            pointers += [entry.fmt.value_() for entry in walk(entries, "formats of trace_printk()")]
        for pointer in pointers:
            try:
                string = prog.read_c_string(pointer)
            except FaultError:
                continue
            string = string.decode(errors="replace")
            for char, escape in (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ('"', '\\"')):
                string = string.replace(char, escape)
            yield f'{pointer:#x} : "{string}"\n'


class Tasks:
    """The names of tasks: those that ftrace has saved, and those of tasks that are there."""

    def __init__(self, prog):
        self.prog = prog
        self._saved = prog["savedcmd"]
        self._tgids = prog["tgid_map"]
        self._known = {0: "<idle>"}

    def comm(self, pid):
        """The name of a task; `<...>` if it is not known."""
        if pid not in self._known:
            try:
                self._known[pid] = self._look_up(pid) or "<...>"
            except FaultError:
                DAMAGE["names of tasks"].add(pid)
                self._known[pid] = "<...>"
        return self._known[pid]

    def _look_up(self, pid):
        saved = self._saved
        size = saved.map_pid_to_cmdline.type_.length - 1 if saved else 0
        if saved and pid > 0:
            index = saved.map_pid_to_cmdline[pid & (size - 1)].value_()
            if index < saved.cmdline_num.value_() and saved.map_cmdline_to_pid[index].value_() == pid:
                length = self.prog.type("struct task_struct").member("comm").type.length
                data = self.prog.read(saved.saved_cmdlines.address_ + index * length, length)
                return shown(data.partition(b"\0")[0])
        return None

    def tgid(self, pid):
        """The process of a task, if ftrace has saved it; 0 otherwise."""
        if not self._tgids or not 0 < pid <= self.prog["tgid_map_max"].value_():
            return 0
        try:
            return self._tgids[pid].value_()
        except FaultError:
            DAMAGE["processes of tasks"].add(pid)
            return 0
