// SPDX-License-Identifier: MIT OR Apache-2.0

//! Modules that are loaded and unloaded during a recording: `/proc/kallsyms` has the names of its end.

use crate::symbols::{
    kallsyms::UNKNOWN,
    modules::{Module, Modules},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// The build-ids of modules.
pub(super) type Builds = BTreeMap<String, Vec<u8>>;

/// Returns the build-ids of these modules, as far as they have any.
pub(super) fn builds(modules: &Modules) -> Builds {
    let build = |module: &Module| {
        let path = format!("/sys/module/{}/notes/.note.gnu.build-id", module.name);
        Some((module.name.clone(), fs::read(path).ok()?))
    };
    modules.iter().filter_map(build).collect()
}

/// Returns where the init functions of these modules were, as far as they have any.
pub(super) fn inits(modules: &Modules) -> BTreeMap<String, u64> {
    let init = |module: &Module| {
        let path = format!("/sys/module/{}/sections/.init.text", module.name);
        let text = fs::read_to_string(path).ok()?;
        let start = u64::from_str_radix(text.trim_end().strip_prefix("0x")?, 16).ok()?;
        Some((module.name.clone(), start))
    };
    modules.iter().filter_map(init).collect()
}

/// Returns a line of a kallsyms, of a function of a module, without the name.
pub(super) fn unnamed(line: &str) -> String {
    let (symbol, module) = line.split_once('\t').unwrap_or_default();
    let (start, _) = symbol.rsplit_once(' ').unwrap_or_default();
    format!("{start} {UNKNOWN}\t{module}")
}

/// Returns the text of a kallsyms without the names of modules in whose memory another one may have been. `before` and `now`
/// are the modules at the beginning and at the end with their builds, `freed` those that were unloaded in between, and how
/// often. `inits` is where the init functions of those at the end were.
pub(super) fn named(
    kallsyms: String,
    before: (&Modules, &Builds),
    now: (&Modules, &Builds),
    freed: &BTreeMap<String, u64>,
    inits: &BTreeMap<String, u64>,
) -> String {
    // The address of such a module is not known.
    let came_and_went = freed
        .iter()
        .any(|(name, times)| *times > u64::from(before.0.get(name).is_some()));
    // A module that is still loaded shares its memory with no other. Sizes are those of all parts, which may be apart.
    let went = |other: &&Module| now.0.get(&other.name) != Some(*other);
    let overlaps = |one: &Module, other: &Module| {
        one.base < other.base.saturating_add(other.size)
            && other.base < one.base.saturating_add(one.size)
    };
    let is_new = |module: &Module| {
        before.0.get(&module.name) != Some(module) || freed.contains_key(&module.name)
    };
    // The kernel frees init functions once their module is loaded.
    let has_inits = |module: &Module| {
        let memory = module.base..module.base.saturating_add(module.size);
        let others = now.0.iter().filter(|other| *other != module);
        let mut starts = others
            .filter(|other| is_new(other))
            .filter_map(|other| inits.get(&other.name));
        is_new(module) && starts.any(|start| memory.contains(start))
    };
    let is_replaced = |module: &&Module| {
        let name = &module.name;
        let build = now.1.get(name);
        match before.0.get(name) == Some(*module) {
            true => {
                let is_same = build.is_some() && build == before.1.get(name);
                freed.contains_key(name) && (came_and_went || !is_same)
            }
            false => {
                came_and_went
                    || before
                        .0
                        .iter()
                        .filter(went)
                        .any(|other| overlaps(module, other))
            }
        }
    };
    let is_unknown = |module: &&Module| is_replaced(module) || has_inits(module);
    let replaced: BTreeSet<_> = now.0.iter().filter(is_unknown).collect();
    if replaced.is_empty() {
        return kallsyms;
    }
    let is_of = |line: &str, module: &Module| {
        let of = line
            .split_once("\t[")
            .and_then(|(_, of)| of.split_once(']'));
        of.is_some_and(|(of, _)| of == module.name)
    };
    let line = |line: &str| match replaced.iter().any(|module| is_of(line, module)) {
        true => unnamed(line),
        false => line.to_owned(),
    };
    kallsyms.split_inclusive('\n').map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_two_modules_had_has_no_name() {
        let modules = |text: &str| {
            let line = |line: &str| {
                let (name, at) = line.split_once(' ').unwrap();
                format!("{name} 8192 0 - Live 0xffffffffc00{at}\n")
            };
            Modules::parse(&text.split(", ").map(line).collect::<String>())
        };
        let builds = |of: &str| {
            let build = |word: &str| {
                word.split_once(':')
                    .map(|(name, id)| (name.to_owned(), id.into()))
            };
            of.split(' ').filter_map(build).collect::<Builds>()
        };
        let line =
            |name: &str| format!("ffffffffc0000000 t {name}\t[m]\nffffffff81000000 T other\n");
        for (before, now, freed, has_name) in [
            (("m 00000", ""), ("m 00000", ""), "", true),
            // Reloaded: the same build, another one, one without a build-id, and with another module in between.
            (("m 00000", "m:1"), ("m 00000", "m:1"), "m", true),
            (("m 00000", "m:1"), ("m 00000", "m:2"), "m", false),
            (("m 00000", ""), ("m 00000", ""), "m", false),
            (("m 00000", "m:1"), ("m 00000", "m:1"), "m y", false),
            (("m 00000, y 20000", "m:1"), ("m 00000", "m:1"), "m y", true),
            (
                ("m 00000, y 20000", "m:1"),
                ("m 00000", "m:1"),
                "y m y",
                false,
            ),
            // Loaded during the recording.
            (("x 20000", ""), ("x 20000, m 00000", ""), "", true),
            (("x 01000", ""), ("x 01000, m 00000", ""), "", true),
            (("x 01000", ""), ("m 00000", ""), "x", false),
            (("m 20000", "m:1"), ("m 00000", "m:1"), "m", true),
            (("x 20000", ""), ("x 20000, m 00000", ""), "y", false),
            (("x 20000", ""), ("m 00000", ""), "x", true),
            (("x 20000", ""), ("m 00000", ""), "x x", false),
        ] {
            let (now, before) = (
                (modules(now.0), builds(now.1)),
                (modules(before.0), builds(before.1)),
            );
            let mut times = BTreeMap::new();
            for name in freed.split_terminator(' ') {
                *times.entry(name.to_owned()).or_default() += 1;
            }
            let text = named(
                line("f"),
                (&before.0, &before.1),
                (&now.0, &now.1),
                &times,
                &BTreeMap::new(),
            );
            assert_eq!(
                text,
                line(if has_name { "f" } else { UNKNOWN }),
                "{before:?} {now:?}"
            );
        }
    }

    #[test]
    fn memory_that_init_functions_of_another_module_had_has_no_name() {
        let dep = "dep 8192 0 - Live 0xffffffffc0100000\n";
        let now = format!("{dep}m 8192 0 - Live 0xffffffffc0000000\n");
        for (before, freed, init, has_name) in [
            ("", &[][..], 0x1800, false),
            ("", &[], 0x2000, true),
            // It was loaded before the recording; and again.
            (dep, &[], 0x1800, true),
            (dep, &["dep"], 0x1800, false),
            (&now, &[], 0x1800, true),
        ] {
            let line = "ffffffffc0000000 t f\t[m]\n".to_owned();
            let freed = freed.iter().map(|name| ((*name).to_owned(), 1));
            let (before, now) = (Modules::parse(before), Modules::parse(&now));
            let text = named(
                line.clone(),
                (&before, &Builds::new()),
                (&now, &Builds::new()),
                &freed.collect(),
                &[("dep".to_owned(), 0xffff_ffff_c000_0000 + init)].into(),
            );
            assert_eq!(text == line, has_name, "{before:?} {init:#x}");
        }
    }
}
