// SPDX-License-Identifier: GPL-2.0

//! Fuzzes sequences of operations on a map against a model.

#![no_main]

#[path = "../map/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(ops::decode(bytes)));
