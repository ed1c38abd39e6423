# SPDX-License-Identifier: GPL-2.0
"""The files of one run: script, module, what --add names, and how the guest is to run them."""

import os
import shlex

from host.cpio import Archive
from host.machine import ARCHES


# A command named by its path there is the guest's own.
COMMANDS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
GUEST = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "guest")


class ImageError(Exception):
    """A file that the run needs is not available."""


def check_interpreter(path, userland):
    """Says before the guest boots that it lacks the script's interpreter."""
    with open(path, "rb") as stream:
        line = stream.readline(256)
    if not line.startswith(b"#!") or userland != "busybox":
        return
    words = line[2:].decode(errors="replace").split()
    name = words[0] if words else ""
    if os.path.basename(name) == "env" and len(words) > 1:
        name = words[1]
    if os.path.basename(name) in ("bash", "python3", "perl", "gawk", "bpftrace", "trace-cmd"):
        raise ImageError(f"{path} wants {name}, which --userland debian has")


def write_boot(archive, prefix, busybox):
    """What an initramfs of initramfs-tools wants to go on with our session."""
    archive.tree(os.path.join(GUEST, "mountroot"), "scripts/stackmap")
    for name in ("session", "overlay"):
        archive.tree(os.path.join(GUEST, name), f"{prefix}lib/stackmap/{name}")
    archive.tree(os.path.realpath(busybox), prefix + "lib/stackmap/busybox")
    start = "#!/lib/stackmap/busybox sh\nexec /lib/stackmap/busybox sh /lib/stackmap/session\n"
    archive.file(prefix + "lib/stackmap/init", start.encode(), 0o755)


def write(stream, options, files, module, terminal, merge):
    """Writes the archive that follows the initramfs, for what FILES says the guest is made of."""
    stream.write(b"\0" * (-stream.tell() % 4))
    archive = Archive(stream)
    prefix = "" if options.userland == "busybox" else "overlay/"
    command = [options.script, *options.arguments]

    if os.path.isfile(options.script) and os.path.dirname(options.script) not in COMMANDS:
        check_interpreter(options.script, options.userland)
        inside = "/lib/stackmap/script/" + os.path.basename(options.script)
        with open(options.script, "rb") as source:
            archive.file(prefix + inside.strip("/"), source.read(), 0o755)
        command[0] = inside
    elif "/" in options.script and not options.script.startswith("/"):
        raise ImageError(f"{options.script}: no such file")
    archive.file(prefix + "lib/stackmap/script.sh", f"exec {shlex.join(command)}\n".encode())

    if module:
        with open(module, "rb") as source:
            archive.file(prefix + "lib/stackmap/stackmap.ko", source.read())
    for pair in options.add:
        source, _, inside = pair.rpartition(":")
        if inside.endswith("/"):
            inside += os.path.basename(source.rstrip("/"))
        archive.tree(os.path.realpath(source), prefix + inside.strip("/"))
    if options.share and files["OWN"]:
        archive.tree(os.path.realpath(options.share), prefix + "share")

    settings = {
        "userland": options.userland,
        "alone": "yes" if options.tcg == "multi" else "",
        "share": ("copied" if files["OWN"] else "mounted") if options.share else "",
        "tty": "yes" if terminal else "",
        "terminal": ARCHES[files["ARCH"]].terminal,
        "control": ARCHES[files["ARCH"]].control,
        "merge": "yes" if merge else "",
        "term": os.environ.get("TERM", "vt100"),
        "rows": str(terminal.lines if terminal else 24),
        "columns": str(terminal.columns if terminal else 80),
    }
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
    if options.initramfs:
        write_boot(archive, prefix, files["BUSYBOX"])
        archive.file(prefix + "etc/stackmap-run", text.encode())
    archive.file("etc/stackmap-run", text.encode())
    archive.end()
