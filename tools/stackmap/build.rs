// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lists the unexported symbols that the module looks for, for `stackmap doctor`: the names in its C.

use std::{env, fs, path::Path};

fn main() {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let module = Path::new(&package).join("../../src");
    let mut lists = String::new();
    for (list, path, begins, end) in [
        // The calls that fail without the symbol, and the kprobe that finds the first one.
        (
            "NEEDED",
            "shim/unexported.c",
            &["need(", ".symbol_name = "][..],
            ',',
        ),
        ("FOR_USER_STACKS", "user/user.c", &["names[] = {"], '#'),
        (
            "FOR_X86",
            "user/user.c",
            &["#ifdef CONFIG_X86_64\n\t\t"],
            '#',
        ),
        ("FOR_DEFERRAL", "user/user.c", &["deferral[] = {"], '}'),
    ] {
        let path = module.join(path);
        println!("cargo:rerun-if-changed={}", path.display());
        let text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let parts = begins.iter().flat_map(|begin| text.split(begin).skip(1));
        let parts = parts.filter_map(|rest| rest.split(end).next());
        let names: Vec<_> = parts
            .flat_map(|part| part.split('"').skip(1).step_by(2))
            .collect();
        assert!(!names.is_empty(), "{}: no names of symbols", path.display());
        lists += &format!("const {list}: &[&str] = &{names:?};\n");
    }
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("symbols.rs"), lists).expect("OUT_DIR can be written to");
}
