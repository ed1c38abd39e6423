// SPDX-License-Identifier: GPL-2.0

//! Fuzzes the learning of rules: whatever a file has, it is read a bounded number of times.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = stackmap_user::learn_hostile(bytes);
});
