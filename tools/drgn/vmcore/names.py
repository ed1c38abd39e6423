# SPDX-License-Identifier: GPL-2.0
"""The symbol names of frames: those of the kernel's own kallsyms, and those that the module has saved.

Names are the kernel's, so frames are shown as tracefs shows them, also those in modules that drgn has no file of.
"""

import bisect

from drgn import FaultError, SymbolKind
from drgn.helpers.linux.kallsyms import load_vmlinux_kallsyms, module_kallsyms
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.module import for_each_module, module_address_regions

from . import DAMAGE, shown, walk
from .rust import Vector, number, optional_arc, published, static

# What ftrace writes in the place of a frame in one of its trampolines.
TRAMPOLINE = 0x7fffffff


class Table:
    """Symbols of one part of the kernel, and the ranges that they are in."""

    def __init__(self, symbols, ranges, module=""):
        self.ranges = ranges
        self.module = module
        # The order of symbols at one address is that of the kernel, which names the first one.
        self.symbols = sorted((symbol.address, order, symbol) for order, symbol in enumerate(symbols))
        self._addresses = [address for address, _, _ in self.symbols]

    def name(self, address):
        """The name of an address as `%pS` shows it, or None."""
        bounds = next((bounds for bounds in self.ranges if bounds[0] <= address < bounds[1]), None)
        index = bisect.bisect_right(self._addresses, address)
        if bounds is None or index == 0:
            return None
        begin = self._addresses[index - 1]
        if begin < bounds[0]:
            return None
        first = self.symbols[bisect.bisect_left(self._addresses, begin)][2]
        end = min(bounds[1], self._addresses[index]) if index < len(self._addresses) else bounds[1]
        text = f"{first.name}+{address - begin:#x}/{end - begin:#x}"
        return f"{text} [{self.module}]" if self.module else text


def is_mapping_symbol(name):
    """Whether it is a symbol that marks what an assembler wrote, not one that names it."""
    return name.startswith((".L", "L0", "$"))


class Names:
    """All symbols of the kernel and its modules."""

    def __init__(self, prog):
        self.prog = prog
        symbols = load_vmlinux_kallsyms(prog)(prog, None, None, False)
        self.vmlinux = Table(symbols, [(prog.symbol("_stext").address, prog.symbol("_end").address)])
        self.modules = []
        for module in walk(for_each_module(prog), "modules"):
            name = shown(module.name.string_())
            ranges = [(begin, begin + size) for begin, size in module_address_regions(module)]
            try:
                symbols = [symbol for symbol in module_kallsyms(module)
                           if symbol.name and symbol.address and not is_mapping_symbol(symbol.name)]
            except (FaultError, MemoryError, OverflowError, ValueError):
                DAMAGE["symbols of modules"].add(name)
                symbols = []
            self.modules.append(Table(symbols, ranges, name))
        self._bpf = [(ksym.start.value_(), ksym.end.value_(), shown(ksym.name.string_()))
                     for ksym in walk(self._bpf_symbols(), "BPF programs")]
        self._changed = [Changed(part) for part in self._changed_text()]
        unnamed = static(prog, "modules::UNNAMED_TEXT")
        self._unnamed = range(number(unnamed.start), number(unnamed.end))
        self._cache = {}

    def _bpf_symbols(self):
        if "bpf_kallsyms" not in self.prog:
            return ()
        return list_for_each_entry("struct bpf_ksym", self.prog["bpf_kallsyms"].address_of_(), "lnode")

    def _changed_text(self):
        changed = published(static(self.prog, "modules::CHANGED_TEXT"))
        return () if changed is None else Vector(changed)

    def current(self, address):
        """The name that the kernel has for an address now, or None."""
        if address not in self._cache:
            self._cache[address] = self._look_up(address)
        return self._cache[address]

    def _look_up(self, address):
        for table in (self.vmlinux, *self.modules):
            name = table.name(address)
            if name:
                return name
        for begin, end, name in self._bpf:
            if begin <= address < end:
                return f"{name}+{address - begin:#x}/{end - begin:#x} [bpf]"
        return None

    def frame(self, address, stack=None, generation=0):
        """What tracefs shows of a frame; of a stack in the map, by the names at its insert."""
        if address == TRAMPOLINE:
            return "[FTRACE TRAMPOLINE]"
        name = None
        if stack is None:
            name = self.current(address)
        elif address not in self._unnamed:
            changed = (part for part in self._changed if part.tells_of(address, generation, stack.epoch))
            part = next(changed, None)
            name = part.names.get(address) if part else self.current(address)
        return name or f"{address:#x}"

    def kallsyms(self):
        """The lines of /proc/kallsyms."""
        for table in (self.vmlinux, *self.modules):
            module = f"\t[{table.module}]" if table.module else ""
            for address, _, symbol in table.symbols:
                kind = "t" if symbol.kind in (SymbolKind.FUNC, SymbolKind.UNKNOWN) else "d"
                yield f"{address:016x} {kind} {symbol.name}{module}\n"


class Changed:
    """Text of a module that came or went, and the names that stacks from before have there."""

    def __init__(self, part):
        self.begin, self.end = part.text.start.value_(), part.text.end.value_()
        self.generation = number(part.snapshot.generation)
        self.epoch = part.snapshot.number.value_()
        self.names = {}
        names = optional_arc(part.names)
        for name in Vector(names) if names is not None else ():
            text = Vector(name.member_("__1")).bytes()
            self.names[name.member_("__0").value_()] = text.decode(errors="replace")

    def tells_of(self, address, generation, epoch):
        """Whether it names this address in a stack of that epoch."""
        return (self.begin <= address < self.end and generation == self.generation
                and (self.epoch - epoch) % 2**32 <= (2**32 - 1) // 2)
