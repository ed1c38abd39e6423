# SPDX-License-Identifier: MIT OR Apache-2.0
"""Results of tests, as TAP."""

import traceback


class Tap:
    """Counts tests, and prints their results."""

    def __init__(self):
        self.number = self.failed = 0

    def test(self, good, what, *notes):
        """The result of a test."""
        self.number += 1
        self.failed += not good
        notes = "\n".join(notes).splitlines()
        print(f"{'ok' if good else 'not ok'} {self.number} - {what}", *(f"# {note}" for note in notes), sep="\n", flush=True)

    def same(self, what, got, want):
        """Whether two values are the same."""
        self.test(got == want, what, *([] if got == want else [f"got:    {str(got)[:400]}", f"wanted: {str(want)[:400]}"]))

    def run(self, what, check, *arguments):
        """A test by a function, which says how much it has checked; an error of it is a result."""
        try:
            checked = check(*arguments)
        except Exception as error:  # pylint: disable=broad-exception-caught
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.test(False, what, f"{type(error).__name__} in {place.name}, line {place.lineno}: {str(error)[:600]}")
        else:
            self.test(True, f"{what}, {checked}")

    def end(self):
        """The plan, and the exit status."""
        print(f"1..{self.number}")
        return self.failed > 0
