# SPDX-License-Identifier: GPL-2.0
"""The texts: maps as tracefs shows them, and the events of a trace with their stacks."""

import heapq
import struct

from .events import Events, Tasks

# enum trace_flag_type.
IRQS_OFF, RESCHED_LAZY, RESCHED, HARDIRQ, SOFTIRQ, PREEMPT_RESCHED, NMI, BH_OFF = (1 << bit for bit in range(8))
RESCHEDS = {RESCHED | RESCHED_LAZY | PREEMPT_RESCHED: "B", RESCHED | PREEMPT_RESCHED: "N",
            RESCHED_LAZY | PREEMPT_RESCHED: "L", RESCHED | RESCHED_LAZY: "b", RESCHED: "n", PREEMPT_RESCHED: "p",
            RESCHED_LAZY: "l"}


def flags_text(flags, count):
    """The five characters of a trace that tell of interrupts and preemption."""
    off = {IRQS_OFF | BH_OFF: "D", IRQS_OFF: "d", BH_OFF: "b"}.get(flags & (IRQS_OFF | BH_OFF), ".")
    resched = RESCHEDS.get(flags & (RESCHED | RESCHED_LAZY | PREEMPT_RESCHED), ".")
    context = {NMI | HARDIRQ: "Z", HARDIRQ | SOFTIRQ: "H", HARDIRQ: "h", SOFTIRQ: "s"}
    if flags & NMI:
        irq = "Z" if flags & HARDIRQ else "z"
    else:
        irq = context.get(flags & (HARDIRQ | SOFTIRQ), ".")
    depth, migrate = count & 0xf, count >> 4
    return f"{off}{resched}{irq}{f'{depth:x}' if depth else '.'}{f'{migrate:x}' if migrate else '.'}"


def kernel_map(stacks, names, wanted=()):
    """The text of stack_map, or of some stacks only."""
    for stack in chosen(stacks, wanted):
        yield f"stack_id {stack.id} [ref {stack.refs}, depth {len(stack.frames)}]\n"
        for index, frame in enumerate(stack.frames):
            yield f"  [{index}] {names.frame(frame, stack, stacks.generation)}\n"
        yield "\n"


def user_map(users, wanted=()):
    """The text of stack_map_user, or of some stacks only."""
    for stack in chosen(users.map, wanted):
        frames = list(users.frames(stack.frames))
        yield (f"user_stack_id {stack.id} [ref {stack.refs}, depth {len(frames)}, "
               f"{users.end(stack.frames)}]\n")
        process = users.process(stack.frames)
        for index, (binary, offset) in enumerate(frames):
            if binary is not None:
                yield f"  [{index}] {users.path(binary)}+{offset:#x}\n"
            else:
                yield f"  [{index}] {offset:#x}{'' if process is None else f' (process {process})'}\n"
        yield "\n"


def chosen(stacks, wanted):
    """All stacks of a map, or those of some ids."""
    if not wanted:
        return stacks.stacks() if stacks else ()
    return filter(None, (stacks.find(stack_id) for stack_id in wanted))


class Trace:
    """The events of a ring buffer."""

    def __init__(self, buffer, stacks, users, names):
        self.buffer = buffer
        self.stacks, self.users, self.names = stacks, users, names
        self.events, self.tasks = Events(buffer.prog), Tasks(buffer.prog)
        self._binds = {}
        bit = "TRACE_ITER_RECORD_TGID_BIT"
        self._shows_processes = bit in buffer.prog and buffer.tr.trace_flags >> buffer.prog[bit] & 1

    def _records(self, cpu, cpu_buffer):
        for page in self.buffer.pages(cpu_buffer):
            for time, _, data in page.records:
                if len(data) >= 8:
                    yield time, cpu, data

    def text(self, cpus=()):
        """The lines of the trace, the oldest event first."""
        buffers = [(cpu, cpu_buffer) for cpu, cpu_buffer in self.buffer.cpus() if not cpus or cpu in cpus]
        counts = [self.buffer.stats(cpu_buffer) for _, cpu_buffer in buffers]
        kept, lost = (sum(count[name] for count in counts) for name in ("entries", "overrun"))
        yield f"# entries-in-buffer/entries-written: {kept}/{kept + lost}   #P:{len(buffers)}\n#\n"
        self._learn_binds()
        streams = [self._records(cpu, cpu_buffer) for cpu, cpu_buffer in buffers]
        for time, cpu, data in heapq.merge(*streams, key=lambda record: record[:2]):
            yield from self._event(time, cpu, data)

    def _learn_binds(self):
        for cpu, cpu_buffer in self.buffer.cpus():
            for _, _, data in self._records(cpu, cpu_buffer):
                event = self.events.get(struct.unpack_from("<H", data)[0])
                if event and event.name == "user_stack_id" and event.system == "ftrace":
                    self._binds[event.field("cookie").number(data)] = event.field("user_stack_id").number(data)

    def _event(self, time, cpu, data):
        kind, flags, count, pid = struct.unpack_from("<HBBi", data)
        if self.buffer.counts_ns:
            micros = (time + 500) // 1000
            shown = f" {micros // 1000000:5d}.{micros % 1000000:06d}: "
        else:
            shown = f" {time:12d}: "
        context = (f"{self.tasks.comm(pid):>16}-{pid:<7} {self._process(pid)}[{cpu:03d}] "
                   f"{flags_text(flags, count)}{shown}")
        event = self.events.get(kind)
        if event is None:
            yield f"{context}[event {kind} of a module that is gone]\n"
            return
        show = getattr(self, f"_{event.system}_{event.name}", None)
        lines = show(event, data) if show else self._fields(event, data)
        yield f"{context}{next(lines)}\n"
        yield from (f"{line}\n" for line in lines)

    def _process(self, pid):
        """The column of the option record-tgid."""
        if not self._shows_processes:
            return ""
        tgid = self.tasks.tgid(pid)
        return f"({tgid:7d}) " if tgid else "(-------) "

    def _fields(self, event, data):
        fields = (f"{field.name}={field.show(data, self.names)}" for field in event.fields)
        yield f"{event.name}: {' '.join(fields)}".rstrip()

    def _ftrace_stack_id(self, event, data):
        return self._stack(event.field("stack_id").number(data))

    def _stack(self, stack_id):
        stack = self.stacks.find(stack_id) if self.stacks else None
        if stack is None:
            yield f"<stack_id {stack_id}> (gone)"
            return
        yield f"<stack_id {stack_id}>"
        yield from (f" => {self.names.frame(frame, stack, self.stacks.generation)}" for frame in stack.frames)

    def _ftrace_stack_id_user(self, event, data):
        yield from self._stack(event.field("stack_id").number(data))
        cookie = event.field("cookie").number(data)
        user_id = self._binds.get(cookie) or self.users.bound(cookie)
        stack = self.users.map.find(user_id) if user_id and self.users.map else None
        if stack is None:
            yield f"<user {cookie & 0xffffffff}:{cookie >> 32}>"
            return
        yield f"<user_stack_id {user_id}>"
        for binary, offset in self.users.frames(stack.frames):
            yield f" => {offset:#x}" if binary is None else f" => {self.users.path(binary)}[+{offset:#x}]"

    @staticmethod
    def _ftrace_user_stack_id(event, data):
        cookie = event.field("cookie").number(data)
        user_id = event.field("user_stack_id").number(data)
        yield f"<user_stack_id {user_id}> for {cookie & 0xffffffff}:{cookie >> 32}"

    def _ftrace_kernel_stack(self, event, data):
        yield "<stack trace>"
        begin = event.field("caller").offset
        size = event.field("size").number(data)
        nr = max(0, min(size, (len(data) - begin) // 8))
        frames = struct.unpack_from(f"<{nr}Q", data, begin) if nr else ()
        yield from (f" => {self.names.frame(frame)}" for frame in frames)

    def _ftrace_function(self, event, data):
        function, parent = (self.names.frame(event.field(name).number(data) & 2**64 - 1).partition("+")[0]
                            for name in ("ip", "parent_ip"))
        yield f"{function} <-{parent}"
