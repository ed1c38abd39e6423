// SPDX-License-Identifier: GPL-2.0

//! Fuzzes the walk: whatever the rules, the stack and the kernel's unwinder say, it reads only the stack,
//! writes no more than fits, and ends.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stackmap_unwind::walk_hostile(bytes));
