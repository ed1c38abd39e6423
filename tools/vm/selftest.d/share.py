#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a guest could leave in a shared directory does not stay there; without a guest."""

import os
import pathlib
import stat
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
VM = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(VM))

from host import share

ROOT = os.geteuid() == 0


def mode(path):
    """Its permissions."""
    return stat.S_IMODE(os.lstat(path).st_mode)


def wrong(top):
    """What is not as it should be."""
    own = top / "own"
    (own / "below").mkdir(parents=True)
    (own / "old").symlink_to("/etc/passwd")
    (own / "kept").write_text("mine")
    before = mode(own)
    with share.closed(str(own), lambda text: None):
        if ROOT and mode(own) != 0o700:
            yield "others see it while a guest runs"
        program = own / "below/program"
        program.write_text("#!/bin/sh\n")
        os.chmod(program, 0o6755)
        os.chmod(own / "below", 0o2777)
        (own / "out").symlink_to("/etc/shadow")
        (own / "up").symlink_to("../../x")
        (own / "in").symlink_to("below/program")
        (own / "below/in").symlink_to("../kept")
        os.mkfifo(own / "pipe")
        if ROOT:
            os.chown(program, 12345, 12345)
            os.chmod(program, 0o6755)
            os.mknod(own / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            subprocess.run(("setcap", "cap_setuid+ep", str(program)), check=False, stderr=subprocess.DEVNULL)
    if mode(own) != before:
        yield f"its mode is {mode(own):o}, and was {before:o}"
    if mode(program) != 0o755 or mode(own / "below") != 0o777:
        yield f"setuid stays: {mode(program):o} {mode(own / 'below'):o}"
    if os.lstat(program).st_uid != os.geteuid():
        yield "a file belongs to a user of the guest"
    if "security.capability" in os.listxattr(program):
        yield "capabilities stay"
    left = sorted(str(path.relative_to(own)) for path in own.rglob("*"))
    if left != ["below", "below/in", "below/program", "in", "kept", "old"]:
        yield f"left: {left}"
    if ROOT:
        for what, uid, bits in (("another user's", 12345, 0o755), ("one that others may write to", 0, 0o777)):
            os.chown(own, uid, uid)
            os.chmod(own, bits)
            try:
                share.check(str(own))
                yield f"{what} is taken"
            except share.ShareError:
                pass


def main():
    """Says what is wrong."""
    with tempfile.TemporaryDirectory() as top:
        lines = list(wrong(pathlib.Path(top)))
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
