// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folded stacks: a line `outermost;...;innermost count` for each, as flamegraph.pl, inferno,
//! speedscope and ui.perfetto.dev read them.
//!
//! Each name is stored once, and a stack is a list of numbers of names: a map may have millions of
//! frames.

mod fold;
mod names;

pub use fold::{fold, Known};
pub use names::Names;

use crate::{
    output::controls,
    symbols::{texts::ByNumber, Frame, Place},
    weight::Unit,
};
use std::{
    borrow::Cow,
    cmp::Ordering,
    hash::{Hash, Hasher},
    io::{self, Write},
    ops::Range,
};

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// Not a function: the event, task or CPU that groups stacks.
    Group,
    /// A function of the kernel itself.
    Kernel,
    /// A function of a module.
    Module,
    /// Code or data without a name: its address.
    Address,
    /// A function of a program.
    User,
    /// Code of a program without a name: its file and the offset there, or its address.
    UserAddress,
    /// A placeholder for a missing stack.
    Missing,
}

/// The frames of a folded stack by number, outermost first: first those that many stacks share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames<'a>(&'a [u32], &'a [u32]);

impl<'a> Frames<'a> {
    /// All of them.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = u32> + use<'a> {
        self.0.iter().chain(self.1).copied()
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.0.len() + self.1.len()
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The frame at `index`.
    pub fn get(self, index: usize) -> Option<u32> {
        let frame = self.0.get(index);
        frame.or_else(|| self.1.get(index - self.0.len())).copied()
    }

    /// The `nr` outermost ones; there are as many.
    pub fn outermost(self, nr: usize) -> Self {
        match nr.checked_sub(self.0.len()) {
            Some(nr) => Self(self.0, &self.1[..nr]),
            None => Self(&self.0[..nr], &[]),
        }
    }

    /// Whether the first ones are the same in memory.
    fn share(self, other: Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    /// The order by the ranks of the frames.
    pub fn compare(self, other: Self, ranks: &[u32]) -> Ordering {
        let rank = |frame: u32| ranks[frame as usize];
        match self.share(other) {
            true => {
                let one = self.1.iter().copied().map(rank);
                one.cmp(other.1.iter().copied().map(rank))
            }
            false => self.iter().map(rank).cmp(other.iter().map(rank)),
        }
    }
}

impl PartialEq for Frames<'_> {
    fn eq(&self, other: &Self) -> bool {
        match self.share(*other) {
            true => self.1 == other.1,
            false => self.iter().eq(other.iter()),
        }
    }
}

impl Eq for Frames<'_> {}

impl Hash for Frames<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().for_each(|frame| frame.hash(state));
    }
}

/// A folded stack, and how often it was seen.
pub type Stack<'a> = (Frames<'a>, u64);

/// A stack in [`Folded`]: where its frames are.
#[derive(Clone, Debug)]
struct Row {
    outer: Range<u32>,
    inner: Range<u32>,
    count: u64,
}

/// Folded stacks.
#[derive(Debug, Default)]
pub struct Folded {
    frames: Vec<u32>,
    stacks: Vec<Row>,
}

impl Folded {
    /// Adds a stack, outermost frame first.
    pub fn push(&mut self, frames: impl IntoIterator<Item = u32>, count: u64) {
        let inner = self.keep(frames);
        self.stacks.push(Row {
            outer: 0..0,
            inner,
            count,
        });
    }

    /// Keeps frames that stacks share.
    fn keep(&mut self, frames: impl IntoIterator<Item = u32>) -> Range<u32> {
        let start = self.frames.len() as u32;
        self.frames.extend(frames);
        start..self.frames.len() as u32
    }

    /// All stacks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Stack<'_>> + Clone {
        let stacks = self.stacks.iter();
        stacks.map(|row| (self.frames_of(row), row.count))
    }

    /// How often stacks were seen in all.
    pub fn total(&self) -> u64 {
        let counts = self.stacks.iter().map(|row| row.count);
        counts.fold(0, u64::saturating_add)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The frames of the stack at `index`, which there is.
    pub fn at(&self, index: usize) -> Frames<'_> {
        self.frames_of(&self.stacks[index])
    }

    /// The stacks by index, those next to each other that have the most frames in common.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.stacks.len()).collect();
        order.sort_unstable_by(|one, other| self.at(*one).iter().cmp(self.at(*other).iter()));
        order
    }

    /// Replaces frames by those of `numbers`, and orders the stacks.
    pub fn rename(&mut self, numbers: &[u32], names: &Names) {
        for frame in &mut self.frames {
            *frame = numbers[*frame as usize];
        }
        self.sort(names);
    }

    /// Orders stacks by the names of their frames, outermost first, each once.
    pub fn sort(&mut self, names: &Names) {
        let ranks = names.ranks();
        let mut stacks = std::mem::take(&mut self.stacks);
        stacks.sort_unstable_by(|one, other| {
            let (one, other) = (self.frames_of(one), self.frames_of(other));
            one.compare(other, &ranks)
        });
        stacks.dedup_by(|row, before| {
            let same = self.frames_of(row) == self.frames_of(before);
            if same {
                before.count = before.count.saturating_add(row.count);
            }
            same
        });
        self.stacks = stacks;
    }

    /// Counts in what folded stacks of a unit are counted in, and leaves out times of which nothing is left.
    fn count_in(&mut self, unit: &Unit) {
        self.stacks.retain_mut(|row| {
            row.count = unit.folded(row.count);
            row.count > 0 || *unit != Unit::Nanos
        });
    }

    /// Puts the innermost frames first, in sorted order. `grouped`: the first frame of each stack
    /// is no function and stays the first.
    pub fn invert(&mut self, grouped: bool, names: &Names) {
        let mut inverted = Self::default();
        for (frames, count) in self.iter() {
            let first = frames.iter().take(usize::from(grouped));
            let rest = frames.iter().skip(usize::from(grouped));
            // A chain cannot be skipped from its other end.
            let mut rest: Vec<_> = rest.collect();
            rest.reverse();
            inverted.push(first.chain(rest), count);
        }
        inverted.sort(names);
        *self = inverted;
    }

    fn frames_of(&self, row: &Row) -> Frames<'_> {
        let frames = |range: &Range<u32>| &self.frames[range.start as usize..range.end as usize];
        Frames(frames(&row.outer), frames(&row.inner))
    }
}

/// What a frame is.
pub fn kind_of(frame: &Frame<'_>) -> Kind {
    match frame.place {
        Place::Symbol(symbol) if symbol.module.is_some() => Kind::Module,
        Place::Symbol(_) | Place::Trampoline => Kind::Kernel,
        Place::Unknown => Kind::Address,
    }
}

/// Marks of frames that what draws folded stacks knows: of the kernel, inlined, compiled at run time, and
/// unknown.
const MARKS: [&str; 4] = ["_[k]", "_[i]", "_[j]", "_[w]"];

/// A name without what means something else in folded stacks: `;` and control characters, which would
/// end the frame or the line, and a mark at its end; and without characters that deceive (see [`controls`]).
pub fn frame_text(name: &str) -> Cow<'_, str> {
    let is_special = |c: char| c == ';' || controls(c);
    let is_marked = MARKS.iter().any(|mark| name.ends_with(mark));
    if !is_marked && !name.contains(is_special) {
        return Cow::Borrowed(name);
    }
    let chars = name.chars().map(|c| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c if controls(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    });
    let mut text: String = chars.collect();
    if is_marked {
        text.push(' ');
    }
    Cow::Owned(text)
}

/// Writes folded stacks, a line each.
pub fn write(folded: &Folded, names: &Names, out: &mut impl Write) -> io::Result<()> {
    // Beside functions of programs, those of the kernel are marked as flamegraph.pl wants it.
    let mark = names.has_user();
    // Few names are written in another way than they are.
    let mut others = ByNumber::<u32, String>::default();
    for (number, (name, _)) in names.iter().enumerate() {
        if let Cow::Owned(text) = frame_text(name) {
            others.insert(number as u32, text);
        }
    }
    let push = |line: &mut Vec<u8>, frames: &[u32]| {
        for frame in frames {
            let (name, kind) = names.get(*frame);
            let other = match others.is_empty() {
                true => None,
                false => others.get(frame),
            };
            line.extend_from_slice(other.map_or(name, String::as_str).as_bytes());
            if mark && matches!(kind, Kind::Kernel | Kind::Module | Kind::Address) {
                line.extend_from_slice(b"_[k]");
            }
            line.push(b';');
        }
    };
    let (mut line, mut behind) = (Vec::new(), Vec::new());
    // The frames that the line begins with, and their length.
    let mut before = (Frames::default(), 0);
    for (frames, count) in folded.iter() {
        if !frames.share(before.0) {
            line.clear();
            push(&mut line, frames.0);
            before = (frames, line.len());
        }
        line.truncate(before.1);
        push(&mut line, frames.1);
        behind.clear();
        behind.push(b' ');
        behind.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
        behind.push(b'\n');
        // Each frame is followed by a semicolon.
        out.write_all(line.strip_suffix(b";").unwrap_or(&line))?;
        out.write_all(&behind)?;
    }
    Ok(())
}

/// Appends the frames of a stack, whose names are `texts` by number.
pub fn push_frames(frames: Frames<'_>, texts: &[String], line: &mut String) {
    for (index, frame) in frames.iter().enumerate() {
        if index > 0 {
            line.push(';');
        }
        line.push_str(&texts[frame as usize]);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn text(folded: &Folded, names: &Names) -> String {
        let mut text = Vec::new();
        write(folded, names, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Stacks of words.
    pub(crate) fn folded(lines: &[(&str, u64)], names: &mut Names) -> Folded {
        let mut folded = Folded::default();
        for (line, count) in lines {
            let kind = |name: &str| match name {
                _ if name.starts_with("0x") => Kind::Address,
                _ if name.ends_with(']') => Kind::Module,
                _ => Kind::Kernel,
            };
            let frames = line.split(',').map(|name| names.number(name, kind(name)));
            folded.push(frames.collect::<Vec<_>>(), *count);
        }
        folded.sort(names);
        folded
    }

    #[test]
    fn separators_in_a_frame_are_replaced() {
        let mut names = Names::default();
        let folded = folded(
            &[("a;b,c\nd,e f,\u{202e}g\u{9b},sh\u{200b},h_[k]", 7)],
            &mut names,
        );
        assert_eq!(
            text(&folded, &names),
            "a:b;c d;e f;\u{fffd}g ;sh\u{fffd};h_[k]  7\n"
        );
    }

    #[test]
    fn equal_stacks_are_merged() {
        let mut names = Names::default();
        let stacks = [("b,c", 1), ("a", 2), ("b,c", u64::MAX), ("b", 4)];
        let folded = folded(&stacks, &mut names);
        let want = format!("a 2\nb 4\nb;c {}\n", u64::MAX);
        assert_eq!(text(&folded, &names), want);
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn times_are_added_up_before_they_are_rounded() {
        let mut names = Names::default();
        let stacks = [("a", 600), ("b", 999), ("a", 600), ("c", 0)];
        let mut times = folded(&stacks, &mut names);
        times.count_in(&Unit::Nanos);
        assert_eq!(text(&times, &names), "a 1\n");
        let mut bytes = folded(&stacks, &mut names);
        bytes.count_in(&Unit::Bytes);
        assert_eq!(text(&bytes, &names), "a 1200\nb 999\nc 0\n");
    }
}
