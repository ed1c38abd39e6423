// SPDX-License-Identifier: MIT OR Apache-2.0

//! The `stackmap` command; all of it is in the library.

fn main() -> std::process::ExitCode {
    stackmap::cli::main()
}
