// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folds the text of `perf script` with inferno, on standard input and output, as
//! inferno-collapse-perf does: what naming stacks is measured by.

use inferno::collapse::{perf::Folder, Collapse};
use std::io;

fn main() -> io::Result<()> {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    Folder::default().collapse(input, output)
}
