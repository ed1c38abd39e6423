// SPDX-License-Identifier: GPL-2.0

//! Has the facade include `bindings.rs` in place of what bindgen makes.

use std::{env, path::Path};

fn main() {
    let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let bindings = Path::new(&directory).join("bindings.rs");
    println!("cargo:rerun-if-changed=bindings.rs");
    println!(
        "cargo:rustc-env=STACKMAP_RUST_BINDINGS={}",
        bindings.display()
    );
}
