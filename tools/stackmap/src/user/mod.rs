// SPDX-License-Identifier: MIT OR Apache-2.0

//! User stacks: what led to an event, outside of the kernel.
//!
//! A frame is an offset in a file, and the file is known by its build-id. So it is named wherever
//! there is a file with that build-id: on another machine, and when the process is gone.

pub mod binaries;
pub mod child;
mod elf;
mod files;
mod functions;
mod gopclntab;
pub mod live;
mod lookup;
pub mod names;
mod perf_map;
pub mod segments;
mod symbols;
pub mod words;

use crate::{
    error::Result,
    folded::Kind,
    stack_map_bin::LoadId,
    stacks::{Ids, Stacks},
    symbols::{texts::ByNumber, SourceLine},
};
use binaries::Binaries;
pub(crate) use functions::cut;
use names::{Named, Names};
use std::fmt;
use words::{At, End};

/// A frame that is not named yet.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WhichFrame {
    /// Where it is.
    pub at: At,
    /// Whether it is looked up as it is, rather than as a return address.
    pub exact: bool,
}

/// How many bits the offset of a frame has, and whether it is exact.
const OFFSET_BITS: u32 = 41;

impl WhichFrame {
    /// A frame in a file as a number, in the order of files and their offsets.
    fn number(self) -> Option<u64> {
        match self.at {
            At::File { index, offset } => {
                Some(u64::from(index) << OFFSET_BITS | offset << 1 | u64::from(self.exact))
            }
            At::Address { .. } => None,
        }
    }

    /// The frame in a file with this number: its file, its offset, and whether it is exact.
    fn of_number(number: u64) -> (u32, (u64, bool)) {
        let offset = (number & ((1 << OFFSET_BITS) - 1)) >> 1;
        ((number >> OFFSET_BITS) as u32, (offset, number & 1 != 0))
    }
}

/// What is known of frames. There may be hundreds of thousands, nearly all of them in files.
pub struct ByFrame<V> {
    in_files: ByNumber<u64, V>,
    others: ByNumber<WhichFrame, V>,
}

impl<V> Default for ByFrame<V> {
    fn default() -> Self {
        Self {
            in_files: ByNumber::default(),
            others: ByNumber::default(),
        }
    }
}

impl<V> ByFrame<V> {
    /// Of how many something is known.
    pub fn len(&self) -> usize {
        self.in_files.len() + self.others.len()
    }

    /// Whether nothing is known of any.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is known of a frame.
    pub fn get(&self, frame: WhichFrame) -> Option<&V> {
        match frame.number() {
            Some(number) => self.in_files.get(&number),
            None => self.others.get(&frame),
        }
    }

    /// What is known of a frame, or else `new` from now on.
    pub fn get_or(&mut self, frame: WhichFrame, new: impl FnOnce() -> V) -> &mut V {
        match frame.number() {
            Some(number) => self.in_files.entry(number).or_insert_with(new),
            None => self.others.entry(frame).or_insert_with(new),
        }
    }

    /// This is known of a frame.
    pub fn insert(&mut self, frame: WhichFrame, value: V) {
        match frame.number() {
            Some(number) => drop(self.in_files.insert(number, value)),
            None => drop(self.others.insert(frame, value)),
        }
    }

    /// Forgets the frames in no file that are not to be `kept`.
    fn retain_others(&mut self, kept: impl Fn(&At) -> bool) {
        self.others.retain(|frame, _| kept(&frame.at));
    }

    fn into_frames(self) -> impl Iterator<Item = WhichFrame> {
        let in_files = self.in_files.into_keys().map(|number| {
            let (index, (offset, exact)) = WhichFrame::of_number(number);
            let at = At::File { index, offset };
            WhichFrame { at, exact }
        });
        in_files.chain(self.others.into_keys())
    }
}

/// Signal handlers that interrupt one another where they return to.
const MAX_NESTED: usize = 16;

/// Gives the words of each of some stacks, as often as it is called.
pub type EachStack<'a> = dyn FnMut(&mut dyn FnMut(&[u64])) -> Result + 'a;

/// User stacks, and what it takes to read them.
#[derive(Default)]
pub struct User {
    /// The stacks; their frames are [`words`].
    pub stacks: Stacks,
    /// Those that are read later, if they are.
    pub unread: Ids,
    /// The files that they have frames in.
    pub binaries: Binaries,
    /// The names of their frames.
    pub names: Names,
}

impl User {
    /// These stacks, to be named by what [`prime`](Self::prime) finds.
    pub fn new(stacks: Stacks, binaries: Binaries, names: Names) -> Self {
        Self {
            stacks,
            unread: Ids::default(),
            binaries,
            names,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty() && self.unread.is_empty()
    }

    /// The load of the module that they are of; [`None`]: not known.
    pub fn load_id(&self) -> Option<LoadId> {
        self.unread.load_id().or(self.stacks.load_id())
    }

    /// Whether a stack has this id.
    pub fn has(&self, id: u32) -> bool {
        self.unread.has(id) || self.stacks.get(id).is_some()
    }

    /// Looks all frames up, so that [`frames`](Self::frames) knows. `progress` is called now and then
    /// with the number of frames that are done.
    pub fn prime(&mut self, progress: &mut dyn FnMut(u64)) {
        let stacks = std::mem::take(&mut self.stacks);
        let each = &mut |see: &mut dyn FnMut(&[u64])| {
            stacks.iter().for_each(|stack| see(stack.ips));
            Ok(())
        };
        let all_there = self.prime_each(each, progress);
        debug_assert!(all_there.is_ok());
        self.stacks = stacks;
    }

    /// The same of other stacks.
    pub fn prime_each(
        &mut self,
        each: &mut EachStack<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result {
        self.look_up(|_| true, each, progress)?;
        // What a signal interrupted is no return address, but that is known only now; and it may be where
        // another handler returns to.
        let mut known = 0;
        for _ in 0..MAX_NESTED {
            let now = self.names.nr_signal_returns();
            if now == known {
                break;
            }
            known = now;
            self.look_up(|frame| frame.exact, each, progress)?;
        }
        Ok(())
    }

    /// Looks frames up that are `wanted`.
    fn look_up(
        &mut self,
        wanted: impl Fn(&WhichFrame) -> bool,
        each: &mut EachStack<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result {
        let mut frames = ByFrame::<()>::default();
        each(&mut |words| {
            for frame in self.stack(words).filter(&wanted) {
                frames.insert(frame, ());
            }
        })?;
        self.names
            .prime(frames.into_frames(), &self.binaries, progress);
        Ok(())
    }

    /// The frames of a stack, innermost first.
    pub fn stack<'a>(&'a self, words: &'a [u64]) -> impl Iterator<Item = WhichFrame> + use<'a> {
        let mut exact = true;
        words::frames(words).0.map(move |at| {
            let frame = WhichFrame { at, exact };
            exact = self.names.is_signal_return(frame);
            frame
        })
    }

    /// How a stack ends.
    pub fn end(&self, words: &[u64]) -> End {
        words::frames(words).1
    }

    /// The build-id of a file, in hexadecimal digits, if that is known.
    pub fn build_id(&self, index: u32) -> Option<&str> {
        let binary = self.binaries.get(index);
        let build_id = binary.and_then(|binary| binary.build_id.as_deref());
        build_id.or_else(|| self.names.vdso_id(index))
    }

    /// The frames at a place, innermost first: those that were inlined, and the last one.
    pub fn frames(&self, which: WhichFrame) -> impl Iterator<Item = UserFrame<'_>> {
        let named = self.names.frames(which);
        let frame = move |named| UserFrame {
            at: which.at,
            named,
            binaries: &self.binaries,
        };
        let unnamed = named.is_empty().then(move || frame(None));
        let named = named.iter().map(move |named| frame(Some(named)));
        named.chain(unnamed)
    }
}

/// A frame of a user stack, as people read it.
#[derive(Clone, Copy)]
pub struct UserFrame<'a> {
    /// Where it is.
    pub at: At,
    /// The function, if that is known.
    pub named: Option<&'a Named>,
    binaries: &'a Binaries,
}

impl fmt::Debug for UserFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl<'a> UserFrame<'a> {
    /// The line of source code that made the call.
    pub fn source(&self) -> Option<&'a SourceLine> {
        self.named?.source.as_ref()
    }

    /// The name of the file that it is in.
    pub fn file(&self) -> Option<String> {
        match self.at {
            At::File { index, .. } => Some(self.binaries.name(index)),
            At::Address { .. } => None,
        }
    }

    /// What it is, for colours.
    pub fn kind(&self) -> Kind {
        match self.named {
            Some(_) => Kind::User,
            None => Kind::UserAddress,
        }
    }

    /// The name of the function.
    pub fn function(&self) -> Option<&'a str> {
        // Debug information may know that a function was inlined, and not its name.
        let name = |named: &'a Named| named.function.as_deref().unwrap_or("?");
        self.named.map(name)
    }

    /// The name without an offset, or else the file and the offset in it, or else the address.
    pub fn plain(&self) -> String {
        match self.function() {
            Some(function) => function.to_owned(),
            None => self.to_string(),
        }
    }
}

/// `name+0xoffset/0xsize [file]`, as the kernel prints functions of modules; `file+0xoffset`, or the
/// address.
impl fmt::Display for UserFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file();
        if let (Some(named), Some(function)) = (self.named, self.function()) {
            f.write_str(function)?;
            match (named.inlined, named.size) {
                (true, _) => {}
                (false, Some(size)) => write!(f, "+0x{:x}/0x{size:x}", named.offset)?,
                (false, None) => write!(f, "+0x{:x}", named.offset)?,
            }
            if let Some(file) = file {
                write!(f, " [{file}]")?;
            }
            return f.write_str(if named.inlined { " (inlined)" } else { "" });
        }
        match self.at {
            At::File { index, offset } => {
                write!(f, "{}+0x{offset:x}", self.binaries.exact_name(index))
            }
            At::Address { address, process } => match process {
                Some(process) => write!(f, "0x{address:x} (process {})", process.tgid),
                None => write!(f, "0x{address:x}"),
            },
        }
    }
}
