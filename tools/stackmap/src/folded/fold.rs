// SPDX-License-Identifier: MIT OR Apache-2.0

//! From stacks that were counted to folded ones.

use super::{kind_of, Folded, Kind, Names, Row};
use crate::{
    error::Result,
    source::{Loaded, Source},
    symbols::{texts::ByNumber, Frame},
    tally::{By, Kernel, Key, Step, Tally},
    trace::UserRef,
    user::ByFrame,
};
use std::ops::Range;

/// How many stacks are named between two reports of progress.
const STEP: usize = 4096;

/// Folds the stacks of a tally, sorted. `by`: unless it is [`By::Stack`], a first frame names the
/// group. `progress` is called now and then with the number of stacks that are done. User stacks that were left
/// are read from `source`; then those of the kernel are forgotten, which are named by then.
pub fn fold(
    tally: &Tally,
    by: By,
    source: &mut Source,
    loaded: &mut Loaded,
    names: &mut Names,
    progress: &mut dyn FnMut(u64),
) -> Result<Folded> {
    let mut folded = Folded::default();
    let later = fold_read(tally, by, loaded, &mut folded, names, progress);
    if !later.is_empty() {
        loaded.stacks.forget();
        fold_later(later, source, loaded, &mut folded, names)?;
    }
    folded.sort(names);
    folded.count_in(tally.unit());
    Ok(folded)
}

/// The user stack of a row that was not read yet: its id, the name of the group, and the row.
type Later = (u32, Option<u32>, u32);

/// Folds what was read, and returns the rest.
fn fold_read(
    tally: &Tally,
    by: By,
    loaded: &Loaded,
    folded: &mut Folded,
    names: &mut Names,
    progress: &mut dyn FnMut(u64),
) -> Vec<Later> {
    let mut later = Vec::new();
    let mut known = Known::new(|frame: &Frame<'_>| frame.plain().to_string());
    // A user stack is below many of the kernel's, and a stack of the kernel above many user stacks.
    let mut outer = ByNumber::<(Option<u32>, UserRef), Range<u32>>::default();
    let mut inner = ByNumber::<Key, Range<u32>>::default();
    let mut frames = Vec::new();
    for (done, (group, key, count)) in tally.iter().enumerate() {
        if done % STEP == 0 {
            progress(done as u64);
        }
        let group = (by != By::Stack).then(|| names.number(group, Kind::Group));
        let outer = match key.user {
            UserRef::Id(id) if !loaded.user.unread.is_empty() && loaded.has_user_stack(id) => {
                later.push((id, group, done as u32));
                0..0
            }
            user => {
                let outer = outer.entry((group, user)).or_insert_with(|| {
                    frames.clear();
                    tally.keys().walk_user(user, loaded, &mut |step| {
                        known.push(&step, loaded, names, &mut frames);
                    });
                    folded.keep(group.into_iter().chain(frames.drain(..).rev()))
                });
                outer.clone()
            }
        };
        // Whether there is a user stack says what stands for no stack of the kernel.
        let user = match (key.kernel, key.user) {
            (Kernel::None, UserRef::None) => UserRef::None,
            _ => UserRef::Lost,
        };
        let of_kernel = Key { user, ..key };
        let inner = inner.entry(of_kernel).or_insert_with(|| {
            frames.clear();
            tally.keys().walk_kernel(key, loaded, &mut |step| {
                known.push(&step, loaded, names, &mut frames);
            });
            folded.keep(frames.drain(..).rev())
        });
        folded.stacks.push(Row {
            outer,
            inner: inner.clone(),
            count: count.weight,
        });
    }
    later
}

/// Names user stacks as they are read.
fn fold_later(
    mut later: Vec<Later>,
    source: &mut Source,
    loaded: &mut Loaded,
    folded: &mut Folded,
    names: &mut Names,
) -> Result {
    later.sort_unstable();
    let of = |id: u32| {
        let start = later.partition_point(|(other, ..)| *other < id);
        later[start..]
            .iter()
            .take_while(move |(other, ..)| *other == id)
    };
    let mut progress = |_| {};
    loaded.user.prime_each(
        &mut |see| {
            source.user_stacks(&mut |stack| {
                if of(stack.id).next().is_some() {
                    see(stack.ips);
                }
            })
        },
        &mut progress,
    )?;
    let mut known = Known::new(|frame: &Frame<'_>| frame.plain().to_string());
    let mut frames = Vec::new();
    source.user_stacks(&mut |stack| {
        let mut kept: Option<(Option<u32>, Range<u32>)> = None;
        for (_, group, row) in of(stack.id) {
            let outer = match &kept {
                Some((of, outer)) if of == group => outer.clone(),
                _ => {
                    frames.clear();
                    for which in loaded.user.stack(stack.ips) {
                        known.push(&Step::User(which), loaded, names, &mut frames);
                    }
                    folded.keep(group.iter().copied().chain(frames.drain(..).rev()))
                }
            };
            folded.stacks[*row as usize].outer = outer.clone();
            kept = Some((*group, outer));
        }
    })
}

/// Frames that were named before: the same few calls are on most stacks.
pub struct Known<F> {
    name: F,
    /// For return addresses, and for exact addresses: the range in `frames`.
    places: [ByNumber<u64, Range<u32>>; 2],
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
            Step::User(which) => user.get_or(*which, || {
                for frame in loaded.user.frames(*which) {
                    frames.push(names.number(&frame.plain(), frame.kind()));
                }
                start..frames.len() as u32
            }),
            Step::Missing(text) => {
                return to.push(names.number(text, Kind::Missing));
            }
        };
        to.extend_from_slice(&frames[range.start as usize..range.end as usize]);
    }
}
