# SPDX-License-Identifier: GPL-2.0
"""User stacks: the words of a stack, the files that they name, and which entry into the kernel has which stack.

Documentation/abi/stack_map_user_bin.rst has the words, src/user/cookie.rs of the module what is remembered of entries.
"""

from drgn import FaultError

from . import DAMAGE
from .maps import Map
from .rust import Vector, locked, number, plain, published, static

IN_BINARY, PROCESS, ADDRESS_MIN = 1 << 63, 1 << 62, 4096
OFFSET_BITS, INDEX_BITS = 40, 23
ENDS = {1: "complete", 2: "cut: no rule", 3: "cut: fault", 4: "cut: depth", 5: "cut: frame pointers",
        6: "cut: no memory", 7: "cut: bad address", 8: "cut: no CFI", 9: "cut: complex CFI"}
VDSOS = (0, 1)
# Cookies that are remembered for each CPU.
REMEMBERED = 4096
PENDING = 1 << 31


def shown(path):
    """A path as the module shows it: what would break a line is escaped, as by seq_path()."""
    escaped = b"".join(b"\\%03o" % byte if byte <= 32 or byte in b"\\\x7f" else bytes([byte]) for byte in path)
    return escaped.decode(errors="backslashreplace")


class Binary:
    """A file that user stacks have frames in."""

    def __init__(self, obj):
        self.build_id = Vector(obj.build_id).bytes()
        self.path = shown(Vector(obj.path).bytes())
        self.dev, self.ino, self.size = (obj.file.member_(name).value_() for name in ("dev", "ino", "size"))

    def line(self, index):
        """Its line in stack_map_binaries."""
        device = f"{self.dev >> 20}:{self.dev & 0xfffff}"
        return f"{index} {self.build_id.hex() or '-'} {device} {self.ino} {self.size} {self.path}\n"


class Users:
    """The map of user stacks and what belongs to it."""

    def __init__(self, prog):
        self.map = Map.of(prog, "USER")
        self.first, self.binaries, self._remembered, self.files = 0, [], (), 0
        try:
            self._read(published(static(prog, "user::STATE")))
        except FaultError:
            DAMAGE["tables of user stacks"].add(0)

    def _read(self, state):
        if state is not None:
            binaries = locked(plain(state.binaries)[0])
            self.first = number(binaries.first)
            self.binaries = [Binary(obj) for obj in Vector(binaries.list)]
            self.files = len(Vector(binaries.files.list))
            self._remembered = Vector(state.remembered.member_("__0")).words()

    def frames(self, words):
        """The frames of a stack: for each the index of a file, or None, and its offset or address."""
        for word in words:
            if word & IN_BINARY:
                yield word >> OFFSET_BITS & (1 << INDEX_BITS) - 1, word & (1 << OFFSET_BITS) - 1
            elif not word & PROCESS and word >= ADDRESS_MIN:
                yield None, word

    @staticmethod
    def end(words):
        """How a stack ends."""
        end = next((word for word in words if word < ADDRESS_MIN), 0)
        text, guessed = ENDS.get(end & 15, "cut"), end >> 4
        if not guessed:
            return text
        return f"{'' if text == 'complete' else f'{text}, '}guessed from frame {guessed}"

    @staticmethod
    def process(words):
        """The process that addresses belong to, or None."""
        return next((word & 0xffffffff for word in words if word & (IN_BINARY | PROCESS) == PROCESS), None)

    def path(self, index):
        """What a file is called."""
        if index in VDSOS:
            return "[vdso]"
        at = index - self.first
        return self.binaries[at].path if 0 <= at < len(self.binaries) else f"binary {index}"

    def bound(self, cookie):
        """The id that a cookie was bound to, if the module still knows; None otherwise."""
        cpu, count = (cookie & 0xffffffff) - 1, cookie >> 32
        at = cpu * REMEMBERED + count // 2 % REMEMBERED
        if cpu < 0 or at >= len(self._remembered):
            return None
        word = self._remembered[at]
        low = word & 0xffffffff
        return low if word >> 32 == count and low and not low & PENDING else None
