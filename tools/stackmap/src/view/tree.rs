// SPDX-License-Identifier: MIT OR Apache-2.0

//! The stacks of many events as one tree, with the name of each frame once.

use crate::{
    folded::{Folded, Known, Names},
    source::Loaded,
    symbols::Frame,
    tally::{Key, Keys},
};

/// Stacks as paths from the root of a tree.
pub(super) struct Tree {
    /// The names of their frames.
    pub(super) names: Names,
    /// Of each node: its parent node plus 1 (0: none), and the number of its name. A parent comes before
    /// its children.
    pub(super) nodes: Vec<(u32, u32)>,
    /// Of each stack its innermost node plus 1 (0: it has no frame).
    pub(super) leaves: Vec<u32>,
}

impl Tree {
    /// That of `stacks`; `name` says what a frame of the kernel is called.
    pub(super) fn new<'a>(
        stacks: impl ExactSizeIterator<Item = &'a Key>,
        keys: &Keys,
        loaded: &Loaded,
        name: impl Fn(&Frame<'_>) -> String,
    ) -> Self {
        let mut tree = Self {
            names: Names::default(),
            nodes: Vec::new(),
            leaves: vec![0; stacks.len()],
        };
        let mut known = Known::new(name);
        let mut folded = Folded::default();
        let mut frames = Vec::new();
        for key in stacks {
            keys.walk(*key, loaded, &mut |step| {
                known.push(&step, loaded, &mut tree.names, &mut frames)
            });
            folded.push(frames.drain(..).rev(), 0);
        }
        // In this order, a stack follows the stack that it shares the most frames with, so only the
        // nodes of the last stack are needed.
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
            tree.leaves[index] = path.last().map_or(0, |(_, node)| node + 1);
        }
        tree
    }
}
