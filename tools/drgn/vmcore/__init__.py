# SPDX-License-Identifier: GPL-2.0
"""What tools/drgn/stackmap.py reads from the memory of a kernel, by drgn.

Memory of a kernel that crashed may be damaged. What lies there is left out, and `DAMAGE` has it, by what it is; lists
and lengths are not trusted to end.
"""

import collections

from drgn import FaultError

# What cannot be read: addresses or numbers, by the name of what they are of.
DAMAGE = collections.defaultdict(set)


class Problem(Exception):
    """Why something cannot be read, and what to do about it."""

    def __init__(self, text, hint=None):
        super().__init__(text)
        self.hint = hint


def walk(objects, what):
    """The pointers of a list of the kernel, up to where it leads nowhere or back."""
    seen = set()
    try:
        for obj in objects:
            if obj.value_() in seen:
                DAMAGE[what].add(obj.value_())
                return
            seen.add(obj.value_())
            yield obj
    except FaultError as error:
        DAMAGE[what].add(error.address)


def shown(data):
    """Bytes of a string as they may be shown: control characters are escaped."""
    string = data.decode(errors="backslashreplace")
    return "".join(char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
                   for char in string)
