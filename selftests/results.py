# SPDX-License-Identifier: GPL-2.0
"""The results of longer runs, a row for each case, in a file of Documentation/results."""

import os
import pathlib
import re
import shlex
import subprocess
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
HEAD = """# {command}

Written by `{command}`: the latest result of each case, and the commit that it was run on ("+": with changes
that were not committed). Longer results are cut.{complete}

"""
# The columns: of a row's name, and of its results.
CASES = ("case", "result")
MATRIX = ("kernel and hook", "release", "architecture", "walk", "id over full stack", "cases")
CELL = 160


def commit():
    """What git calls the code, of which results of earlier runs are no part."""
    def git(*arguments):
        return subprocess.run(("git", *arguments), cwd=TOP, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!Documentation/results")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


# When the run begins: commits may come while it lasts.
COMMIT = commit()


def read(path):
    """The rows of earlier runs, by case."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(match.groups() for line in lines if (match := re.fullmatch(r"\| `(.*?)` \| (.*) \|", line)))


def cell(text):
    """A text that fits into a cell of the table."""
    text = text.replace("|", "\\|")
    return text if len(text) <= CELL else text[:CELL].rsplit(" ", 1)[0] + " …"


def matrix(cases, results):
    """The rows of the matrix, for each kernel and hook of which all cases ran."""
    rows = {}
    for name, kernel in ((case.name, case.kernel) for case in cases if ": ratio " in case.name):
        hook = name.split()[-1]
        # Those with another hook are not its own.
        own = {case.name for case in cases if case.kernel == kernel and
               (hook in case.name or not re.search(r" (jump|kprobe)\b", case.name))}
        if not own <= results.keys():
            continue
        found = [note.removeprefix("# matrix: ") for note in results[name].notes if note.startswith("# matrix: ")]
        failed = ", ".join(sorted(case.removeprefix(f"{kernel}: ") for case in own if results[case].failed))
        passed = sum(not results[case].failed for case in own)
        rows[f"{kernel} {hook}"] = (*(found[0].split(", ") if found else "----"),
                                    f"{passed} passed" + (f", **failed: {failed}**" if failed else ""))
    return rows


def listed(target, kernel=""):
    """The names of the cases that "make TARGET" runs, or of those of another kernel; none if it runs no suite."""
    def lines(*command):
        environment = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS")}
        return subprocess.run(command, cwd=TOP, env=environment, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    suite = next((line for line in lines("make", "-n", target) if re.match("selftests/suite .*--results", line)), "")
    if not suite:
        return []
    if kernel:
        suite = re.sub(r" --kernel \S+", "", suite) + f" --kernel {kernel}"
    cases = lines(*shlex.split(suite), "--list")
    if "--matrix" in suite:
        return [name.replace(": ratio ", " ") for name in cases if ": ratio " in name]
    # Before a case was in one target, another one may have run it.
    return cases + (lines("selftests/suite", "--kernel", kernel, "--list", "guest") if kernel else [])


def without_gone(target, rows, wanted):
    """The rows of those cases that still exist."""
    kernels = {re.split("[: ]", name)[0] for name in rows.keys() - set(wanted)}
    there = set(wanted).union(*(listed(target, kernel) for kernel in kernels))
    return {name: row for name, row in rows.items() if name in there}


def write(command, results, columns=CASES, sample="", wanted=()):
    """Puts the results of a run, by case a text or one for each column, in the place of earlier ones of the same cases; or,
    of a sample, in that of all. Rows of cases that are gone go. WANTED are the names of all cases, if not those of the
    suite. Then says whether the page is stale."""
    target = command.split()[-1]
    path = TOP / f"Documentation/results/{target}.md"
    run = f"{time.strftime('%Y-%m-%d')} | {COMMIT}"
    texts = {name: (result,) if isinstance(result, str) else result for name, result in results.items()}
    rows = ({} if sample else read(path)) | {name: " | ".join((run, *map(cell, row))) for name, row in texts.items()}
    complete = ""
    if wanted := wanted or listed(target):
        rows = without_gone(target, rows, wanted)
        complete = f" {len(rows.keys() & set(wanted))} of {len(set(wanted))} cases have a result."
    path.parent.mkdir(exist_ok=True)
    head = f"| {columns[0]} | date | commit | {' | '.join(columns[1:])} |\n{'|---' * (len(columns) + 2)}|\n"
    body = "".join(f"| `{name}` | {row} |\n" for name, row in sorted(rows.items()))
    path.write_text(HEAD.format(command=command, complete=complete) + sample + head + body, encoding="utf-8")
    subprocess.run((TOP / "selftests/stale", "--mark", path), check=True)
