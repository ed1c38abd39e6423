// SPDX-License-Identifier: GPL-2.0

//! Fuzzes the walk of a user stack.

#![no_main]

#[path = "../user/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::walk(bytes);
});
