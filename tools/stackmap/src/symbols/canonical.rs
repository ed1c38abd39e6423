// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of functions without what compilers append to those of clones and of parts.

/// Words after the name of a function that the linker's optimisation has made unique; a number follows.
const UNIQUE: [&str; 2] = ["llvm", "__uniq"];
/// All words after the name of a clone or a part, with a number after most of them.
const CLONED: [&str; 8] = [
    "cold",
    "constprop",
    "isra",
    "llvm",
    "localalias",
    "lto_priv",
    "part",
    "__uniq",
];
/// How demanglers show the same.
const CLONE: &str = " [clone ";

/// Returns the name of a function as it is in the source: `foo [ext4]` for `foo.isra.0.cold [ext4]`.
pub fn canonical(name: &str) -> String {
    let end = name.find(CLONE).or_else(|| name.find(" ["));
    let (symbol, mut rest) = name.split_at(end.unwrap_or(name.len()));
    while let Some(clone) = rest.strip_prefix(CLONE) {
        rest = clone.split_once(']').map_or("", |(_, rest)| rest);
    }
    without(symbol, &CLONED) + rest
}

/// Returns the name of a symbol without what differs from one build of the same source to another:
/// `foo.isra.0` for `foo.isra.0.llvm.4477738147604602593`.
pub fn reproducible(symbol: &str) -> String {
    without(symbol, &UNIQUE)
}

/// Returns a symbol without such words and the numbers that follow them.
fn without(symbol: &str, words: &[&str]) -> String {
    let is_number =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = symbol.split('.').peekable();
    let mut kept: Vec<_> = parts.next().into_iter().collect();
    while let Some(part) = parts.next() {
        match words.contains(&part) {
            true => drop(parts.next_if(is_number)),
            false => kept.push(part),
        }
    }
    match kept[..] {
        [""] => symbol.to_owned(),
        _ => kept.join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_and_parts_have_the_name_of_the_source() {
        for (name, want) in [
            ("do_syscall_64.llvm.4477738147604602593", "do_syscall_64"),
            ("foo.isra.0", "foo"),
            ("foo.localalias", "foo"),
            ("foo.constprop.0.isra.12.cold", "foo"),
            ("foo.part.3 [ext4]", "foo [ext4]"),
            ("foo.__uniq.123.llvm.456", "foo"),
            ("foo(int) [clone .isra.0] [clone .cold]", "foo(int)"),
            ("foo.cold", "foo"),
            ("foo.cold.llvm.12", "foo"),
            ("foo", "foo"),
            ("foo [a.b]", "foo [a.b]"),
            ("bpf_prog_1.2_x", "bpf_prog_1.2_x"),
            ("node.js", "node.js"),
            (".cold", ".cold"),
            ("foo.1", "foo.1"),
        ] {
            assert_eq!(canonical(name), want, "{name}");
        }
    }

    #[test]
    fn only_what_a_build_makes_unique_is_not_reproducible() {
        for (name, want) in [
            ("foo.isra.0.llvm.4477738147604602593", "foo.isra.0"),
            ("foo.__uniq.12.cold", "foo.cold"),
            ("foo.part.1", "foo.part.1"),
            ("foo", "foo"),
        ] {
            assert_eq!(reproducible(name), want, "{name}");
        }
    }
}
