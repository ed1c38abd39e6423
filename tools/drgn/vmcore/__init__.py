# SPDX-License-Identifier: GPL-2.0
"""What tools/drgn/stackmap.py reads from the memory of a kernel, by drgn."""


class Problem(Exception):
    """Why something cannot be read, and what to do about it."""

    def __init__(self, text, hint=None):
        super().__init__(text)
        self.hint = hint
