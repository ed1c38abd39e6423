// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzzes `targets::ring`.

#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::ring(data));
