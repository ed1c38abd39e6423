// SPDX-License-Identifier: GPL-2.0

//! Runs what the fuzzer has found worth keeping, `fuzz/corpus/`, with the ordinary compiler.

#![cfg(not(loom))]

mod ops;

use std::path::Path;

#[test]
fn the_corpus_of_the_fuzzer() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("selftests/fuzz/corpus/map");
    let files = std::fs::read_dir(corpus).expect("the corpus");
    let mut inputs = 0;
    for file in files {
        let bytes = std::fs::read(file.expect("a file").path()).expect("an input");
        ops::run(ops::decode(&bytes));
        inputs += 1;
    }
    assert!(inputs >= 20, "the corpus has only {inputs} inputs");
}
