# SPDX-License-Identifier: GPL-2.0
"""What came of longer runs, a row for each case, in a file of Documentation/results."""

import pathlib
import re
import subprocess
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
HEAD = """# {command}

Written by `{command}`: the latest result of each case, and the commit that it was run on ("+": with changes
that were not committed). Longer results are cut.

| case | date | commit | result |
|---|---|---|---|
"""
CELL = 160


def commit():
    """What git calls the code."""
    done = subprocess.run(("git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=+"), cwd=TOP,
                          check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or "unknown"


def read(path):
    """The rows of earlier runs, by case."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(match.groups() for line in lines if (match := re.fullmatch(r"\| `(.*?)` \| (.*) \|", line)))


def cell(text):
    """A text that fits into a cell of the table."""
    text = text.replace("|", "\\|")
    return text if len(text) <= CELL else text[:CELL].rsplit(" ", 1)[0] + " …"


def write(command, results):
    """Puts the results of a run, texts by case, in the place of earlier ones of the same cases."""
    path = TOP / f"Documentation/results/{command.split()[-1]}.md"
    run = f"{time.strftime('%Y-%m-%d')} | {commit()}"
    rows = read(path) | {name: f"{run} | {cell(text)}" for name, text in results.items()}
    path.parent.mkdir(exist_ok=True)
    body = "".join(f"| `{name}` | {row} |\n" for name, row in sorted(rows.items()))
    path.write_text(HEAD.format(command=command) + body, encoding="utf-8")
