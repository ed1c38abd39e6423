// SPDX-License-Identifier: MIT OR Apache-2.0

//! A map that was read: all its stacks, found by id.

use crate::{
    error::{Error, Result},
    stack_map_bin::{LoadId, Reader, Stack},
    symbols::texts::ByNumber,
};
use std::io::Read;

/// More frames than fit into the memory that one map may take (2 GiB).
const MAX_FRAMES: usize = 1 << 28;

#[derive(Clone, Copy, Debug)]
struct Head {
    id: u32,
    ref_count: u32,
    /// Where its frames begin; they end where those of the next stack begin.
    start: u32,
}

/// The ids of stacks that are not read.
#[derive(Debug, Default)]
pub struct Ids {
    ids: ByNumber<u32, ()>,
    load_id: Option<LoadId>,
}

impl Ids {
    /// Whether a stack has this id.
    pub fn has(&self, id: u32) -> bool {
        self.ids.contains_key(&id)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The load of the module that they are of; [`None`]: not known.
    pub fn load_id(&self) -> Option<LoadId> {
        self.load_id
    }
}

/// Reads user stacks.
fn user_reader<R: Read>(input: R, source: &str) -> Result<Reader<R>> {
    let reader = Reader::new(input, source)?;
    match reader.is_user() {
        true => Ok(reader),
        false => Err(Error::input_at(
            source,
            0,
            "these are stacks of the kernel, not user stacks",
        )),
    }
}

/// Gives `out` each stack, which says why it cannot be kept.
fn read_all(
    reader: &mut Reader<impl Read>,
    source: &str,
    out: &mut impl FnMut(Stack<'_>) -> Result<(), String>,
) -> Result {
    loop {
        let offset = reader.offset();
        let Some(stack) = reader.next_stack()? else {
            return Ok(());
        };
        out(stack).map_err(|what| Error::input_at(source, offset, what))?;
    }
}

fn twice(id: u32) -> String {
    format!("stack id {id} occurs twice")
}

/// The stacks of a map, in the order of the file.
#[derive(Debug, Default)]
pub struct Stacks {
    heads: Vec<Head>,
    ips: Vec<u64>,
    by_id: ByNumber<u32, u32>,
    load_id: Option<LoadId>,
}

impl Stacks {
    /// Reads all stacks of the kernel. A duplicate id would mean two stacks, so it is an error.
    pub fn read(input: impl Read, source: &str) -> Result<Self> {
        let (stacks, is_user) = Self::read_either(input, source)?;
        match is_user {
            true => Err(Error::input_at(
                source,
                0,
                "these are user stacks, not stacks of the kernel",
            )),
            false => Ok(stacks),
        }
    }

    /// The same of user stacks.
    pub fn read_user(input: impl Read, source: &str) -> Result<Self> {
        Self::read_from(user_reader(input, source)?, source)
    }

    /// Reads the ids of all user stacks. `out` gets each stack.
    pub fn read_user_ids(
        input: impl Read,
        source: &str,
        out: &mut dyn FnMut(Stack<'_>),
    ) -> Result<Ids> {
        let mut reader = user_reader(input, source)?;
        let mut ids = Ids {
            load_id: reader.load_id(),
            ..Ids::default()
        };
        read_all(&mut reader, source, &mut |stack| {
            out(stack);
            match ids.ids.insert(stack.id, ()) {
                Some(()) => Err(twice(stack.id)),
                None => Ok(()),
            }
        })?;
        Ok(ids)
    }

    /// Reads all stacks, and says whether they are user stacks.
    pub fn read_either(input: impl Read, source: &str) -> Result<(Self, bool)> {
        let reader = Reader::new(input, source)?;
        let is_user = reader.is_user();
        Ok((Self::read_from(reader, source)?, is_user))
    }

    fn read_from(mut reader: Reader<impl Read>, source: &str) -> Result<Self> {
        let mut stacks = Self {
            load_id: reader.load_id(),
            ..Self::default()
        };
        read_all(&mut reader, source, &mut |stack| stacks.push(stack))?;
        Ok(stacks)
    }

    /// Forgets all of them, but not what they were of.
    pub fn forget(&mut self) {
        *self = Self {
            load_id: self.load_id,
            ..Self::default()
        };
    }

    /// Adds a stack, or says why it cannot be added.
    pub fn push(&mut self, stack: Stack<'_>) -> Result<(), String> {
        let index = self.heads.len() as u32;
        if self.ips.len() + stack.ips.len() > MAX_FRAMES {
            return Err(format!("more than {MAX_FRAMES} frames in all"));
        }
        if self.by_id.insert(stack.id, index).is_some() {
            return Err(twice(stack.id));
        }
        self.heads.push(Head {
            id: stack.id,
            ref_count: stack.ref_count,
            start: self.ips.len() as u32,
        });
        self.ips.extend_from_slice(stack.ips);
        Ok(())
    }

    /// The load of the module that they are of; [`None`]: not known.
    pub fn load_id(&self) -> Option<LoadId> {
        self.load_id
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// The stack at `index`, which is below [`len`](Self::len).
    pub fn at(&self, index: usize) -> Stack<'_> {
        let head = self.heads[index];
        let next = self.heads.get(index + 1);
        let end = next.map_or(self.ips.len(), |next| next.start as usize);
        Stack {
            id: head.id,
            ref_count: head.ref_count,
            ips: &self.ips[head.start as usize..end],
        }
    }

    /// Returns the index of the stack with this id.
    pub fn index(&self, id: u32) -> Option<usize> {
        self.by_id.get(&id).map(|index| *index as usize)
    }

    /// Returns the stack with this id.
    pub fn get(&self, id: u32) -> Option<Stack<'_>> {
        self.index(id).map(|index| self.at(index))
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Stack<'_>> {
        (0..self.heads.len()).map(|index| self.at(index))
    }

    /// The generation of the ids, which lies above their lowest `slot_bits`.
    pub fn generation(&self, slot_bits: Option<u32>) -> Option<u32> {
        let head = self.heads.first()?;
        head.id.checked_shr(slot_bits?)
    }

    /// Every frame of every stack, and whether it is the first of its stack.
    pub fn frames(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.iter().flat_map(|stack| {
            let ips = stack.ips.iter().enumerate();
            ips.map(|(depth, ip)| (*ip, depth == 0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack_map_bin::{self, Order};

    #[test]
    fn reports_the_offset_of_a_duplicate_id() {
        let mut file = Vec::new();
        let twice = [&[1], &[2]].map(|ips| Stack::example(9, ips));
        stack_map_bin::write(&mut file, Order::Little, None, twice.into_iter()).unwrap();
        let error = Stacks::read(&file[..], "input").unwrap_err();
        let want = "input: at byte 40: stack id 9 occurs twice";
        assert_eq!(error.to_string(), want);
    }
}
