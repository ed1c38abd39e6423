# SPDX-License-Identifier: GPL-2.0
"""The benches of the map on this machine: instructions, counted by valgrind.

valgrind (by tools/lib/need) and gungraun-runner (by cargo, into the cache) are installed if they
are missing.
"""

import json
import os
import re
import subprocess
import sys

from . import CACHE, TOP

CARGO_ROOT = CACHE / "cargo"


def install():
    """Makes the tools be there."""
    if subprocess.run([TOP / "tools/lib/need", "valgrind", "valgrind"], check=False).returncode:
        sys.exit(1)
    version = re.search(r'^gungraun = "(.*)"', (TOP / "tools/bench/Cargo.toml").read_text(), re.M)[1]
    runner = CARGO_ROOT / "bin/gungraun-runner"
    found = runner.exists() and subprocess.run([runner, "--version"], text=True, check=False,
                                               stdout=subprocess.PIPE).stdout
    if not found or version not in found:
        # It only starts valgrind and reads the output: a build without optimisation is enough.
        subprocess.run(["cargo", "install", "--quiet", "--locked", "--force", "--debug", "--root", CARGO_ROOT,
                        f"gungraun-runner@{version}"], check=True, env=os.environ | {"CARGO_PROFILE_DEV_DEBUG": "0"})
    os.environ["GUNGRAUN_RUNNER"] = str(runner)


def bench(name, *arguments, **options):
    """Runs a bench; returns what `subprocess.run` does."""
    return subprocess.run(["cargo", "bench", "--quiet", "--package", "stackmap-bench", "--bench", name, "--",
                           *arguments], cwd=TOP, check=True, text=True, **options)


def instructions():
    """Runs the counted benches: benchmark and argument to instructions of one operation."""
    done = bench("instructions", "--output-format=json", stdout=subprocess.PIPE)
    counts = {}
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        summary = json.loads(line)
        name, argument = summary["function_name"], re.search(r"\d+", summary["details"])[0]
        metrics = summary["profiles"][0]["summaries"]["total"]["summary"]["Callgrind"]["Ir"]["metrics"]
        total = next(iter(metrics.values()))
        total = (total[0] if isinstance(total, list) else total)["Int"]
        operations = int((re.search(r"_(\d+)$", name) or [0, 1])[1])
        counts.setdefault(name, {})[int(argument)] = total / operations
    return counts


def compiler():
    """The compiler that the counts are of."""
    done = subprocess.run(["rustc", "--version"], cwd=TOP, check=True, text=True, stdout=subprocess.PIPE)
    return done.stdout.split()[1]
