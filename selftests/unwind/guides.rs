// SPDX-License-Identifier: GPL-2.0

//! Guides lead to the frames that are there, whatever they say, and only to these.

mod made;

use made::*;
use proptest::{collection::vec, prelude::*};
use stackmap_unwind::{
    guided::{Guide, Guides},
    hinted,
    hints::Hinted,
    walk::{walk, Unwinder, WalkCounter, Walked},
    Known, KnownStack,
};
use std::{cell::Cell, mem::MaybeUninit};

/// A guide that has the first frames of a stack, and ends there or leaves it.
fn beginning(made: &Made, frames: &[u64], nr: usize, leaves: bool) -> Vec<u64> {
    // One that goes on where the stack ends has no other behind it.
    let most = frames.len().saturating_sub(leaves.into());
    let mut frames = frames[..nr.min(most)].to_vec();
    if leaves {
        frames.extend([TEXT + 8, TEXT + 24]);
    }
    made.hinted(&frames)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    })]

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
            known.push(beginning(&made, &wanted, nr, longer));
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

#[test]
fn text_that_may_go_leads_on_while_it_is_there() {
    let frame = Shape {
        link: Link::Bp,
        words: 6,
        saved: Some(4),
        bp: 2,
    };
    // Also where the kernel leads to such a frame, not a hint.
    for (at, steps) in (0..5).map(|at| (at, 0)).chain((1..5).map(|at| (at, 1))) {
        let mut shapes = vec![plain(3); 5];
        shapes[at] = frame;
        if steps > 0 {
            shapes[at - 1].link = Link::Odd;
        }
        let mut made = Made::new(shapes, End::User);
        made.image = Some((at, true));
        let all = made.walk(0, 1024);
        assert_eq!((&all, made.steps), (&made.ips(), steps));
        let known = [made.hinted(&all)];
        let mut ips = vec![MaybeUninit::uninit(); 1024];
        let begin = made.frames[0];
        match walk(&mut made, begin, 0, &mut ips, 0, Some(Known(&known))) {
            // It has no hint, and is to get none.
            Walked::Known(guide, None) => assert!(guide.frames().eq(all.iter().copied())),
            _ => panic!("the guide has all frames, and lacks no hint"),
        }
        assert_eq!(made.steps, 2 * steps);
        // The kernel's unwinder ends there, too.
        made.image = Some((at, false));
        let ended = (all[..at].to_vec(), false);
        assert_eq!(made.walk_with(Some(&known), 0, 1024), ended);
        assert_eq!(made.walk_with(None, 0, 1024), ended);
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
fn a_frame_that_is_not_shown_ends_the_guide() {
    let image = Shape {
        link: Link::Bp,
        words: 3,
        saved: Some(1),
        bp: 2,
    };
    // The walk steps to it, or the walk along guides does.
    for (at, before) in (1..5).flat_map(|at| [(at, plain(3)), (at, image)]) {
        let mut shapes = vec![plain(3); 5];
        shapes[at - 1] = before;
        shapes[at].link = Link::Fleeting;
        let mut made = Made::new(shapes, End::User);
        made.image = (before.link == Link::Bp).then_some((at - 1, true));
        let wanted = made.walk(0, 1024);
        made.unshown = Some(at);
        // The guide has another frame there, or ends before it.
        let mut other = wanted.clone();
        other[at] = TEXT + 8;
        for frames in [&other[..], &wanted[..at]] {
            let known = [made.hinted(frames)];
            let found = made.walk_with(Some(&known), 0, 1024);
            assert_eq!(found, (wanted.clone(), false), "{at}");
        }
    }
}

#[test]
fn no_rule_leads_past_a_frame_that_is_recorded_otherwise() {
    for at in 1..5 {
        let mut made = Made::new(vec![plain(3); 5], End::User);
        made.shapes[at] = Shape {
            link: Link::Bp,
            words: 3,
            saved: Some(1),
            bp: 2,
        };
        made.lay_out();
        // Text of a tracer: it has a rule, which is no hint.
        made.image = Some((at, true));
        let raw = made.walk(0, 1024);
        assert_eq!(raw, made.ips());
        let mut known = vec![made.hinted(&raw)];
        made.marked = Some(at);
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (raw.clone(), false), "{at}");
        let mut wanted = raw;
        wanted[at] = MARKER;
        known.push(made.hinted(&wanted));
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (wanted, true), "{at}");
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

// SAFETY: The frames are borrowed, and the last word has no hint of a size, whether that is read or not.
unsafe impl Guide for Fickle<'_> {
    fn nr(&self) -> usize {
        self.stack().nr()
    }

    fn frame(&self, index: usize) -> Option<u64> {
        self.stack().frame(index)
    }

    fn frames(&self) -> impl ExactSizeIterator<Item = u64> {
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

    fn first(&self, index: usize, frame: u64) -> Option<Self> {
        self.any(|stack| stack.frame(index) == Some(frame))
    }

    fn next(&self, frame: u64) -> Option<Self> {
        match self.chance() % 4 {
            0 => None,
            1 => self.any(|_| true),
            _ => self.first(0, frame),
        }
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
        marked in 0..10_usize,
    ) {
        // Text that is recorded otherwise may go; often, a stack begins there.
        let marked = marked.saturating_sub(4);
        let mut shapes = shapes;
        if let (0, Some(shape)) = (marked, shapes.first_mut()) {
            shape.link = Link::Fleeting;
        }
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
            known.push(beginning(&made, frames, nr, leaves));
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
            let frame = alike.frame(end - left * 8);
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
            let frame = alike.frame(sp);
            let mut ips = vec![MaybeUninit::uninit(); 300];
            let walked = walk(&mut alike, frame, 0, &mut ips, 0, Some(Known(&known)));
            assert!(matches!(walked, Walked::Frames(1, _)), "{sp:#x}");
        }
    }
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
