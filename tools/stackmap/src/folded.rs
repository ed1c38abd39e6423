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
    symbols::{
        texts::{push_decimal, ByNumber},
        Frame, Place,
    },
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
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
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

    /// How many stacks there are.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The frames of the stack at `index`, which is below [`len`](Self::len).
    pub fn at(&self, index: usize) -> Frames<'_> {
        self.frames_of(&self.stacks[index])
    }

    /// The stacks by index, those next to each other that have the most frames in common.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.stacks.len()).collect();
        order.sort_unstable_by(|one, other| self.at(*one).iter().cmp(self.at(*other).iter()));
        order
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

/// What a frame is that the kernel printed.
pub fn kind_of_text(frame: &str) -> Kind {
    let digits = frame.strip_prefix("0x");
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match digits {
        Some(digits) if is_hex(digits) => Kind::Address,
        _ if crate::symbols::frames::parts(frame).1.is_some() => Kind::Module,
        _ => Kind::Kernel,
    }
}

/// A name without what means something else in folded stacks: `;` and control characters, which would
/// end the frame or the line, and a mark at its end.
pub fn frame_text(name: &str) -> Cow<'_, str> {
    let is_special = |c: char| c == ';' || controls(c);
    let is_marked = MARKS.iter().any(|mark| name.ends_with(mark));
    if !is_marked && !name.contains(is_special) {
        return Cow::Borrowed(name);
    }
    let chars = name.chars().map(|c| match c {
        ';' => ':',
        c if controls(c) => ' ',
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
        push_decimal(&mut behind, count);
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
mod tests {
    use super::{fold::fold_read, *};
    use crate::{
        source::Loaded,
        stack_map_bin,
        symbols::{kallsyms::Kallsyms, modules::Modules},
        tally::{By, Tally},
    };

    fn text(folded: &Folded, names: &Names) -> String {
        let mut text = Vec::new();
        write(folded, names, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Stacks of words.
    pub(crate) fn folded(lines: &[(&str, u64)], names: &mut Names) -> Folded {
        let mut folded = Folded::default();
        for (line, count) in lines {
            let frames = line
                .split(',')
                .map(|name| names.number(name, kind_of_text(name)));
            folded.push(frames.collect::<Vec<_>>(), *count);
        }
        folded.sort(names);
        folded
    }

    #[test]
    fn separators_in_a_frame_are_replaced() {
        let mut names = Names::default();
        let folded = folded(&[("a;b,c\nd,e f,\u{202e}g\u{9b},h_[k]", 7)], &mut names);
        assert_eq!(text(&folded, &names), "a:b;c d;e f; g ;h_[k]  7\n");
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

    #[test]
    fn inverted_stacks_begin_with_their_innermost_frames() {
        let mut names = Names::default();
        let mut stacks = folded(&[("main,b,leaf", 1), ("main,leaf", 2)], &mut names);
        stacks.invert(false, &names);
        assert_eq!(text(&stacks, &names), "leaf;b;main 1\nleaf;main 2\n");
        let mut stacks = folded(&[("event,main,b,leaf", 1)], &mut names);
        stacks.invert(true, &names);
        assert_eq!(text(&stacks, &names), "event;leaf;b;main 1\n");
    }

    /// Folds stacks of a map with these symbols.
    fn fold_map(kallsyms: &str, plumbing: bool, stacks: &[&[u64]]) -> String {
        let mut loaded = Loaded::default();
        let table = Kallsyms::parse(kallsyms.into(), &Modules::default(), "").unwrap();
        loaded.symbols.kallsyms = Some(table);
        loaded.symbols.plumbing = plumbing;
        for (index, ips) in stacks.iter().enumerate() {
            let stack = stack_map_bin::Stack {
                id: index as u32 + 1,
                ref_count: 1,
                ips,
            };
            loaded.stacks.push(stack).unwrap();
        }
        let mut tally = Tally::default();
        let (stacks, key) = loaded.map();
        tally.add_map(stacks, key);
        let mut names = Names::default();
        let mut called = 0;
        let mut folded = Folded::default();
        let mut progress = |_| called += 1;
        fold_read(
            &tally,
            By::Stack,
            &loaded,
            &mut folded,
            &mut names,
            &mut progress,
        );
        folded.sort(&names);
        assert!(called > 0);
        text(&folded, &names)
    }

    const KALLSYMS: &str = "\
        ffffffff81000000 T _text\n\
        ffffffff81000100 t memchr\n\
        ffffffff81000200 t __pfx_strlen\n\
        ffffffff81000210 t strlen\n\
        ffffffff81000230 t .Lloop\n\
        ffffffff81000300 t asm_exc_page_fault\n\
        ffffffff81000400 t exc_page_fault\n\
        ffffffff81000500 t trace_event_raw_event_page_fault_kernel\n\
        ffffffff81000600 t __traceiter_page_fault_kernel\n\
        ffffffff81000700 t vfs_read\n\
        ffffffff81000800 T _end\n";

    #[test]
    fn an_address_below_an_entry_is_exact() {
        let below = |ip| {
            let stack = [0xffff_ffff_8100_0410, 0xffff_ffff_8100_0326, ip];
            fold_map(KALLSYMS, false, &[&stack])
        };
        let rest = ";asm_exc_page_fault;exc_page_fault 1\n";
        for (ip, name) in [
            (0xffff_ffff_8100_0210, "strlen"),
            (0xffff_ffff_8100_0235, "strlen"),
            (0xffff_ffff_8100_0208, "strlen"),
            (0xffff_ffff_8100_0200, "strlen"),
            (0xffff_ffff_8100_01ff, "memchr"),
            (0xffff_ffff_8100_0700, "vfs_read"),
        ] {
            assert_eq!(below(ip), format!("{name}{rest}"), "{ip:x}");
        }
        // A return address is not.
        let call = [0xffff_ffff_8100_0410, 0xffff_ffff_8100_0700];
        let text = fold_map(KALLSYMS, false, &[&call]);
        assert_eq!(text, "__traceiter_page_fault_kernel;exc_page_fault 1\n");
    }

    #[test]
    fn plumbing_is_shown_on_request() {
        let stack = [
            0xffff_ffff_8100_0510,
            0xffff_ffff_8100_0610,
            0xffff_ffff_8100_0410,
        ];
        assert_eq!(fold_map(KALLSYMS, false, &[&stack]), "exc_page_fault 1\n");
        assert_eq!(
            fold_map(KALLSYMS, true, &[&stack]),
            "exc_page_fault;__traceiter_page_fault_kernel;trace_event_raw_event_page_fault_kernel \
             1\n"
        );
    }
}
