# SPDX-License-Identifier: GPL-2.0
"""One run: input and output of the guest, until the script ends or something fails."""

import os
import selectors
import signal
import sys
import termios
import time
import tty

from host.console import Console
from host.options import GUEST_FAILED, HANG

LEAVE = b"\x1d"     # Ctrl-]
AFTER_PANIC = 5     # seconds of silence, where no reboot ends QEMU after a panic
AFTER_EXIT = 10     # seconds for the console to come to the script's end
AFTER_SILENCE = 60  # seconds for more of /share, which may come later than the end
SHARE_END = b"stackmap-share-end"


class Session:
    """The loop between a machine that was started and the user."""

    def __init__(self, machine, options, log, terminal, share):
        self.machine = machine
        self.options = options
        self.log = log
        self.terminal = terminal
        self.share = share
        self.console = Console()
        self.status = None          # the script's, once known
        self.ready = False
        self.left = False           # the user left by Ctrl-]
        self._heard = 0             # when the console last said something
        self._control = b""
        self._share_end = b""       # the last bytes of /share
        self._selector = selectors.DefaultSelector()
        self._input = bytearray()   # typed, not yet taken by the guest

    def run(self):
        """Returns the exit status and, where it is not the script's own, why."""
        handlers = {
            "console": self._console, "control": self._control_line,
            "out": lambda data: _write(sys.stdout, data),
            "err": lambda data: _write(sys.stderr, data),
            "tty": lambda data: _write(sys.stdout, data),
            "share": self._shared,
        }
        for name, channel in self.machine.channels.items():
            self._selector.register(channel, selectors.EVENT_READ, handlers[name])
        if not self.terminal:
            return self._loop()
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        saved = termios.tcgetattr(sys.stdin)
        signal.signal(signal.SIGWINCH, self._resized)
        try:
            tty.setraw(sys.stdin)
            return self._loop()
        finally:
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)

    def _now(self):
        """Seconds as the guest had them: on a busy machine a time limit is no shorter."""
        return time.monotonic() - self.machine.waited()

    def _loop(self):
        deadline = self._now() + self.options.boot_timeout
        limit, exit_end = False, None
        while True:
            now = self._now()
            if self.left:
                return 128 + signal.SIGHUP, None
            if self.ready and not limit:
                limit = True
                deadline = now + self.options.timeout if self.options.timeout else float("inf")
            if self.status is not None:
                exit_end = exit_end or now + AFTER_EXIT
            if self.status is not None and (self.console.ended or now >= exit_end):
                return self._verdict()
            dead = self.console.panicked and now - self._heard >= AFTER_PANIC
            if dead or not self.machine.running():
                self._drain()
                return self._ended()
            if self.status is None and now >= deadline:
                if self.ready:
                    return HANG, f"no end after {self.options.timeout:g} s"
                return HANG, f"the guest did not come up in {self.options.boot_timeout:g} s"
            self._poll(0.1 if self.console.panicked else min(1, max(0, deadline - now)))

    def _poll(self, seconds):
        self._send()
        busy = False
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._typed()
                continue
            try:
                data = key.fileobj.recv(65536)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            if data:
                busy = True
                key.data(data)
            else:
                self._selector.unregister(key.fileobj)
        return busy

    def _drain(self):
        while self._poll(0):
            pass

    def _verdict(self):
        self._drain()
        silent = 0
        while "share" in self.machine.channels and self._share_end != SHARE_END and silent < AFTER_SILENCE:
            silent = 0 if self._poll(1) else silent + 1
        if self.console.reports:
            return GUEST_FAILED, f"the kernel complained: {self.console.reports[0]}"
        return self.status, None

    def _ended(self):
        if self.status is not None:
            return self._verdict()
        if self.console.panicked and self.console.panic_expected and not self.console.reports:
            return 0, None
        if self.console.panicked:
            self.console.reports.append("panic")
            return GUEST_FAILED, "the kernel panicked"
        return GUEST_FAILED, "the guest ended before the script did"

    def _console(self, data):
        self.log.write(data)
        self.log.flush()
        self._heard = self._now()
        for line in self.console.feed(data):
            if self.options.verbose:
                end = "\r\n" if self.terminal else "\n"
                _write(sys.stderr, f"{line}{end}".encode())

    def _shared(self, data):
        self.share.write(data)
        self._share_end = (self._share_end + data)[-len(SHARE_END):]

    def _control_line(self, data):
        self._control += data
        *lines, self._control = self._control.split(b"\n")
        for line in lines:
            words = line.split()
            if words[:1] == [b"ready"]:
                self.ready = True
            elif words[:1] == [b"exit"]:
                self.status = int(words[1])

    def _resized(self, *_):
        size = os.get_terminal_size()
        if self.ready:
            self.machine.channels["control"].send(f"size {size.lines} {size.columns}\n".encode())

    def _typed(self):
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self._selector.unregister(sys.stdin.fileno())
        elif LEAVE in data:
            self.left = True
        else:
            self._input += data

    def _send(self):
        if not self._input or not self.ready:
            return
        try:
            sent = self.machine.channels["tty"].send(self._input)
            del self._input[:sent]
        except BlockingIOError:
            pass


def _write(stream, data):
    """Writes it completely and at once; ends the run if the reader has ended."""
    view = memoryview(data)
    while view:
        view = view[os.write(stream.fileno(), view):]
