// SPDX-License-Identifier: MIT OR Apache-2.0

//! The stacks of many events as one tree, with the name of each frame once.

use super::whole_frame;
use crate::{
    folded::{kind_of_text, Folded, Known, Names},
    source::Loaded,
    symbols::Frame,
    tally::{Key, Keys, Step},
};
use std::collections::{HashMap, HashSet};

/// What stacks are made of.
pub(crate) struct Stacks<'a, F> {
    loaded: &'a Loaded,
    addresses: bool,
    keys: &'a Keys,
    /// The names of their frames.
    pub(crate) names: Names,
    known: Known<F>,
}

/// Stacks as paths from the root of a tree.
pub(crate) struct Tree {
    /// The innermost node of each stack that has a frame.
    pub(crate) leaves: HashMap<Key, u32>,
    /// Of each node: its parent node plus 1 (0: none), and the number of its name. A parent comes before
    /// its children.
    pub(crate) nodes: Vec<(u32, u32)>,
}

impl<'a, F: Fn(&Frame<'_>) -> String> Stacks<'a, F> {
    /// Those of `keys`; `name` says what a frame of the kernel is called. `addresses`: whether a full stack
    /// may show kernel addresses.
    pub(crate) fn new(loaded: &'a Loaded, addresses: bool, keys: &'a Keys, name: F) -> Self {
        Self {
            loaded,
            addresses,
            keys,
            names: Names::default(),
            known: Known::new(name),
        }
    }

    /// The frames of a stack, outermost first.
    fn frames(&mut self, key: Key, frames: &mut Vec<u32>) {
        frames.clear();
        let Self {
            loaded,
            addresses,
            keys,
            names,
            known,
        } = self;
        keys.walk(key, loaded, &mut |step| match step {
            Step::Text(text) => {
                let name = whole_frame(text, *addresses);
                frames.push(names.number(&name, kind_of_text(text)));
            }
            step => known.push(&step, loaded, names, frames),
        });
        frames.reverse();
    }

    /// The tree of these stacks.
    pub(crate) fn tree(&mut self, keys: HashSet<Key>) -> Tree {
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_unstable();
        // In this order, a stack follows the stack that it shares the most frames with, so only the
        // nodes of the last stack are needed.
        let mut folded = Folded::default();
        let mut frames = Vec::new();
        for key in &keys {
            self.frames(*key, &mut frames);
            folded.push(frames.iter().copied(), 0);
        }
        let mut tree = Tree {
            leaves: HashMap::with_capacity(keys.len()),
            nodes: Vec::new(),
        };
        let mut path: Vec<(u32, u32)> = Vec::new();
        for index in folded.order() {
            let frames = folded.at(index);
            let pairs = path.iter().zip(frames.iter());
            let same = pairs.take_while(|((frame, _), other)| frame == other);
            path.truncate(same.count());
            for frame in frames.iter().skip(path.len()) {
                let parent = path.last().map_or(0, |(_, node)| node + 1);
                path.push((frame, tree.nodes.len() as u32));
                tree.nodes.push((parent, frame));
            }
            if let Some((_, node)) = path.last() {
                tree.leaves.insert(keys[index], *node);
            }
        }
        tree
    }
}
