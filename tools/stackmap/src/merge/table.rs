// SPDX-License-Identifier: MIT OR Apache-2.0

//! The distinct stacks of all captures, with new ids.

use crate::{
    error::{Error, Result},
    stack_map_bin::{Stack, MAX_STACKS},
};
use std::{collections::HashMap, rc::Rc};

/// How many bits of an id lie below its generation; all stacks are of generation 0.
pub(super) const SLOT_BITS: u32 = 30;
/// What an id becomes that its map does not have, and one from before a reset, or of another load.
pub(super) const UNKNOWN: u32 = (1 << SLOT_BITS) - 1;
pub(super) const STALE: u32 = 1 << SLOT_BITS;

/// Stacks by their words.
#[derive(Debug, Default)]
pub(super) struct Table {
    ids: HashMap<Rc<[u64]>, u32>,
    /// By id, from 1, with the number of events that have it.
    stacks: Vec<(Rc<[u64]>, u32)>,
}

impl Table {
    /// The id of a stack, which `ref_count` more events have.
    pub(super) fn id(&mut self, words: &[u64], ref_count: u32) -> Result<u32> {
        let id = match self.ids.get(words) {
            Some(id) => *id,
            None => {
                let id = self.stacks.len() as u32 + 1;
                if id >= MAX_STACKS {
                    return Err(Error::Refused(format!(
                        "a merged capture has at most {MAX_STACKS} different stacks\n  hint: merge fewer captures, or \
                         export each as tables"
                    )));
                }
                let words: Rc<[u64]> = words.into();
                self.ids.insert(words.clone(), id);
                self.stacks.push((words, 0));
                id
            }
        };
        let (_, count) = &mut self.stacks[id as usize - 1];
        *count = count.saturating_add(ref_count);
        Ok(id)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.stacks.len()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Stack<'_>> {
        let stacks = self.stacks.iter().enumerate();
        stacks.map(|(index, (words, ref_count))| Stack {
            id: index as u32 + 1,
            ref_count: *ref_count,
            ips: words,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_equal_stacks_are_summed_up() {
        let mut table = Table::default();
        let mut id = |words: &[u64], count| table.id(words, count).unwrap();
        let ids = [
            id(&[1], 3),
            id(&[1, 2], 5),
            id(&[1], 4),
            id(&[1, 2], u32::MAX),
        ];
        assert_eq!(ids, [1, 2, 1, 2]);
        let found: Vec<_> = table
            .iter()
            .map(|stack| (stack.id, stack.ref_count))
            .collect();
        assert_eq!(found, [(1, 7), (2, u32::MAX)]);
    }
}
