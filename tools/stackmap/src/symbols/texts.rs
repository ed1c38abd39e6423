// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames as text, kept for the next time: the same few calls are on most stacks.

use super::{Frame, Symbols};
use indexmap::{Equivalent, IndexMap, IndexSet};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

/// How much text is kept, in bytes.
const MAX_KEPT: usize = 48 << 20;

/// How a frame is written.
type Format = dyn Fn(&Frame<'_>, &mut Vec<u8>);

/// The texts of frames in one format.
pub struct Texts {
    format: Box<Format>,
    /// For frames that are return addresses, and for those that are exact.
    kept: [ByNumber<u64, Kept>; 2],
    arena: Vec<u8>,
    /// Where the texts begin that [`fetch`](Self::fetch) was last asked for.
    fetched: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Kept {
    start: u32,
    len: u32,
}

/// The text of the frames at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Text<'a> {
    /// Each frame ends with a newline: those that were inlined, and the last one.
    lines: &'a [u8],
}

impl<'a> Text<'a> {
    /// The text of each frame, without its newline.
    pub fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.lines;
        std::iter::from_fn(move || {
            let end = memchr::memchr(b'\n', rest)?;
            let line = &rest[..end];
            rest = &rest[end + 1..];
            Some(line)
        })
    }
}

impl Texts {
    /// None yet; `format` writes a frame, without a newline.
    pub fn new(format: impl Fn(&Frame<'_>, &mut Vec<u8>) + 'static) -> Self {
        Self {
            format: Box::new(format),
            kept: Default::default(),
            arena: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// The text of the frames at `ip`. `exact`: it is no return address.
    pub fn of(&mut self, symbols: &Symbols, ip: u64, exact: bool) -> Text<'_> {
        let kept = match self.kept[usize::from(exact)].get(&ip) {
            Some(kept) => *kept,
            None => self.make(symbols, ip, exact),
        };
        let start = kept.start as usize;
        Text {
            lines: &self.arena[start..start + kept.len as usize],
        }
    }

    /// Prefetches the entries of all frames of a stack at once: one after the other, each of them
    /// would be waited for. Of many stacks, the texts are more than a cache holds.
    pub fn fetch(&mut self, ips: &[u64]) {
        self.fetched.clear();
        for (depth, ip) in ips.iter().enumerate() {
            let kept = self.kept[usize::from(depth == 0)].get(ip);
            self.fetched.extend(kept.map(|kept| kept.start));
        }
        let bytes = self.fetched.iter().map(|start| self.arena[*start as usize]);
        std::hint::black_box(bytes.fold(0, |sum, byte| sum ^ byte));
    }

    fn make(&mut self, symbols: &Symbols, ip: u64, exact: bool) -> Kept {
        if self.arena.len() > MAX_KEPT {
            self.clear();
        }
        let start = self.arena.len();
        for frame in symbols.frames(ip, exact) {
            (self.format)(&frame, &mut self.arena);
            self.arena.push(b'\n');
        }
        let kept = Kept {
            start: start as u32,
            len: (self.arena.len() - start) as u32,
        };
        self.kept[usize::from(exact)].insert(ip, kept);
        kept
    }

    /// Forgets all: the symbols are others now.
    pub fn clear(&mut self) {
        self.kept.iter_mut().for_each(HashMap::clear);
        self.arena.clear();
    }
}

/// What is known of addresses and other numbers.
pub type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;
/// The same in the order of their first occurrence.
pub type InOrder<K, V> = IndexMap<K, V, BuildHasherDefault<AddressHasher>>;

/// Returns the number of a value: how many different ones precede its first occurrence.
pub fn number_of<T, Q>(values: &mut IndexSet<T>, value: &Q) -> u32
where
    T: Eq + Hash + for<'q> From<&'q Q>,
    Q: Equivalent<T> + Hash + ?Sized,
{
    let known = values.get_index_of(value);
    known.unwrap_or_else(|| values.insert_full(value.into()).0) as u32
}

/// Spreads addresses. They come from a kernel or a file, and the worst that a file can do is to be
/// slow with itself.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words
            .iter()
            .for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn texts_are_made_once() {
        let mut texts = Texts::new(|frame, text| write!(text, "<{frame}>").unwrap());
        let symbols = Symbols::default();
        for _ in 0..2 {
            let text = texts.of(&symbols, 0x1234, true);
            assert_eq!(text.lines().collect::<Vec<_>>(), [b"<0x1234>"]);
        }
        assert_eq!(texts.arena.len(), 9);
        let marker = super::super::TRAMPOLINE_MARKER;
        texts.of(&symbols, marker, false);
        assert_eq!(texts.kept.each_ref().map(HashMap::len), [1, 1]);
    }
}
