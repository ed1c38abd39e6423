// SPDX-License-Identifier: GPL-2.0

//! The walk finds all frames, on stacks of every kind, and no more than there are.

use proptest::{collection::vec, prelude::*};
use stackmap_unwind::{
    guided::{Guide, Guides},
    hinted,
    rules::{Hinted, Outcome, Rule, Run},
    walk::{walk, Frame, Registers, Stack, Unwinder, WalkCounter, Walked},
    walk_hostile, Known, KnownStack,
};
use std::{cell::Cell, collections::HashMap, mem::MaybeUninit};

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;

/// The address that a tracer puts in place of a return address.
const REPLACED: u64 = TEXT + 1;

/// The stack of an interrupt, then the task's, which lies higher.
const STACKS: [u64; 2] = [0xffff_8880_0000_0000, 0xffff_8880_1000_0000];

/// Bytes of each.
const SIZE: u64 = 1 << 16;

/// How one frame leads to the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Link {
    /// By the stack pointer.
    Sp,
    /// By the frame pointer.
    Bp,
    /// Only the kernel knows how.
    Odd,
    /// By text that may go at any time.
    Fleeting,
    /// The next one has been interrupted.
    Interrupt,
    /// A tracer has replaced the return address.
    Traced,
    /// To the other stack, where the frame pointer leads; when there already, as by the frame pointer.
    Switch,
}

/// Where a stack ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The registers of user space.
    User,
    /// A function without a caller.
    Outermost,
    /// An address that is no text.
    NoText,
}

/// Words of one frame: how many, and where the frame pointer is saved, if it is.
#[derive(Clone, Copy, Debug)]
struct Shape {
    link: Link,
    words: u64,
    saved: Option<u64>,
    bp: u64,
}

impl Shape {
    fn is_by_bp(&self) -> bool {
        matches!(self.link, Link::Bp | Link::Switch)
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let link = prop_oneof![
        8 => Just(Link::Sp),
        4 => Just(Link::Bp),
        1 => Just(Link::Odd),
        1 => Just(Link::Fleeting),
        1 => Just(Link::Interrupt),
        1 => Just(Link::Traced),
        1 => Just(Link::Switch),
    ];
    (link, 2..20_u64, proptest::option::of(0..20_u64), 0..20_u64).prop_map(
        |(link, words, saved, bp)| Shape {
            link,
            words,
            saved: saved.map(|at| match link {
                // Where `push %rbp` puts it.
                Link::Bp => words - 2,
                _ => at % (words - 1),
            }),
            bp: bp % words,
        },
    )
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::User), Just(End::Outermost), Just(End::NoText)]
}

/// A stack that was made up, and the kernel that knows it.
struct Made {
    memory: HashMap<u64, u64>,
    shapes: Vec<Shape>,
    end: End,
    /// All frames, the innermost first, and one more: nothing.
    frames: Vec<Frame>,
    rules: HashMap<u64, Rule>,
    learnt: usize,
    steps: usize,
    counts: [u64; WalkCounter::COUNT],
    /// The frame that is recorded as [`MARKER`].
    marked: Option<usize>,
}

/// What is recorded for an address in a tracer's own text.
const MARKER: u64 = 0x7fff_ffff;

impl Made {
    fn new(shapes: Vec<Shape>, end: End) -> Self {
        // SAFETY: Only `load` reads there, and it makes it up.
        let stacks = STACKS.map(|begin| unsafe { Stack::new(begin, begin + SIZE) });
        let switches = shapes.iter().any(|shape| shape.link == Link::Switch);
        let mut stack = stacks[usize::from(!switches)];
        let mut sp = stack.begin() + 4096;
        let mut interrupted = false;
        let mut frames = Vec::new();
        for index in 0..=shapes.len() {
            frames.push(Frame {
                at: Registers {
                    ip: TEXT + 16 + index as u64 * 16,
                    sp,
                    bp: 0,
                },
                stack,
                interrupted,
            });
            let Some(shape) = shapes.get(index) else {
                break;
            };
            sp += shape.words * 8;
            interrupted = shape.link == Link::Interrupt;
            if shape.link == Link::Switch && stack.begin() == STACKS[0] {
                stack = stacks[1];
                sp = stack.begin() + 4096;
            }
        }
        let mut made = Self {
            memory: HashMap::new(),
            shapes,
            end,
            frames,
            rules: HashMap::new(),
            learnt: 0,
            steps: 0,
            counts: [0; WalkCounter::COUNT],
            marked: None,
        };
        made.lay_out();
        made
    }

    /// Chooses frame pointers, and writes what the frames have on the stack.
    fn lay_out(&mut self) {
        let nr = self.shapes.len();
        for index in 0..=nr {
            let before = index.checked_sub(1);
            self.frames[index].at.bp = match (self.shapes.get(index), before) {
                (Some(shape), _) if shape.is_by_bp() => self.frames[index + 1].at.sp - 8 * shape.bp,
                // It has stayed, if that is possible.
                (_, Some(before)) if self.shapes[before].saved.is_none() => {
                    self.frames[before].at.bp
                }
                _ => 0xb0b0 + index as u64,
            };
        }
        for index in 0..nr {
            let (frame, caller) = (self.frames[index], self.frames[index + 1]);
            let shape = &mut self.shapes[index];
            if shape.link == Link::Interrupt {
                self.memory
                    .extend([(frame.at.sp, caller.at.ip), (frame.at.sp + 8, 0x10)]);
                continue;
            }
            if caller.at.bp != frame.at.bp {
                shape.saved.get_or_insert(match shape.link {
                    Link::Bp => shape.words - 2,
                    _ => 0,
                });
            }
            if let Some(at) = shape.saved {
                self.memory.insert(frame.at.sp + 8 * at, caller.at.bp);
            }
            let ip = match shape.link {
                Link::Traced => REPLACED,
                _ => caller.at.ip,
            };
            self.memory.insert(caller.at.sp - 8, ip);
        }
        // User space's: ip, cs.
        let last = self.frames[nr].at.sp;
        self.memory.extend([(last, 0x1000), (last + 8, 0x33)]);
    }

    fn index_of(&self, ip: u64) -> usize {
        (ip.wrapping_sub(TEXT + 16) / 16) as usize
    }

    /// What the kernel's unwinder does at a frame, from other pointers.
    fn try_from(&self, index: usize, sp: u32, bp: u32) -> Outcome {
        let Some(shape) = self.shapes.get(index) else {
            return match self.end {
                End::User => Outcome::Registers(sp),
                _ => Outcome::End,
            };
        };
        let new = match shape.link {
            Link::Sp | Link::Traced => sp + shape.words as u32,
            Link::Bp | Link::Switch => bp + shape.bp as u32,
            Link::Interrupt => return Outcome::Registers(sp),
            Link::Odd | Link::Fleeting => return Outcome::Other,
        };
        Outcome::Caller {
            ip: new - 1,
            sp: new,
            bp: shape.saved.map(|at| match shape.link {
                Link::Bp => new - (shape.words - at) as u32,
                _ => sp + at as u32,
            }),
        }
    }

    /// All return addresses.
    fn ips(&self) -> Vec<u64> {
        let mut ips: Vec<u64> = self.frames.iter().map(|frame| frame.at.ip).collect();
        if let End::NoText = self.end {
            ips.pop();
        }
        ips
    }

    /// Those that the walk finds.
    fn walk(&mut self, skip: usize, room: usize) -> Vec<u64> {
        self.walk_with(None, skip, room).0
    }

    /// The same with guides; and whether one of these has told.
    fn walk_with(
        &mut self,
        known: Option<&[Vec<u64>]>,
        skip: usize,
        room: usize,
    ) -> (Vec<u64>, bool) {
        let mut ips = vec![MaybeUninit::uninit(); room];
        let frame = self.frames[0];
        match walk(self, frame, skip, &mut ips, 0, known.map(Known)) {
            Walked::Known(guide, _) => (guide.frames().collect(), true),
            Walked::Frames(nr, left) => {
                // SAFETY: So many were written.
                let ips = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                let ips: Vec<u64> = ips.collect();
                if let Some((guide, same)) = left {
                    let shared = ips.iter().copied().zip(guide.frames());
                    let shared = shared.take_while(|(one, other)| one == other).count();
                    assert!(
                        same <= shared || shared == nr,
                        "{same} frames, {shared} shared"
                    );
                }
                (ips, false)
            }
        }
    }

    /// The words of its stack, with the hints of the rules that were learnt.
    fn hinted(&self, frames: &[u64]) -> Vec<u64> {
        let replaced = |ip: u64| {
            let index = self.index_of(ip);
            self.shapes
                .get(index)
                .is_some_and(|shape| shape.link == Link::Traced)
        };
        hinted(frames, |ip| match self.rules.get(&ip) {
            Some(rule) if !replaced(ip) => *rule,
            _ => Rule::UNKNOWN,
        })
    }
}

impl Unwinder for Made {
    unsafe fn load(&self, addr: u64) -> u64 {
        let on = |begin: &u64| (*begin..=begin + SIZE - 8).contains(&addr);
        assert!(STACKS.iter().any(on), "{addr:#x} is on no stack");
        self.memory.get(&addr).copied().unwrap_or(0xdead)
    }

    fn rule(&self, ip: u64) -> Rule {
        self.rules.get(&ip).copied().unwrap_or(Rule::UNKNOWN)
    }

    fn learn(&mut self, ip: u64) -> Rule {
        let index = self.index_of(ip);
        if self
            .shapes
            .get(index)
            .is_some_and(|shape| shape.link == Link::Fleeting)
        {
            return Rule::UNKNOWN;
        }
        let runs = [400, 440].map(|bp| Run {
            sp: 16,
            bp,
            outcome: self.try_from(index, 16, bp),
        });
        let rule = Rule::learn(&runs);
        assert!(self.rules.insert(ip, rule).is_none(), "learnt twice");
        self.learnt += 1;
        rule
    }

    fn is_text(&self, ip: u64) -> bool {
        let nr = match self.end {
            End::NoText => self.shapes.len(),
            _ => self.frames.len(),
        };
        self.index_of(ip) < nr
    }

    fn is_replaced(&self, ip: u64) -> bool {
        ip == REPLACED
    }

    fn shown(&self, ip: u64) -> Option<u64> {
        let is_marked = self.marked == Some(self.index_of(ip));
        Some(if is_marked { MARKER } else { ip })
    }

    fn are_users(&self, stack: &Stack, registers: u64) -> bool {
        stack.holds(registers, 16)
            && stack
                .word(self, registers + 8)
                .is_some_and(|cs| cs & 3 != 0)
            && stack.word(self, registers).is_some_and(|ip| ip < 1 << 47)
    }

    fn step(&mut self, frame: Frame) -> Option<Frame> {
        let index = self.index_of(frame.at.ip);
        let known = self.frames[index];
        assert_eq!(
            (frame.at.sp, frame.at.bp),
            (known.at.sp, known.at.bp),
            "frame {index}"
        );
        assert_eq!(frame.interrupted, known.interrupted, "frame {index}");
        self.steps += 1;
        self.frames.get(index + 1).copied()
    }

    fn count(&mut self, found: WalkCounter, nr: u64) {
        self.counts[found as usize] += nr;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    })]

    #[test]
    fn all_frames_are_found(shapes in vec(shape(), 0..60), end in end(), skip in 0..5_usize) {
        let mut made = Made::new(shapes, end);
        let all = made.ips();
        let wanted = &all[skip.min(all.len())..];
        prop_assert_eq!(made.walk(skip, 1024), wanted);
        let (learnt, slow) = (made.learnt, made.counts[WalkCounter::New as usize]);
        prop_assert_eq!(made.walk(skip, 1024), wanted);
        // Now all that can be known is: nothing is learnt a second time.
        prop_assert_eq!((made.learnt, made.counts[WalkCounter::New as usize]), (learnt, slow));
    }

    #[test]
    fn a_walk_stops_when_the_buffer_is_full(
        shapes in vec(shape(), 0..60),
        end in end(),
        skip in 0..5_usize,
        room in 0..70_usize,
    ) {
        let mut made = Made::new(shapes, end);
        let all = made.ips();
        let wanted: Vec<u64> = all.into_iter().skip(skip).take(room).collect();
        prop_assert_eq!(made.walk(skip, room), wanted);
    }

    #[test]
    fn a_frame_with_a_rule_does_not_call_the_kernel(shapes in vec(shape(), 0..60), end in end()) {
        let mut made = Made::new(shapes, end);
        let count = |link| made.shapes.iter().filter(|shape| shape.link == link).count();
        let after_interrupt = (made.frames.iter().zip(&made.shapes))
            .filter(|(frame, shape)| frame.interrupted && shape.link != Link::Interrupt)
            .count();
        let most = count(Link::Odd) + count(Link::Fleeting) + count(Link::Interrupt)
            + count(Link::Traced) + count(Link::Switch) + after_interrupt + 1;
        let _ = made.walk(0, 1024);
        prop_assert!(made.steps <= most, "{} steps, {most} frames that want one", made.steps);
    }

    #[test]
    fn guides_lead_to_the_frames_that_are_there(
        shapes in vec(shape(), 0..60),
        end in end(),
        skip in 0..5_usize,
        room in 1..70_usize,
        // Of other stacks: where they leave this one, and whether before or behind it.
        others in vec((0..60_usize, any::<bool>()), 0..5),
        // Frames whose hints are taken.
        taken in vec(0..60_usize, 0..4),
        has_own: bool,
    ) {
        let mut made = Made::new(shapes, end);
        let wanted = made.walk(skip, room);
        let mut known = Vec::new();
        for (nr, longer) in others {
            // A guide that goes on where this stack ends has no other behind it.
            let most = wanted.len().saturating_sub(longer.into());
            let mut frames = wanted[..nr.min(most)].to_vec();
            if longer {
                frames.extend([TEXT + 8, TEXT + 24]);
            }
            known.push(made.hinted(&frames));
        }
        if has_own {
            known.push(made.hinted(&wanted));
        }
        for frame in taken {
            for words in &mut known {
                if let Some(word) = words.get_mut(frame) {
                    *word &= 0xffff_ffff;
                }
            }
        }
        known.retain(|words| !words.is_empty());
        let (found, is_known) = made.walk_with(Some(&known), skip, room);
        prop_assert_eq!(&found, &wanted);
        // A full buffer does not say whether the stack goes on.
        prop_assert!(is_known || !has_own || wanted.len() == room || wanted.is_empty());
    }

    #[test]
    fn no_rule_reads_outside_the_stack(bytes in vec(any::<u8>(), 0..2000)) {
        walk_hostile(&bytes);
    }
}

#[test]
fn the_bounds_of_a_stack_are_exact() {
    // SAFETY: Nothing is read.
    let stack = |begin, end| unsafe { Stack::new(begin, end) };
    let some = stack(1000, 1016);
    for (addr, len, held) in [
        (1000, 16, true),
        (1000, 17, false),
        (1008, 8, true),
        (1009, 8, false),
        (999, 8, false),
        (992, 8, false),
        (!0, 8, false),
        (1000, !0, false),
    ] {
        assert_eq!(some.holds(addr, len), held, "{len} at {addr}");
    }
    assert!(!stack(1000, 1000).holds(1000, 1));
    assert!(!stack(1000, 1004).holds(1000, 8));
    assert!(!stack(1016, 1000).holds(1008, 8));
    // The end of all addresses.
    assert!(!stack(!0 - 15, !0).holds(!0 - 7, 8));
}

#[test]
fn a_stack_is_not_walked_backwards() {
    let shape = Shape {
        link: Link::Bp,
        words: 4,
        saved: None,
        bp: 0,
    };
    let mut made = Made::new(vec![shape, shape], End::Outermost);
    // The frame pointer leads below the stack pointer.
    made.frames[0].at.sp += 64;
    let all = made.ips();
    assert_eq!(made.walk(0, 10), all);
    assert_eq!(
        (made.steps, made.counts[WalkCounter::Stack as usize]),
        (1, 1)
    );
}

/// A kernel in which all calls are alike, and nothing else is known.
struct Alike {
    stack: Stack,
    rule: Rule,
    counts: [u64; WalkCounter::COUNT],
}

impl Alike {
    /// Frames of so many words; the frame pointer is in the first word.
    fn new(words: u32) -> Self {
        let run = |bp| Run {
            sp: 16,
            bp,
            outcome: Outcome::Caller {
                ip: 15 + words,
                sp: 16 + words,
                bp: (words > 1).then_some(16),
            },
        };
        let rule = Rule::learn(&[run(400), run(440)]);
        assert!(rule.plain().is_some());
        Self {
            // SAFETY: Only `load` reads there, and it makes it up.
            stack: unsafe { Stack::new(STACKS[0], STACKS[0] + SIZE) },
            rule,
            counts: [0; WalkCounter::COUNT],
        }
    }

    /// How many frames are found from a stack pointer on.
    fn walk(&mut self, sp: u64, room: usize) -> usize {
        self.counts = [0; WalkCounter::COUNT];
        let at = Registers {
            ip: TEXT,
            sp,
            bp: 0,
        };
        let frame = Frame {
            at,
            stack: self.stack,
            interrupted: false,
        };
        let mut ips = vec![MaybeUninit::uninit(); room];
        match walk(self, frame, 0, &mut ips, 0, None::<Known<'_>>) {
            Walked::Frames(nr, None) => nr,
            _ => panic!("there are no guides"),
        }
    }

    fn count(&self, found: WalkCounter) -> u64 {
        self.counts[found as usize]
    }
}

impl Unwinder for Alike {
    unsafe fn load(&self, addr: u64) -> u64 {
        assert!(self.stack.holds(addr, 8), "{addr:#x} is not on it");
        TEXT
    }

    fn rule(&self, _: u64) -> Rule {
        self.rule
    }

    fn learn(&mut self, _: u64) -> Rule {
        self.rule
    }

    fn is_text(&self, _: u64) -> bool {
        true
    }

    fn is_replaced(&self, _: u64) -> bool {
        false
    }

    fn shown(&self, ip: u64) -> Option<u64> {
        Some(ip)
    }

    fn are_users(&self, _: &Stack, _: u64) -> bool {
        false
    }

    fn step(&mut self, _: Frame) -> Option<Frame> {
        None
    }

    fn count(&mut self, found: WalkCounter, nr: u64) {
        self.counts[found as usize] += nr;
    }
}

#[test]
fn a_walk_leaves_no_stack() {
    let end = STACKS[0] + SIZE;
    for words in 1..5 {
        let mut alike = Alike::new(words);
        for left in 0..20 {
            let whole = left / u64::from(words);
            let found = alike.walk(end - left * 8, 100);
            assert_eq!(found as u64, whole + 1, "{left} words, {words} a frame");
            assert_eq!(alike.count(WalkCounter::Fast), whole);
            assert_eq!(alike.count(WalkCounter::Stack), 1);
        }
        // Where the stack pointer is on no stack, nothing is read.
        for sp in [STACKS[0] - 8, STACKS[0] - 64, end + 8, 0, !7] {
            assert_eq!(alike.walk(sp, 100), 1, "{sp:#x}");
            assert_eq!(alike.count(WalkCounter::Stack), 1);
        }
    }
}

#[test]
fn a_known_stack_takes_no_rule_and_no_step_of_the_kernel() {
    let plain = |words, saved| Shape {
        saved,
        ..plain(words)
    };
    let based = Shape {
        link: Link::Bp,
        words: 6,
        saved: Some(4),
        bp: 3,
    };
    for end in [End::User, End::Outermost] {
        let shapes = vec![
            plain(3, None),
            plain(5, Some(1)),
            based,
            plain(2, None),
            based,
        ];
        let mut made = Made::new(shapes, end);
        let wanted = made.walk(0, 1024);
        let known = [made.hinted(&wanted)];
        made.rules.clear();
        made.counts = [0; WalkCounter::COUNT];
        assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, true));
        assert_eq!((made.learnt, made.steps), (6, 0));
        assert_eq!(made.counts[WalkCounter::Fast as usize], 6);
    }
}

/// Plain frames of some words.
fn plain(words: u64) -> Shape {
    Shape {
        link: Link::Sp,
        words,
        saved: None,
        bp: 0,
    }
}

#[test]
fn a_frame_that_is_recorded_otherwise_is_compared_as_recorded() {
    let mut interrupt = plain(4);
    interrupt.link = Link::Interrupt;
    for (first, marked) in [0, 4]
        .into_iter()
        .flat_map(|nr| (1..5).map(move |at| (nr, at)))
    {
        let mut shapes = vec![plain(3); 5];
        if first > 0 {
            shapes.insert(0, interrupt);
        }
        // Such text may go.
        shapes[marked].link = Link::Fleeting;
        let mut made = Made::new(shapes, End::User);
        let raw = made.walk(0, 1024);
        // Of a trace array for which it is recorded as it is.
        let mut known = vec![made.hinted(&raw)];
        made.marked = Some(marked);
        // The caller marks what is found without a guide.
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (raw.clone(), false), "{marked}");
        let mut wanted = raw;
        wanted[marked] = MARKER;
        known.push(made.hinted(&wanted));
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (wanted, true), "{marked}");
    }
}

#[test]
fn a_frame_that_is_known_before_begins_each_guide() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let all = made.walk(0, 1024);
    let with = |made: &Made, frames: &[u64]| {
        let frames: Vec<u64> = [&[first], frames].concat();
        made.hinted(&frames)
    };
    let cases = [
        // Guides without it, of which one has only the second frame.
        (vec![made.hinted(&all), made.hinted(&all[..1])], false),
        (vec![made.hinted(&all[..1])], false),
        (vec![with(&made, &all[1..]), with(&made, &all)], true),
        (vec![with(&made, &all[..2])], false),
    ];
    for (known, wanted) in cases {
        let mut ips = vec![MaybeUninit::uninit(); 100];
        ips[0].write(first);
        let frame = made.frames[0];
        let frames: Vec<u64> = [&[first], &all[..]].concat();
        match walk(&mut made, frame, 0, &mut ips, 1, Some(Known(&known))) {
            Walked::Known(guide, _) => {
                assert!(wanted && guide.frames().eq(frames));
            }
            Walked::Frames(nr, _) => {
                // SAFETY: So many were written.
                let found = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                assert!(!wanted && found.eq(frames));
            }
        }
    }
}

#[test]
fn a_guide_ends_only_where_its_stack_does() {
    // The kernel's own registers, where the guide has the user's.
    let mut interrupt = plain(4);
    interrupt.link = Link::Interrupt;
    let shapes = vec![plain(3), plain(3), interrupt, plain(3), plain(3)];
    let mut made = Made::new(shapes, End::User);
    let wanted = made.walk(0, 1024);
    let known = [made.hinted(&wanted[..3])];
    assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, false));
    // And the user's, where the guide goes on.
    let mut made = Made::new(vec![plain(3); 2], End::User);
    let wanted = made.walk(0, 1024);
    let known = [made.hinted(&[&wanted[..], &[TEXT + 8]].concat())];
    assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, false));
}

/// Guides whose hints come and go at each read, in an order by chance.
#[derive(Clone, Copy)]
struct Fickle<'a> {
    known: &'a [Vec<u64>],
    index: usize,
    state: &'a Cell<u64>,
    /// How many of 64 reads find none.
    gone: u64,
}

impl<'a> Fickle<'a> {
    fn chance(&self) -> u64 {
        let mut state = self.state.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.set(state);
        state >> 20
    }

    fn stack(&self) -> KnownStack<'a> {
        KnownStack(&self.known[self.index])
    }

    /// One of them all that is as wanted.
    fn any(&self, is_wanted: impl Fn(KnownStack<'a>) -> bool) -> Option<Self> {
        let first = self.chance() as usize;
        (0..self.known.len())
            .map(|nr| Self {
                index: (first + nr) % self.known.len(),
                ..*self
            })
            .find(|guide| is_wanted(guide.stack()))
    }
}

impl Guide for Fickle<'_> {
    fn nr(&self) -> usize {
        self.stack().nr()
    }

    fn frame(&self, index: usize) -> Option<u64> {
        self.stack().frame(index)
    }

    fn frames(&self) -> impl Iterator<Item = u64> {
        self.known[self.index].iter().map(|word| Hinted(*word).ip())
    }

    unsafe fn hinted(&self, index: usize) -> Hinted {
        let word = self.known[self.index][index];
        if self.chance() % 64 < self.gone {
            return Hinted(word & 0xffff_ffff);
        }
        Hinted(word)
    }
}

impl Guides for Fickle<'_> {
    type Guide = Self;

    fn first(&self, frame: u64) -> Option<Self> {
        self.any(|stack| stack.frame(0) == Some(frame))
    }

    fn other(&self, guide: &Self, nr: usize, frame: u64) -> Option<Self> {
        let begin: Vec<u64> = guide.frames().take(nr).collect();
        (self.chance() % 8 > 0).then_some(())?;
        self.any(|stack| {
            stack.frame(nr) == Some(frame) && stack.frames().take(nr).eq(begin.iter().copied())
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(5000)
    })]

    #[test]
    fn guides_and_hints_that_come_and_go_lead_to_the_same_frames(
        shapes in vec(shape(), 0..40),
        end in end(),
        skip in 0..4_usize,
        others in vec((0..60_usize, any::<bool>(), any::<bool>()), 0..6),
        has_own: bool,
        gone in 0..40_u64,
        seed in 1..u64::MAX,
        marked in 0..40_usize,
    ) {
        let mut made = Made::new(shapes, end);
        made.walk(skip, 1024);
        made.counts = [0; WalkCounter::COUNT];
        let raw = made.walk(skip, 1024);
        let counted: u64 = made.counts.iter().sum();
        let mut wanted = raw.clone();
        // Text that is recorded as another address has no rule.
        let is_fleeting = made.shapes.get(marked).is_some_and(|shape| shape.link == Link::Fleeting);
        if let (true, Some(frame)) = (is_fleeting && marked >= skip, wanted.get_mut(marked.wrapping_sub(skip))) {
            *frame = MARKER;
            made.marked = Some(marked);
        }
        let mut known = Vec::new();
        for (nr, is_raw, leaves) in others {
            let frames = if is_raw { &raw } else { &wanted };
            let most = frames.len().saturating_sub(leaves.into());
            let mut frames = frames[..nr.min(most)].to_vec();
            if leaves {
                frames.extend([TEXT + 8, TEXT + 24]);
            }
            known.push(made.hinted(&frames));
        }
        if has_own {
            known.push(made.hinted(&wanted));
        }
        known.retain(|stack| !stack.is_empty());
        prop_assume!(!known.is_empty());
        let state = Cell::new(seed);
        for _ in 0..4 {
            made.counts = [0; WalkCounter::COUNT];
            let mut ips = vec![MaybeUninit::uninit(); 1024];
            let frame = made.frames[0];
            let guides = Fickle { known: &known, index: 0, state: &state, gone };
            match walk(&mut made, frame, skip, &mut ips, 0, Some(guides)) {
                Walked::Known(guide, _) => prop_assert!(guide.frames().eq(wanted.iter().copied())),
                Walked::Frames(nr, left) => {
                    // SAFETY: So many were written. The caller marks them.
                    let found = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                    let found: Vec<u64> = found.map(|ip| made.shown(ip).unwrap_or(ip)).collect();
                    prop_assert_eq!(&found, &wanted);
                    if let Some((guide, same)) = left.filter(|(_, same)| *same < nr) {
                        prop_assert!(guide.frames().take(same).eq(found[..same].iter().copied()));
                    }
                }
            }
            if skip == 0 {
                prop_assert_eq!(made.counts.iter().sum::<u64>(), counted);
            }
        }
    }
}

#[test]
fn the_guide_that_lacks_a_hint_is_told() {
    let mut made = Made::new(vec![plain(3); 6], End::User);
    let wanted = made.walk(0, 1024);
    // A walk begins with it, and leaves it.
    let mut start = made.hinted(&[&wanted[..4], &[TEXT + 8, TEXT + 24]].concat());
    start[1] &= 0xffff_ffff;
    let known = [start, made.hinted(&wanted)];
    let mut ips = vec![MaybeUninit::uninit(); 100];
    let frame = made.frames[0];
    match walk(&mut made, frame, 0, &mut ips, 0, Some(Known(&known))) {
        Walked::Known(guide, Some(lacks)) => {
            assert_eq!((guide.0, lacks.0), (&known[1][..], &known[0][..]));
        }
        _ => panic!("one has all frames, one lacks a hint"),
    }
}

#[test]
fn a_stack_that_begins_interrupted_has_its_first_step_by_the_kernel() {
    let mut made = Made::new(vec![plain(3); 3], End::User);
    let wanted = made.walk(0, 1024);
    let known = [made.hinted(&wanted)];
    made.frames[0].interrupted = true;
    made.steps = 0;
    assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, true));
    assert_eq!(made.steps, 1);
}

#[test]
fn guides_leave_no_stack() {
    let end = STACKS[0] + SIZE;
    for words in 1..5 {
        let alike = Alike::new(words);
        let known = [hinted(&[TEXT; 200], |_| alike.rule)];
        for left in 0..20 {
            let mut alike = Alike::new(words);
            let at = Registers {
                ip: TEXT,
                sp: end - left * 8,
                bp: 0,
            };
            let frame = Frame {
                at,
                stack: alike.stack,
                interrupted: false,
            };
            let mut ips = vec![MaybeUninit::uninit(); 300];
            let walked = walk(&mut alike, frame, 0, &mut ips, 0, Some(Known(&known)));
            let Walked::Frames(nr, _) = walked else {
                panic!("it is not that of the guide");
            };
            assert_eq!(nr as u64, left / u64::from(words) + 1);
            // Nor do frames that are left out.
            let mut ips = vec![MaybeUninit::uninit(); 300];
            let walked = walk(&mut alike, frame, 30, &mut ips, 0, Some(Known(&known)));
            assert!(matches!(walked, Walked::Frames(0, None)));
        }
        for sp in [STACKS[0] - 8, end + 8, 0, !7] {
            let mut alike = Alike::new(words);
            let at = Registers {
                ip: TEXT,
                sp,
                bp: 0,
            };
            let frame = Frame {
                at,
                stack: alike.stack,
                interrupted: false,
            };
            let mut ips = vec![MaybeUninit::uninit(); 300];
            let walked = walk(&mut alike, frame, 0, &mut ips, 0, Some(Known(&known)));
            assert!(matches!(walked, Walked::Frames(1, _)), "{sp:#x}");
        }
    }
}

#[test]
fn frames_are_counted_when_the_buffer_is_full() {
    let mut alike = Alike::new(3);
    assert_eq!(alike.walk(STACKS[0], 7), 7);
    assert_eq!(alike.count(WalkCounter::Fast), 7);
}

#[test]
fn an_outermost_frame_ends_a_stack_only_where_the_guide_ends() {
    let mut made = Made::new(vec![plain(3); 2], End::Outermost);
    let wanted = made.walk(0, 1024);
    let known = [made.hinted(&[&wanted[..], &[TEXT + 8]].concat())];
    assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, false));
}

#[test]
fn a_stack_leaves_its_guide_at_the_first_frame_that_is_another() {
    let mut made = Made::new(vec![plain(3); 5], End::User);
    let wanted = made.walk(0, 1024);
    for same in 1..5 {
        let known = [made.hinted(&[&wanted[..same], &[TEXT + 8, TEXT + 24]].concat())];
        let mut ips = vec![MaybeUninit::uninit(); 100];
        let frame = made.frames[0];
        match walk(&mut made, frame, 0, &mut ips, 0, Some(Known(&known))) {
            Walked::Frames(nr, Some((_, left))) => assert_eq!((nr, left), (wanted.len(), same)),
            _ => panic!("it leaves the guide"),
        }
    }
}

#[test]
fn a_frame_without_a_hint_is_told() {
    for end in [End::User, End::NoText] {
        missing_hints_are_told(end);
    }
}

fn missing_hints_are_told(end: End) {
    let ends_with_registers = matches!(end, End::User);
    let mut made = Made::new(vec![plain(3); 4], end);
    let wanted = made.walk(0, 1024);
    let words = made.hinted(&wanted);
    for without in 0..words.len() {
        let mut known = words.clone();
        known[without] &= 0xffff_ffff;
        let mut ips = vec![MaybeUninit::uninit(); 100];
        let frame = made.frames[0];
        match walk(&mut made, frame, 0, &mut ips, 0, Some(Known(&[known]))) {
            Walked::Known(_, lacks) => {
                // A plain rule leads behind the last one.
                let is_told = without + 1 < words.len() || ends_with_registers;
                assert_eq!(lacks.is_some(), is_told, "{without}");
            }
            _ => panic!("the guide has all frames"),
        }
    }
}

#[test]
fn no_guide_is_gone_on_with_at_an_address_that_is_not_recorded_as_it_is() {
    let traced = Shape {
        link: Link::Traced,
        ..plain(3)
    };
    for replaced in [false, true] {
        let mut shapes = vec![plain(3); 5];
        if replaced {
            shapes[2] = traced;
        }
        let mut untraced = Made::new(vec![plain(3); 5], End::User);
        untraced.walk(0, 1024);
        let mut made = Made::new(shapes, End::User);
        let raw = made.walk(0, 1024);
        let mut wanted = raw.clone();
        // What is on the stack where the guides part.
        let ip = if replaced { REPLACED } else { raw[3] };
        if !replaced {
            made.marked = Some(3);
            wanted[3] = MARKER;
        }
        let leaves = [&raw[..3], &[TEXT + 8, TEXT + 24]].concat();
        let takes = [&raw[..3], &[ip], &raw[4..]].concat();
        // The hints were given before it was traced.
        let known = [untraced.hinted(&leaves), untraced.hinted(&takes)];
        let (found, is_known) = made.walk_with(Some(&known), 0, 1024);
        assert!(!is_known, "{replaced}");
        // The caller marks what is found without a guide.
        assert!(found == raw || found == wanted, "{replaced}");
    }
}

#[test]
fn a_buffer_is_filled_no_further_along_a_guide_without_hints() {
    let mut made = Made::new(vec![plain(3); 8], End::User);
    let wanted = made.walk(0, 1024);
    let known = [wanted.iter().map(|ip| ip & 0xffff_ffff).collect()];
    for room in 1..8 {
        let found = made.walk_with(Some(&known), 0, room);
        assert_eq!(found, (wanted[..room].to_vec(), false));
    }
}

#[test]
fn guides_begin_in_a_tracers_own_text() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let mut wanted = made.walk(0, 1024);
    made.marked = Some(0);
    wanted[0] = MARKER;
    let other = made.hinted(&[MARKER, TEXT + 8, TEXT + 24]);
    let same = made.hinted(&wanted);
    for known in [vec![same.clone()], vec![other, same]] {
        (made.steps, made.learnt) = (0, 0);
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (wanted.clone(), true));
        assert_eq!((made.steps, made.learnt), (0, 0));
    }
    // What is behind it is no guide's.
    let other = made.hinted(&[MARKER, TEXT + 8, TEXT + 24]);
    let (found, is_known) = made.walk_with(Some(&[other]), 0, 1024);
    assert!(!is_known && found[1..] == wanted[1..]);
}
