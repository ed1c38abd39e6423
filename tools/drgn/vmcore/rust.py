# SPDX-License-Identifier: GPL-2.0
"""Values of Rust types, by the module's debug information.

drgn knows no Rust, but it reads the types as those of C++: `stackmap_main::map::Map`. Fields of tuples are `__0`,
`__1`; fields have the names of the source. Only the variants of an enum it does not show. `Vec`, `Mutex` and `Arc`
are those of `rust/kernel`, or with `RUST=kernel` those of the kernel.
"""

import struct

from drgn import FaultError, Object, TypeKind, sizeof

# The name of the module's crate.
CRATE = "stackmap_main"
# More than any list of the module has.
BYTES_MAX = 1 << 30


def static(prog, name):
    """A static of the module, by its path in the crate."""
    return prog[f"{CRATE}::{name}"]


def member(obj, *names):
    """The member that has the first of these names that the type has."""
    return obj.member_(next(name for name in names if obj.type_.has_member(name)))


def plain(obj):
    """What is in a type around one value: AtomicU64, CachePadded, NonNull, Published."""
    while obj.type_.kind == TypeKind.STRUCT:
        inner = [part for part in obj.type_.members if sizeof(part.type)]
        if len(inner) != 1:
            raise LookupError(f"{obj.type_.type_name()} is not around one value")
        obj = obj.member_(inner[0].name)
    return obj


def locked(obj):
    """Returns what a `Mutex` protects, or a lock of `global_lock!`, whoever holds it."""
    if obj.type_.has_member("inner"):
        obj = obj.inner
    return member(obj, "data", "value").value


def number(obj):
    """The number in a type around one."""
    return plain(obj).value_()


def published(obj):
    """What a `Published` or an `Arc` without a null leads to, or None."""
    pointer = plain(obj)
    return pointer[0] if pointer else None


def optional_arc(obj):
    """What an `Option<Arc<T>>` leads to, or None. `None` is a null: Rust guarantees that for pointers."""
    # drgn shows nothing of an enum but its name.
    arc = obj.prog_.type(obj.type_.tag.removeprefix("Option<").removesuffix(">"))
    inner = plain(Object(obj.prog_, arc, address=obj.address_))
    return member(inner[0], "data", "value") if inner else None


class Vector:
    """A `Vec`, or a type around one, such as the map's `Array`."""

    def __init__(self, obj):
        while not obj.type_.has_member("len"):
            obj = obj.member_("__0")
        memory = obj.memory if obj.type_.has_member("memory") else obj
        pointer = plain(memory.ptr)
        self.prog = obj.prog_
        self.address = pointer.value_()
        self.type = pointer.type_.type
        self.len = obj.len.value_()
        if self.len * sizeof(self.type) > BYTES_MAX:
            raise FaultError("this list has no such length", self.address)

    def __len__(self):
        return self.len

    def __getitem__(self, index):
        if not 0 <= index < self.len:
            raise IndexError(index)
        return Object(self.prog, self.type, address=self.address + index * sizeof(self.type))

    def __iter__(self):
        return (self[index] for index in range(self.len))

    def bytes(self):
        """All of it, as it is in memory."""
        return self.prog.read(self.address, self.len * sizeof(self.type)) if self.len else b""

    def words(self):
        """All of it, where the elements are words of 32 or 64 bits."""
        kind = {4: "I", 8: "Q"}[sizeof(self.type)]
        return struct.unpack(f"<{self.len}{kind}", self.bytes())
