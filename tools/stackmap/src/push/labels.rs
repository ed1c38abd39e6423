// SPDX-License-Identifier: MIT OR Apache-2.0

//! The labels of a profile.
//!
//! Servers take names as Prometheus has them: letters, digits and `_`, not a digit first. Names that begin
//! with `__` are the servers' own. A capture may say anything, so its values are bounded.

use crate::{
    capture::Manifest,
    output::{safe, warn},
    record::MAX_LABELS,
};
use std::collections::BTreeMap;

/// What the profile is called; servers show it as the first part of its type.
const PROFILE: &str = "stackmap";
/// So many bytes has a value at most.
const MAX_VALUE: usize = 256;
/// The label that Pyroscope lists profiles by.
const SERVICE_NAME: &str = "service_name";

/// The labels of a recording: what it says about itself, then what the user wrote about it, then what is
/// `given` now. The later ones replace the earlier ones.
pub fn labels(manifest: &Manifest, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut add = |name: &str, value: &str| {
        let value = bounded(value);
        let name = sanitized(name);
        // Without a value it is as if it were not there.
        match value.is_empty() {
            true => labels.remove(&name),
            false => labels.insert(name, value),
        };
    };
    add(SERVICE_NAME, PROFILE);
    add("host", manifest.host.as_deref().unwrap_or_default());
    add("release", &manifest.release);
    add("machine", &manifest.machine);
    for all in [&manifest.labels, given] {
        if let Some(service) = all.get("service") {
            add(SERVICE_NAME, service);
        }
        let mut names = BTreeMap::new();
        for (name, value) in all.iter().take(MAX_LABELS) {
            if let Some(other) = names.insert(sanitized(name), name) {
                warn(format_args!(
                    "the label {name} replaces the label {other}: servers do not tell them apart"
                ));
            }
            add(name, value);
        }
    }
    labels
        .entry(SERVICE_NAME.to_owned())
        .or_insert_with(|| PROFILE.to_owned());
    labels.insert("__name__".to_owned(), PROFILE.to_owned());
    labels
}

/// A name that servers take.
fn sanitized(name: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name: String = name
        .chars()
        .take(MAX_VALUE)
        .map(|c| if is_part(c) { c } else { '_' })
        .collect();
    let rest = name.trim_start_matches('_');
    let own = name.len() - rest.len() > 1;
    match own || !rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => format!("_{rest}"),
        false => name,
    }
}

/// A value without control characters, and not longer than it may be.
fn bounded(value: &str) -> String {
    let value = safe(value);
    let ends = value.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_VALUE).last();
    value[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    #[test]
    fn names_are_as_servers_want_them() {
        for (name, want) in [
            ("zone", "zone"),
            ("_zone", "_zone"),
            ("a.b-c 9", "a_b_c_9"),
            ("9a", "_9a"),
            ("_9a", "_9a"),
            ("__name__", "_name__"),
            (".-x", "_x"),
            ("caf\u{e9}", "caf_"),
            ("", "_"),
        ] {
            assert_eq!(sanitized(name), want, "{name}");
        }
        assert_eq!(sanitized(&"a".repeat(1000)).len(), MAX_VALUE);
    }

    #[test]
    fn later_labels_replace_earlier_ones() {
        let manifest = Manifest {
            host: Some("web1\n".to_owned()),
            release: "7.3".to_owned(),
            labels: map(&[("service", "shop"), ("zone", "a"), ("__name__", "x")]),
            ..Manifest::default()
        };
        assert_eq!(
            labels(&manifest, &map(&[("zone", "b"), ("release", "")])),
            map(&[
                ("__name__", "stackmap"),
                ("_name__", "x"),
                ("host", "web1\u{fffd}"),
                ("service", "shop"),
                ("service_name", "shop"),
                ("zone", "b"),
            ])
        );
        let of_none = labels(&Manifest::default(), &map(&[("service_name", "")]));
        let want = [("__name__", "stackmap"), ("service_name", "stackmap")];
        assert_eq!(of_none, map(&want));
    }

    #[test]
    fn values_are_bounded() {
        let long = "\u{20ac}".repeat(1000);
        assert_eq!(bounded(&long).len(), 255);
        assert_eq!(bounded("a\u{1b}[m"), "a\u{fffd}[m");
    }
}
