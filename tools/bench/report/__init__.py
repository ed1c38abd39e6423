# SPDX-License-Identifier: GPL-2.0
"""Measuring, and telling what was measured."""

import os
import pathlib

TOP = pathlib.Path(__file__).resolve().parents[3]
CACHE = pathlib.Path(os.environ.get("STACKMAP_CACHE") or pathlib.Path.home() / ".cache/stackmap")
