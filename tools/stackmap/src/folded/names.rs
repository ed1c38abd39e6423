// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of frames, each once: a recording may have hundreds of thousands.

use super::Kind;
use crate::symbols::{canonical::canonical, texts::AddressHasher};
use std::{collections::HashMap, hash::Hasher, ops::Range};

/// The least number of slots, a power of two.
const LEAST_SLOTS: usize = 64;

/// All kinds by their numbers, which have this many bits.
const KINDS: [Kind; 8] = [
    Kind::Group,
    Kind::Kernel,
    Kind::Module,
    Kind::Address,
    Kind::User,
    Kind::UserAddress,
    Kind::Missing,
    Kind::Missing,
];
const KIND_BITS: u32 = 3;

/// Names by number. The same name may be of several kinds.
#[derive(Default)]
pub struct Names {
    /// All names, one after the other.
    text: String,
    /// For each name, where it ends in `text`, and in the lowest bits, what it is.
    ends: Vec<u64>,
    /// By hash, the number of a name and one; 0: free. At least every other one is free.
    slots: Vec<u32>,
}

impl Names {
    /// The number of a name.
    pub fn number(&mut self, name: &str, kind: Kind) -> u32 {
        if self.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let slot = self.slot(name, kind);
        if let Some(number) = self.slots[slot].checked_sub(1) {
            return number;
        }
        self.text.push_str(name);
        let end = self.text.len() as u64;
        self.ends.push(end << KIND_BITS | kind as u64);
        self.slots[slot] = self.len() as u32;
        self.len() as u32 - 1
    }

    /// Where a name is in `slots`, or else a free slot for it.
    fn slot(&self, name: &str, kind: Kind) -> usize {
        let mut hasher = AddressHasher::default();
        hasher.write(name.as_bytes());
        let mask = self.slots.len() - 1;
        // Its high bits are the ones that depend on all of the name.
        let mut slot = (hasher.finish() >> 32) as usize & mask;
        while let Some(number) = self.slots[slot].checked_sub(1) {
            if self.key(number) == (name.as_bytes(), kind) {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let nr_slots = (self.slots.len() * 2).max(LEAST_SLOTS);
        self.slots = vec![0; nr_slots];
        for number in 0..self.len() as u32 {
            let (name, kind) = self.get(number);
            let slot = self.slot(name, kind);
            self.slots[slot] = number + 1;
        }
    }

    /// The name of a number, and what it is.
    pub fn get(&self, number: u32) -> (&str, Kind) {
        let (range, kind) = self.parts(number);
        (&self.text[range], kind)
    }

    /// The same, to compare.
    fn key(&self, number: u32) -> (&[u8], Kind) {
        let (range, kind) = self.parts(number);
        (&self.text.as_bytes()[range], kind)
    }

    /// Where a name is in the text, and what it is.
    fn parts(&self, number: u32) -> (Range<usize>, Kind) {
        let number = number as usize;
        let before = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let end = self.ends[number];
        let kind = KINDS[(end & ((1 << KIND_BITS) - 1)) as usize];
        let at = |end: u64| (end >> KIND_BITS) as usize;
        (at(before)..at(end), kind)
    }

    /// Each name with what it is, by number.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Kind)> {
        (0..self.len() as u32).map(|number| self.get(number))
    }

    /// Whether there are names of programs.
    pub fn has_user(&self) -> bool {
        let of_user = |kind| matches!(kind, Kind::User | Kind::UserAddress);
        self.iter().any(|(_, kind)| of_user(kind))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// `form` of each name, by number.
    pub fn map<T>(&self, form: impl Fn(&str, Kind) -> T) -> Vec<T> {
        self.iter().map(|(name, kind)| form(name, kind)).collect()
    }

    /// Returns, for each number, that of the first name of the same function, be it a clone or a part.
    pub fn canonical(&self) -> Vec<u32> {
        let mut first = HashMap::new();
        let names = self.iter().zip(0..);
        let numbers = names
            .map(|((name, kind), number)| *first.entry((canonical(name), kind)).or_insert(number));
        numbers.collect()
    }

    /// For each number, the rank of its name in sorted order.
    pub fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_unstable_by(|one, other| self.key(*one).cmp(&self.key(*other)));
        let mut ranks = vec![0; order.len()];
        for (rank, number) in order.into_iter().enumerate() {
            ranks[number as usize] = rank as u32;
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_number_for_each_kind() {
        let mut names = Names::default();
        for _ in 0..2 {
            for number in 0..1000 {
                let name = format!("name{}", number / 2);
                let kind = KINDS[1 + number % 2 * 3];
                assert_eq!(names.number(&name, kind), number as u32);
                assert_eq!(names.get(number as u32), (&name[..], kind));
            }
        }
        assert_eq!((names.len(), names.has_user()), (1000, true));
        let ranks = names.ranks();
        assert_eq!((ranks[0], ranks[1], ranks[2], ranks[20]), (0, 1, 2, 4));
        for (number, kind) in KINDS[..7].iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
    }
}
