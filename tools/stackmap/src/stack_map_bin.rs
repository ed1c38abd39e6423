// SPDX-License-Identifier: MIT OR Apache-2.0

//! The binary export of the map, `stack_map_bin`, as `include/uapi/stackmap.h` describes it.
//!
//! A header of four 32-bit words (magic, version, number of stacks, load id), then for each stack four
//! words (id, number of frames, references, 0) and its frames, 64 bits each, innermost first. The
//! byte order is that of the machine that wrote it; the magic tells which. [`Reader`] takes every
//! departure from this as an error, and allocates nothing that the input only claims to hold.

use crate::{
    error::{Error, Result},
    files::{read_full, recognize},
};
use std::{
    io::{self, Read, Write},
    num::NonZeroU32,
};
use zerocopy::{byteorder::ByteOrder, FromBytes, IntoBytes, BE, LE, U32, U64};

/// The magic of `stack_map_bin`.
pub const MAGIC: u32 = 0x464D_5342;
/// The version of the layout.
pub const VERSION: u32 = 2;
/// The magic of `stack_map_user_bin`: the same layout, and frames are words.
pub const MAGIC_USER: u32 = 0x554D_5346;

/// More frames than any kernel captures of one stack.
pub const MAX_DEPTH: u32 = 4096;
/// More stacks than the largest map holds.
pub const MAX_STACKS: u32 = 1 << 24;

/// What distinguishes one load of the module from another: ids of one say nothing about stacks of another.
pub type LoadId = NonZeroU32;

/// The byte order of a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Order {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

/// One stack of a map.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stack<'a> {
    /// What the ring buffer carries in place of the stack.
    pub id: u32,
    /// How many events carry the id; saturates.
    pub ref_count: u32,
    /// The frames, innermost first.
    pub ips: &'a [u64],
}

#[cfg(test)]
impl<'a> Stack<'a> {
    /// Returns a stack with one reference, for tests.
    pub(crate) fn example(id: u32, ips: &'a [u64]) -> Self {
        let ref_count = 1;
        Self { id, ref_count, ips }
    }
}

/// Reads a `stack_map_bin` stack by stack, in constant memory.
pub struct Reader<R> {
    input: R,
    source: String,
    offset: u64,
    order: Order,
    is_user: bool,
    load_id: Option<LoadId>,
    nr_stacks: u32,
    nr_read: u32,
    raw: Vec<u8>,
    ips: Vec<u64>,
}

impl<R: Read> Reader<R> {
    /// Reads the header. `source` names the input in errors.
    pub fn new(mut input: R, source: impl Into<String>) -> Result<Self> {
        let source = source.into();
        let mut header = [0; 16];
        let got = read_full(&mut input, &mut header)
            .map_err(|(got, error)| Error::reading(&source, got as u64, error))?;
        if got < header.len() {
            let what = match got {
                0 => "the file is empty".to_owned(),
                _ => format!("the file ends inside its 16-byte header, after {got} bytes"),
            };
            return Err(Error::input_at(source, got as u64, what));
        }

        let little = words::<LE>(&header);
        let big = words::<BE>(&header);
        let (order, [magic, version, nr_stacks, load_id]) = match (little[0], big[0]) {
            (MAGIC | MAGIC_USER, _) => (Order::Little, little),
            (_, MAGIC | MAGIC_USER) => (Order::Big, big),
            _ => {
                let what = match recognize(&header) {
                    Some((what, advice)) => format!(
                        "this is neither a capture nor a stack_map_bin: it is {what}\n  hint: \
                         {advice}"
                    ),
                    None => format!(
                        "this is neither a capture nor a stack_map_bin: it begins with 0x{:08x}, \
                         not with 0x{MAGIC:08x} in either byte order",
                        little[0]
                    ),
                };
                return Err(Error::input_at(source, 0, what));
            }
        };
        if version != VERSION {
            let what = format!("version {version} of the format 0x{magic:08x} is not known");
            return Err(Error::input_at(source, 4, what));
        }
        if nr_stacks > MAX_STACKS {
            let what = format!("the header says {nr_stacks} stacks, more than any map holds");
            return Err(Error::input_at(source, 8, what));
        }
        Ok(Self {
            input,
            source,
            offset: header.len() as u64,
            order,
            is_user: magic == MAGIC_USER,
            load_id: LoadId::new(load_id),
            nr_stacks,
            nr_read: 0,
            raw: Vec::new(),
            ips: Vec::new(),
        })
    }

    /// Whether the stacks are user stacks.
    pub fn is_user(&self) -> bool {
        self.is_user
    }

    /// The load of the module that wrote the input; [`None`]: not known.
    pub fn load_id(&self) -> Option<LoadId> {
        self.load_id
    }

    /// How many bytes were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next stack; [`None`] after the last one, if the input ends there.
    pub fn next_stack(&mut self) -> Result<Option<Stack<'_>>> {
        if self.nr_read == self.nr_stacks {
            self.expect_end()?;
            return Ok(None);
        }
        let start = self.offset;
        let mut head = [0; 16];
        self.fill(&mut head)?;
        let [id, nr, ref_count, reserved] = match self.order {
            Order::Little => words::<LE>(&head),
            Order::Big => words::<BE>(&head),
        };
        if id > i32::MAX as u32 {
            return Err(self.wrong(start, format!("stack id 0x{id:x} has more than 31 bits")));
        }
        if nr > MAX_DEPTH {
            let what = format!("stack {id} says {nr} frames, more than any kernel writes");
            return Err(self.wrong(start + 4, what));
        }
        if reserved != 0 {
            let what = format!("the reserved word of stack {id} is 0x{reserved:x}, not 0");
            return Err(self.wrong(start + 12, what));
        }

        let mut raw = std::mem::take(&mut self.raw);
        raw.resize(nr as usize * 8, 0);
        self.fill(&mut raw)?;
        self.raw = raw;
        self.ips.clear();
        match self.order {
            Order::Little => decode::<LE>(&self.raw, &mut self.ips),
            Order::Big => decode::<BE>(&self.raw, &mut self.ips),
        }
        self.nr_read += 1;
        Ok(Some(Stack {
            id,
            ref_count,
            ips: &self.ips,
        }))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result {
        match read_full(&mut self.input, buffer) {
            Ok(got) => {
                self.offset += got as u64;
                if got == buffer.len() {
                    return Ok(());
                }
                let what = format!(
                    "the file ends inside stack {} of {}",
                    self.nr_read + 1,
                    self.nr_stacks
                );
                Err(self.wrong(self.offset, what))
            }
            Err((got, error)) => Err(Error::reading(
                &self.source,
                self.offset + got as u64,
                error,
            )),
        }
    }

    fn expect_end(&mut self) -> Result {
        match read_full(&mut self.input, &mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => {
                let what = format!("there is data after the last of {} stacks", self.nr_stacks);
                Err(self.wrong(self.offset, what))
            }
            Err((_, error)) => Err(Error::reading(&self.source, self.offset, error)),
        }
    }

    fn wrong(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::input_at(self.source.as_str(), offset, what)
    }
}

/// Writes a `stack_map_bin` of version 2 in the given byte order.
pub fn write<'a>(
    out: &mut impl Write,
    order: Order,
    load_id: Option<LoadId>,
    stacks: impl ExactSizeIterator<Item = Stack<'a>>,
) -> io::Result<()> {
    write_with(out, MAGIC, order, load_id, stacks)
}

/// Writes a `stack_map_user_bin`.
pub fn write_user<'a>(
    out: &mut impl Write,
    order: Order,
    load_id: Option<LoadId>,
    stacks: impl ExactSizeIterator<Item = Stack<'a>>,
) -> io::Result<()> {
    write_with(out, MAGIC_USER, order, load_id, stacks)
}

fn write_with<'a>(
    out: &mut impl Write,
    magic: u32,
    order: Order,
    load_id: Option<LoadId>,
    stacks: impl ExactSizeIterator<Item = Stack<'a>>,
) -> io::Result<()> {
    match order {
        Order::Little => write_as::<LE>(out, magic, load_id, stacks),
        Order::Big => write_as::<BE>(out, magic, load_id, stacks),
    }
}

fn write_as<'a, O: ByteOrder>(
    out: &mut impl Write,
    magic: u32,
    load_id: Option<LoadId>,
    stacks: impl ExactSizeIterator<Item = Stack<'a>>,
) -> io::Result<()> {
    let mut put = |words: [u32; 4]| out.write_all(words.map(U32::<O>::new).as_bytes());
    let load_id = load_id.map_or(0, LoadId::get);
    put([magic, VERSION, stacks.len() as u32, load_id])?;
    for stack in stacks {
        let head = [stack.id, stack.ips.len() as u32, stack.ref_count, 0];
        out.write_all(head.map(U32::<O>::new).as_bytes())?;
        for ip in stack.ips {
            out.write_all(U64::<O>::new(*ip).as_bytes())?;
        }
    }
    Ok(())
}

fn words<O: ByteOrder>(bytes: &[u8; 16]) -> [u32; 4] {
    let words: [U32<O>; 4] = zerocopy::transmute!(*bytes);
    words.map(U32::get)
}

fn decode<O: ByteOrder>(raw: &[u8], ips: &mut Vec<u64>) {
    // Whole words by construction; a remainder would be nothing that could be decoded.
    if let Ok((words, _)) = <[U64<O>]>::ref_from_prefix_with_elems(raw, raw.len() / 8) {
        ips.extend(words.iter().map(|word| word.get()));
    }
}

#[cfg(test)]
mod tests;
