# SPDX-License-Identifier: GPL-2.0
"""The host's side of tools/vm/boot: options, the guest's files, QEMU, the console, the session."""
