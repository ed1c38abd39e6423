// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folded stacks: a line `outermost;...;innermost count` for each, as flamegraph.pl, inferno,
//! speedscope and ui.perfetto.dev read them.
//!
//! Each name is stored once, and a stack is a list of numbers of names: a map may have millions of
//! frames.

use crate::{
    output::controls,
    source::Loaded,
    symbols::{texts::AddressHasher, Frame, Place},
    tally::{By, Step, Tally},
    trace::UserRef,
    user::ByFrame,
};
use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::HashMap,
    hash::BuildHasherDefault,
    io::{self, Write},
    ops::Range,
    rc::Rc,
};

/// How many stacks are named between two reports of progress.
const STEP: usize = 4096;

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

/// Names of frames, each once.
#[derive(Default)]
pub struct Names {
    /// The same name may be of several kinds.
    numbers: HashMap<Rc<str>, Vec<u32>>,
    names: Vec<(Rc<str>, Kind)>,
}

impl Names {
    /// The number of a name.
    pub fn number(&mut self, name: &str, kind: Kind) -> u32 {
        if let Some(numbers) = self.numbers.get(name) {
            let same = |number: &&u32| self.names[**number as usize].1 == kind;
            if let Some(number) = numbers.iter().find(same) {
                return *number;
            }
        }
        let number = self.names.len() as u32;
        let name: Rc<str> = name.into();
        self.names.push((Rc::clone(&name), kind));
        self.numbers.entry(name).or_default().push(number);
        number
    }

    /// The name behind a number, and what it is.
    pub fn get(&self, number: u32) -> (&str, Kind) {
        let (name, kind) = &self.names[number as usize];
        (name, *kind)
    }

    /// Whether there are names of programs.
    pub fn has_user(&self) -> bool {
        let of_user = |kind| matches!(kind, Kind::User | Kind::UserAddress);
        self.names.iter().any(|(_, kind)| of_user(*kind))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// `form` of each name, by number.
    pub fn map<T>(&self, form: impl Fn(&str, Kind) -> T) -> Vec<T> {
        let names = self.names.iter();
        names.map(|(name, kind)| form(name, *kind)).collect()
    }

    /// For each number, the rank of its name in sorted order.
    pub fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.names.len() as u32).collect();
        order.sort_unstable_by_key(|number| &self.names[*number as usize]);
        let mut ranks = vec![0; order.len()];
        for (rank, number) in order.into_iter().enumerate() {
            ranks[number as usize] = rank as u32;
        }
        ranks
    }
}

/// A folded stack: frames by number, outermost first, and how often it was seen.
pub type Stack<'a> = (&'a [u32], u64);

/// Folded stacks.
#[derive(Debug, Default)]
pub struct Folded {
    frames: Vec<u32>,
    stacks: Vec<(Range<u32>, u64)>,
}

impl Folded {
    /// Adds a stack, outermost frame first.
    pub fn push(&mut self, frames: &[u32], count: u64) {
        let start = self.frames.len() as u32;
        self.frames.extend_from_slice(frames);
        self.stacks.push((start..self.frames.len() as u32, count));
    }

    /// All stacks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Stack<'_>> + Clone {
        let stacks = self.stacks.iter();
        stacks.map(|(frames, count)| (self.frames_of(frames), *count))
    }

    /// How often stacks were seen in all.
    pub fn total(&self) -> u64 {
        let counts = self.stacks.iter().map(|(_, count)| *count);
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
    pub fn at(&self, index: usize) -> &[u32] {
        self.frames_of(&self.stacks[index].0)
    }

    /// The stacks by index, those next to each other that have the most frames in common.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.stacks.len()).collect();
        order.sort_unstable_by_key(|index| self.at(*index));
        order
    }

    /// Orders stacks by the names of their frames, outermost first, each once.
    pub fn sort(&mut self, names: &Names) {
        let ranks = names.ranks();
        let mut stacks = std::mem::take(&mut self.stacks);
        stacks.sort_unstable_by(|(one, _), (other, _)| {
            by_rank(&ranks, self.frames_of(one), self.frames_of(other))
        });
        stacks.dedup_by(|(stack, count), (before, total)| {
            let same = self.frames_of(stack) == self.frames_of(before);
            if same {
                *total = total.saturating_add(*count);
            }
            same
        });
        self.stacks = stacks;
    }

    /// Puts the innermost frames first, in sorted order. `grouped`: the first frame of each stack
    /// is no function and stays the first.
    pub fn invert(&mut self, grouped: bool, names: &Names) {
        for (stack, _) in &self.stacks {
            let frames = &mut self.frames[stack.start as usize..stack.end as usize];
            let from = usize::from(grouped).min(frames.len());
            frames[from..].reverse();
        }
        self.sort(names);
    }

    fn frames_of(&self, stack: &Range<u32>) -> &[u32] {
        &self.frames[stack.start as usize..stack.end as usize]
    }
}

/// The order of two stacks by the names of their frames.
pub fn by_rank(ranks: &[u32], one: &[u32], other: &[u32]) -> Ordering {
    let differ = one.iter().zip(other).find(|(one, other)| one != other);
    match differ {
        Some((one, other)) => ranks[*one as usize].cmp(&ranks[*other as usize]),
        None => one.len().cmp(&other.len()),
    }
}

/// Folds the stacks of a tally, sorted. `by`: unless it is [`By::Stack`], a first frame names the
/// group. `progress` is called now and then with the number of stacks that are done.
pub fn fold(
    tally: &Tally,
    by: By,
    loaded: &Loaded,
    names: &mut Names,
    progress: &mut dyn FnMut(u64),
) -> Folded {
    let mut folded = Folded::default();
    let mut known = Known::new(|frame: &Frame<'_>| frame.plain().to_string());
    // A user stack is below many of the kernel's.
    let mut user_stacks = HashMap::<UserRef, Box<[u32]>>::new();
    let mut frames = Vec::new();
    for (done, (group, key, count)) in tally.iter().enumerate() {
        if done % STEP == 0 {
            progress(done as u64);
        }
        frames.clear();
        tally
            .keys()
            .walk_kernel(key, loaded, &mut |step| match step {
                Step::Text(text) => frames.push(names.number(text, kind_of_text(text))),
                step => known.push(&step, loaded, names, &mut frames),
            });
        let user = user_stacks.entry(key.user).or_insert_with(|| {
            let mut frames = Vec::new();
            tally.keys().walk_user(key.user, loaded, &mut |step| {
                known.push(&step, loaded, names, &mut frames);
            });
            frames.into()
        });
        frames.extend_from_slice(user);
        if by != By::Stack {
            frames.push(names.number(group, Kind::Group));
        }
        frames.reverse();
        folded.push(&frames, count.events);
    }
    folded.sort(names);
    folded
}

/// Frames that were named before: the same few calls are on most stacks.
pub struct Known<F> {
    name: F,
    /// For return addresses, and for exact addresses: the range in `frames`.
    places: [HashMap<u64, Range<u32>, BuildHasherDefault<AddressHasher>>; 2],
    /// For frames of user stacks.
    user: ByFrame<Range<u32>>,
    frames: Vec<u32>,
}

impl<F: Fn(&Frame<'_>) -> String> Known<F> {
    /// None yet; `name` says what a frame of the kernel is called.
    pub fn new(name: F) -> Self {
        Self {
            name,
            places: Default::default(),
            user: Default::default(),
            frames: Vec::new(),
        }
    }

    /// Adds the frames of a step to `to`, innermost first.
    pub fn push(&mut self, step: &Step<'_>, loaded: &Loaded, names: &mut Names, to: &mut Vec<u32>) {
        let Self {
            name,
            places,
            user,
            frames,
        } = self;
        let start = frames.len() as u32;
        let range = match step {
            Step::Kernel(ip, exact) => {
                places[usize::from(*exact)].entry(*ip).or_insert_with(|| {
                    for frame in loaded.symbols.frames(*ip, *exact) {
                        frames.push(names.number(&name(&frame), kind_of(&frame)));
                    }
                    start..frames.len() as u32
                })
            }
            Step::User(which) => user.entry(*which).or_insert_with(|| {
                for frame in loaded.user.frames(*which) {
                    frames.push(names.number(&frame.plain(), frame.kind()));
                }
                start..frames.len() as u32
            }),
            Step::Text(text) | Step::Missing(text) => {
                return to.push(names.number(text, Kind::Missing));
            }
        };
        to.extend_from_slice(&frames[range.start as usize..range.end as usize]);
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
    let texts = names.map(|name, kind| match kind {
        Kind::Kernel | Kind::Module | Kind::Address if mark => format!("{}_[k]", frame_text(name)),
        _ => frame_text(name).into_owned(),
    });
    let mut line = String::new();
    for (frames, count) in folded.iter() {
        line.clear();
        push_frames(frames, &texts, &mut line);
        writeln!(out, "{line} {count}")?;
    }
    Ok(())
}

/// Appends the frames of a stack, whose names are `texts` by number.
pub fn push_frames(frames: &[u32], texts: &[String], line: &mut String) {
    for (index, frame) in frames.iter().enumerate() {
        if index > 0 {
            line.push(';');
        }
        line.push_str(&texts[*frame as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        stack_map_bin,
        symbols::{kallsyms::Kallsyms, modules::Modules},
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
            folded.push(&frames.collect::<Vec<_>>(), *count);
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
        let mut progress = |_| called += 1;
        let folded = fold(&tally, By::Stack, &loaded, &mut names, &mut progress);
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
