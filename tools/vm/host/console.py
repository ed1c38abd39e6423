# SPDX-License-Identifier: GPL-2.0
"""Reads the kernel's console and finds in it what should not be there."""

import re

REPORT = re.compile(r"""
      WARNING: | BUG: | \bOops\b | KASAN: | KCSAN: | UBSAN: | KFENCE: | INFO:\ task\ .*\ blocked
    | INFO:\ rcu | rcu:\ INFO | rcu_.*\ detected\ (?:stalls|expedited)
    | possible\ (?:circular|recursive)\ locking | inconsistent\ lock\ state
    | suspicious\ RCU\ usage | general\ protection\ fault | unable\ to\ handle
    | Kernel\ panic | soft\ lockup | hard\ LOCKUP | kmemleak:\ \d+\ new\ suspected
    | refcount_t: | scheduling\ while\ atomic | sleeping\ function\ called
    | INFO:\ trying\ to\ register\ non-static\ key | invalid\ opcode:
    | DEBUG_LOCKS_WARN_ON | list_(?:add|del)\ corruption | double\ fault
    | stackmap:\ unwind:\ frame              # a stack that is not the kernel's
""", re.VERBOSE)

# A stack trace by itself, where no report that was announced stands shortly before it.
TRACE = re.compile(r"Call Trace:")
TRACE_DISTANCE = 100

# Lines that a healthy kernel prints.
HARMLESS = re.compile(r"""
      traps:\ .*general\ protection\ fault    # a process's own fault
    | Spectre\ V2\ :\ WARNING:
""", re.VERBOSE)

EXPECT = re.compile(r"stackmap-expect: (.*)")
END = "stackmap-end: "
PANIC = re.compile(r"Kernel panic")


class Console:
    """The console as lines. Tells unannounced reports, a panic, and the end of the script."""

    def __init__(self):
        self.lines = []
        self.first = None       # the line number of the first report that was not announced
        self.reports = []       # the lines that are such reports
        self.panicked = False
        self.panic_expected = False
        self.ended = False
        self._expected = []
        self._announced_at = -TRACE_DISTANCE
        self._rest = b""

    def feed(self, data):
        """Takes what came from the console; returns the lines that it completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        lines = [line.decode(errors="replace").rstrip("\r") for line in lines]
        for line in lines:
            self._line(line)
        return lines

    def _line(self, line):
        number = len(self.lines)
        self.lines.append(line)
        announcement = EXPECT.search(line)
        if announcement:
            try:
                self._expected.append(re.compile(announcement.group(1)))
            except re.error as error:
                self._report(number, f"{line}: not a regular expression: {error}")
            return
        if END in line:
            self.ended = True
            return
        report = REPORT.search(line) and not HARMLESS.search(line)
        expected = any(pattern.search(line) for pattern in self._expected)
        if PANIC.search(line):
            self.panicked = True
            self.panic_expected = expected
        if expected and (report or TRACE.search(line)):
            self._announced_at = number
        elif report:
            self._report(number, line)
        elif TRACE.search(line) and number - self._announced_at >= TRACE_DISTANCE:
            self._report(number, line)

    def _report(self, number, line):
        self.reports.append(line)
        if self.first is None:
            self.first = number

    def excerpt(self, before=2, after=40):
        """The lines around the first report that was not announced."""
        start = max(0, self.first - before)
        return self.lines[start:self.first + after]
