# SPDX-License-Identifier: GPL-2.0
"""QEMU: its command line, its channels and its end."""

import ctypes
import dataclasses
import glob
import os
import signal
import socket
import subprocess

# Nothing here changes what the kernel does, only how it tells and how it ends. The time limits of
# its own watchdogs are those of an emulated machine on a busy host, which may also be late with the timer that it checks.
KERNEL_ARGUMENTS = (
    "ignore_loglevel printk.devkmsg=on panic=-1 oops=panic panic_on_warn=0 "
    # The self-tests of the ciphers are a quarter of the boot.
    "cryptomgr.notests "
    "rcupdate.rcu_cpu_stall_timeout=60 watchdog_thresh=30")

# A kernel that boots patches its text, which QEMU's parallel CPUs do not survive each time (an
# "Oops: int3" in one boot of fifteen): the others go online when all of that is done.
ALONE_UNTIL_READY = "maxcpus=1"

# For an initramfs of initramfs-tools.
BOOT = "root=/dev/vda rw boot=stackmap init=/lib/stackmap/init"


@dataclasses.dataclass(frozen=True)
class Arch:
    """A machine of QEMU: what it has, and how its kernel names that."""

    machine: tuple
    # What the CPU needs besides, where guest time is to count instructions.
    icount_cpu: str
    # The two serial lines besides the console.
    lines: tuple
    kernel: str
    terminal: str
    control: str


ARCHES = {
    "amd64": Arch(
        # Without the HPET the clock would be the ACPI timer, whose 24 bits last 4.7 s: a machine that stops QEMU for half of
        # that can stop the time of an idle guest for ever.
        machine=("-machine", "q35,hpet=on", "-cpu", "max"), icount_cpu="",
        lines=("-serial", "chardev:tty", "-serial", "chardev:control"),
        kernel="console=ttyS0,115200 no_timer_check", terminal="/dev/ttyS1", control="/dev/ttyS2"),
    # QEMU computes the architecture's pointer authentication much slower than its own. The counter, from which
    # the kernel has its clocks, counts at 62.5 MHz: with --icount, a nanosecond is an instruction.
    "arm64": Arch(
        machine=("-machine", "virt", "-cpu", "max,pauth-impdef=on"), icount_cpu=",cntfrq=1000000000",
        lines=("-device", "pci-serial,chardev=tty", "-device", "pci-serial,chardev=control"),
        kernel="console=ttyAMA0", terminal="/dev/ttyS0", control="/dev/ttyS1"),
}


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def stolen():
    """The seconds that this machine's CPUs were not given by its host, if it is a guest; their mean."""
    with open("/proc/stat", encoding="ascii") as stream:
        ticks = int(stream.readline().split()[8])
    return ticks / os.sysconf("SC_CLK_TCK") / os.cpu_count()


class Machine:
    """A QEMU process and the sockets of its serial lines and ports."""

    def __init__(self, options, files, initrd, directory):
        arch = ARCHES[files["ARCH"]]
        machine = list(arch.machine)
        if options.icount:
            machine[-1] += arch.icount_cpu
        self.channels = {}
        self._listening = {}
        self.arguments = [
            files["QEMU"], "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            *machine,
            # A socket each: the firmware's MP table, from which a kernel without ACPI knows them, has one CPU of
            # each.
            "-smp", f"{options.smp},sockets={options.smp},cores=1,threads=1",
            "-m", str(options.mem),
            "-accel", f"tcg,thread={options.tcg}",
            "-kernel", files["IMAGE"], "-initrd", initrd,
            "-append", " ".join((
                arch.kernel, KERNEL_ARGUMENTS, ALONE_UNTIL_READY if options.tcg == "multi" else "",
                BOOT if options.initramfs else "", files["CMDLINE"], options.append)),
        ]
        if options.icount:
            self.arguments += ["-icount", "shift=0,sleep=off"]
        for name in ("console", "tty", "control"):
            self._channel(directory, name)
        self.arguments += ["-serial", "chardev:console", *arch.lines]
        self.arguments += ["-device", "virtio-serial-pci"]
        copied = options.share and files["OWN"]
        for number, name in enumerate(("out", "err", "share") if copied else ("out", "err"), 1):
            self._channel(directory, name)
            self.arguments += ["-device", f"virtserialport,chardev={name},nr={number},name={name}"]
        if files["ROOT"]:
            self.arguments += [
                "-drive", f"file={_escape(files['ROOT'])},format=raw,if=none,id=root,snapshot=on",
                "-device", "virtio-blk-pci,drive=root"]
        if options.share and not copied:
            self.arguments += [
                "-fsdev", f"local,id=share,path={_escape(os.path.realpath(options.share))},security_model=none",
                "-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]
        self.arguments += options.qemu
        self.process = None
        self._waited = 0
        self._stolen_before = stolen()

    def _channel(self, directory, name):
        path = os.path.join(directory, name)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        self._listening[name] = listener
        self.arguments += ["-chardev", f"socket,id={name},path={_escape(path)}"]

    def start(self, errors):
        """Starts QEMU, its messages to the stream ERRORS. True once its channels are open."""
        # Its own group: Ctrl-C at the terminal reaches only this program, which then ends QEMU.
        self.process = subprocess.Popen(
            self.arguments, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            start_new_session=True, preexec_fn=_die_with_parent)
        for name, listener in self._listening.items():
            listener.settimeout(0.1)
            while name not in self.channels:
                try:
                    self.channels[name] = listener.accept()[0]
                except TimeoutError:
                    if self.process.poll() is not None:
                        return False
            self.channels[name].setblocking(False)
            listener.close()
        return True

    def running(self):
        """Whether QEMU has not ended."""
        return self.process.poll() is None

    def waited(self):
        """The seconds for which a thread of QEMU had no CPU, at most; the guest stood still.

        It waited for one of this machine, or the machine itself is a guest, and its host gave it none.
        """
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            try:
                with open(path, encoding="ascii") as stream:
                    self._waited = max(self._waited, int(stream.read().split()[1]) / 1e9)
            except (OSError, IndexError):
                # The thread has ended; or this kernel does not count.
                continue
        return self._waited + stolen() - self._stolen_before

    def stop(self):
        """Ends QEMU."""
        if self.process and self.running():
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _escape(path):
    """A path inside one of QEMU's comma-separated options."""
    return path.replace(",", ",,")
