// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folded stacks: a line `outermost;...;innermost count` for each, as flamegraph.pl, inferno,
//! speedscope and ui.perfetto.dev read them.

use crate::{
    source::Loaded,
    tally::{By, Style, Tally},
};
use std::collections::BTreeMap;

/// Each stack, outermost frame first, with how often it was seen. `by`: a first frame says what
/// the events have in common.
pub fn fold(tally: &Tally, by: By, loaded: &Loaded) -> BTreeMap<Vec<String>, u64> {
    let mut folded = BTreeMap::new();
    for (group, key, count) in tally.iter() {
        let mut frames = Vec::new();
        tally.frames(key, loaded, Style::Plain, &mut |frame| frames.push(frame));
        if by != By::Stack {
            frames.push(group.to_owned());
        }
        frames.reverse();
        let total: &mut u64 = folded.entry(frames).or_default();
        *total = total.saturating_add(count.events);
    }
    folded
}

/// A line without its newline.
pub fn line(frames: &[String], count: u64) -> String {
    let mut line = String::new();
    for (index, frame) in frames.iter().enumerate() {
        if index > 0 {
            line.push(';');
        }
        // What would end a frame or the line.
        line.extend(frame.chars().map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        }));
    }
    format!("{line} {count}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_frame_ends_it() {
        let frames = ["a;b".to_owned(), "c\nd".to_owned(), "e f".to_owned()];
        assert_eq!(line(&frames, 7), "a:b;c d;e f 7");
        assert_eq!(line(&[], 1), " 1");
    }
}
