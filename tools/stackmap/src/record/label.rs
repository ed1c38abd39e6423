// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a user says of a recording: `--label service=web`.

use std::{collections::BTreeMap, str::FromStr};

/// The most bytes of the name of a label, and of its value.
const MAX_NAME: usize = 64;
const MAX_VALUE: usize = 256;

/// A label: a name and a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Label {
    name: String,
    value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or("a label is NAME=VALUE: service=web")?;
        let is_part = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_part) {
            return Err(format!(
                "the name of a label has 1 to {MAX_NAME} characters of a-z, 0-9, \"_\", \".\" and \"-\""
            ));
        }
        if value.len() > MAX_VALUE || value.chars().any(char::is_control) {
            return Err(format!(
                "the value of a label has at most {MAX_VALUE} bytes, and no control characters"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl Label {
    /// All of them, by their names. Of several with one name, the last one counts, as with options.
    pub fn all(labels: &[Self]) -> BTreeMap<String, String> {
        let pair = |label: &Self| (label.name.clone(), label.value.clone());
        labels.iter().map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let long = |nr: usize| "a".repeat(nr);
        let euros = |nr: usize| format!("k={}", "\u{20ac}".repeat(nr));
        for (text, is_label) in [
            ("service=web", true),
            ("a.b-c_9=x=y", true),
            ("k=", true),
            ("k=caf\u{e9} 1", true),
            (&format!("{}=x", long(64)), true),
            (&format!("k={}", long(256)), true),
            (&euros(85), true),
            ("k", false),
            ("=x", false),
            ("K=x", false),
            ("k k=x", false),
            ("\u{e9}=x", false),
            ("k=a\nb", false),
            ("k=\u{1b}[m", false),
            (&format!("{}=x", long(65)), false),
            (&format!("k={}", long(257)), false),
            (&euros(86), false),
        ] {
            assert_eq!(text.parse::<Label>().is_ok(), is_label, "{text}");
        }
        let labels: [Label; 3] = ["a=1", "b=2", "a=3=4"].map(|text| text.parse().unwrap());
        let all = Label::all(&labels).into_iter();
        let all: Vec<_> = all.map(|(name, value)| format!("{name}:{value}")).collect();
        assert_eq!(all, ["a:3=4", "b:2"]);
    }
}
