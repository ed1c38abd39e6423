# SPDX-License-Identifier: GPL-2.0
"""The directory that --share names: whose it may be, and what of a guest's may stay in it.

Root in the guest writes there with the rights of whoever runs QEMU. For root, that directory is closed to others
while the guest runs; what could be of use to somebody else is taken off afterwards.
"""

import contextlib
import os
import stat


class ShareError(Exception):
    """The directory cannot be given to a guest."""


def check(path):
    """Refuses a directory that others own or, for root, may write to."""
    seen, user = os.stat(path), os.geteuid()
    if seen.st_uid not in (0, user):
        raise ShareError(f"--share {path}: it belongs to another user ({seen.st_uid})")
    if user == 0 and seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ShareError(f"--share {path}: others may write to it (mode {stat.S_IMODE(seen.st_mode):o})")


@contextlib.contextmanager
def closed(path, say):
    """Closes the directory to other users during the run, and cleans it afterwards."""
    check(path)
    mode, before = stat.S_IMODE(os.stat(path).st_mode), _entries(path)
    if os.geteuid() == 0:
        os.chmod(path, stat.S_IRWXU)
    # Where this is killed, the directory stays closed.
    yield
    for line in clean(path, before):
        say(line)
    os.chmod(path, mode & 0o1777)


def clean(path, before=None):
    """Takes off what a guest may have left: returns what was removed, a line each.

    Devices, pipes and sockets, and links that lead out, are removed; setuid, setgid and capabilities are taken off;
    files of other users are given to the directory's owner. What BEFORE has stays what it was, without setuid.
    """
    before, removed, top = before or {}, [], os.path.realpath(path)
    owner = os.stat(path)
    for name, directory, seen in _walk(path):
        shown = os.path.relpath(os.path.join(directory, name), path)
        known = before.get(shown)
        same = known and known[0].st_ino == seen.st_ino and known[0].st_uid == seen.st_uid
        full = os.path.join(directory, name)
        if stat.S_ISLNK(seen.st_mode):
            target = os.readlink(full)
            inside = os.path.realpath(os.path.join(os.path.realpath(directory), target))
            if not (same and known[1] == target) and os.path.commonpath((inside, top)) != top:
                os.unlink(full)
                removed.append(f"--share: the link {shown} leads out, to {target}: removed")
                continue
        elif not (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):
            if not same:
                os.unlink(full)
                removed.append(f"--share: {shown} is no file: removed")
            continue
        if os.geteuid() == 0 and not same and seen.st_uid != owner.st_uid:
            os.chown(full, owner.st_uid, owner.st_gid, follow_symlinks=False)
        if stat.S_ISLNK(seen.st_mode):
            continue
        if seen.st_mode & (stat.S_ISUID | stat.S_ISGID):
            os.chmod(full, stat.S_IMODE(seen.st_mode) & 0o1777)
        if stat.S_ISREG(seen.st_mode):
            with contextlib.suppress(OSError):
                os.removexattr(full, "security.capability", follow_symlinks=False)
    return removed


def _walk(path):
    """All files below PATH: name, directory and type; no link is followed."""
    for directory, below, files in os.walk(path):
        for name in below + files:
            yield name, directory, os.lstat(os.path.join(directory, name))


def _entries(path):
    """Each file by its path: what it is and, of a link, where it leads."""
    entries = {}
    for name, directory, seen in _walk(path):
        full = os.path.join(directory, name)
        target = os.readlink(full) if stat.S_ISLNK(seen.st_mode) else None
        entries[os.path.relpath(full, path)] = seen, target
    return entries
