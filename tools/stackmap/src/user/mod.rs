// SPDX-License-Identifier: MIT OR Apache-2.0

//! User stacks: what led to an event, outside of the kernel.
//!
//! A frame is an offset in a file, and the file is known by its build-id. So it is named wherever
//! there is a file with that build-id: on another machine, and when the process is gone.

pub mod binaries;
mod elf;
mod files;
mod functions;
pub mod live;
pub mod names;
pub mod perf_map;
pub mod segments;
pub mod words;

use crate::{
    folded::Kind,
    stacks::Stacks,
    symbols::{texts::AddressHasher, SourceLine},
};
use binaries::Binaries;
use names::{Named, Names};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    hash::BuildHasherDefault,
};
use words::{At, End};

/// How functions are called to which a signal handler returns (x86). The frame of the code that the
/// signal interrupted is no return address.
const SIGNAL_RETURNS: [&str; 3] = [
    "__restore_rt",
    "__kernel_rt_sigreturn",
    "__kernel_sigreturn",
];

/// What is known of frames.
pub type ByFrame<V> = HashMap<WhichFrame, V, BuildHasherDefault<AddressHasher>>;
type FrameSet = HashSet<WhichFrame, BuildHasherDefault<AddressHasher>>;

/// A frame that is not named yet.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WhichFrame {
    /// Where it is.
    pub at: At,
    /// Whether it is looked up as it is, rather than as a return address.
    pub exact: bool,
}

/// User stacks, and what it takes to read them.
#[derive(Default)]
pub struct User {
    /// The stacks; their frames are [`words`].
    pub stacks: Stacks,
    /// The files that they have frames in.
    pub binaries: Binaries,
    /// The names of their frames.
    pub names: Names,
    /// Where signal handlers return to.
    signal_returns: BTreeSet<At>,
}

impl User {
    /// These stacks, to be named by what [`prime`](Self::prime) finds.
    pub fn new(stacks: Stacks, binaries: Binaries, names: Names) -> Self {
        Self {
            stacks,
            binaries,
            names,
            signal_returns: BTreeSet::new(),
        }
    }

    /// Looks all frames up, so that [`frames`](Self::frames) knows. `progress` is called now and then
    /// with the number of frames that are done.
    pub fn prime(&mut self, progress: &mut dyn FnMut(u64)) {
        // The place that a handler returns to is called by nothing: what lies before it is another
        // function. Behind it is the code that was interrupted.
        self.look_up(|_, frame| Some(frame), progress);
        let outside = |user: &Self, frame: WhichFrame| {
            let is_outside = !frame.exact && !user.is_inside(frame.at);
            is_outside.then_some(WhichFrame {
                exact: true,
                ..frame
            })
        };
        let outside = self.look_up(outside, progress);
        let returns = outside.into_iter().map(|frame| frame.at);
        self.signal_returns = returns.filter(|at| self.is_signal_return(*at)).collect();
        self.look_up(|_, frame| frame.exact.then_some(frame), progress);
    }

    /// Looks up what is `wanted` instead of each frame, and returns that.
    fn look_up(
        &mut self,
        wanted: impl Fn(&Self, WhichFrame) -> Option<WhichFrame>,
        progress: &mut dyn FnMut(u64),
    ) -> FrameSet {
        let mut frames = FrameSet::default();
        for stack in self.stacks.iter() {
            frames.extend(
                self.stack(stack.ips)
                    .filter_map(|frame| wanted(self, frame)),
            );
        }
        self.names
            .prime(frames.iter().copied(), &self.binaries, progress);
        frames
    }

    /// Whether a function has a return address inside, and not at its end.
    fn is_inside(&self, at: At) -> bool {
        let function = self.names.frames(WhichFrame { at, exact: false }).last();
        function.is_some_and(|named| named.size.is_none_or(|size| named.offset < size))
    }

    fn is_signal_return(&self, at: At) -> bool {
        let function = self.names.frames(WhichFrame { at, exact: true }).last();
        function.is_some_and(|named| {
            named.offset == 0
                && named
                    .function
                    .as_deref()
                    .is_some_and(|name| SIGNAL_RETURNS.contains(&name))
        })
    }

    /// The frames of a stack, innermost first.
    pub fn stack<'a>(&'a self, words: &'a [u64]) -> impl Iterator<Item = WhichFrame> + use<'a> {
        let mut exact = true;
        words::frames(words).0.map(move |at| {
            let returns = !exact && self.signal_returns.contains(&at);
            let frame = WhichFrame {
                at,
                exact: exact || returns,
            };
            exact = returns;
            frame
        })
    }

    /// How a stack ends.
    pub fn end(&self, words: &[u64]) -> End {
        words::frames(words).1
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
    /// What is there, if that is known.
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
        match (self.at, file) {
            (At::File { offset, .. }, Some(file)) => write!(f, "{file}+0x{offset:x}"),
            (At::File { offset, .. }, None) => write!(f, "0x{offset:x}"),
            (At::Address { address, process }, _) => match process {
                Some(process) => write!(f, "0x{address:x} (process {})", process.tgid),
                None => write!(f, "0x{address:x}"),
            },
        }
    }
}
