# SPDX-License-Identifier: GPL-2.0
"""Writes the archives that the kernel unpacks as its initramfs (cpio, format "newc").

Everything in them belongs to root, whoever writes them.
"""

import os
import stat
import sys


class Archive:
    """An archive being written to a binary stream."""

    def __init__(self, stream):
        self.stream = stream
        self.inode = 0
        self.seen = {"."}

    def _entry(self, name, mode, data=b"", links=1):
        self.inode += 1
        path = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self.stream.write(head + b"\0" * (-len(head) % 4))
        self.stream.write(data + b"\0" * (-len(data) % 4))

    def _parents(self, name):
        parent = os.path.dirname(name)
        if parent and parent not in self.seen:
            self.directory(parent)

    def directory(self, name, mode=0o755):
        """Adds a directory, and first those above it."""
        name = name.strip("/")
        if name in self.seen:
            return
        self._parents(name)
        self.seen.add(name)
        self._entry(name, stat.S_IFDIR | mode, links=2)

    def file(self, name, data, mode=0o644):
        """Adds a file with these contents."""
        name = name.strip("/")
        self._parents(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name, target):
        """Adds a symbolic link."""
        name = name.strip("/")
        self._parents(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def tree(self, source, name):
        """Adds a file, link or directory of the host, with all below it, as NAME."""
        mode = os.lstat(source).st_mode
        if stat.S_ISLNK(mode):
            self.link(name, os.readlink(source))
        elif stat.S_ISDIR(mode):
            if name.strip("/"):
                self.directory(name, stat.S_IMODE(mode))
            for child in sorted(os.listdir(source)):
                self.tree(os.path.join(source, child), os.path.join(name, child))
        elif stat.S_ISREG(mode):
            with open(source, "rb") as stream:
                self.file(name, stream.read(), stat.S_IMODE(mode))

    def end(self):
        """Ends the archive, padded so that another may follow."""
        self._entry("TRAILER!!!", 0)
        self.stream.write(b"\0" * 512)


if __name__ == "__main__":
    archive = Archive(sys.stdout.buffer)
    archive.tree(sys.argv[1], "")
    archive.end()
