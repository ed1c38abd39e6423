// SPDX-License-Identifier: MIT OR Apache-2.0

//! From addresses to names: kallsyms by default, ELF and DWARF where files are given.
//!
//! Most frames of a stack are return addresses, which may lie past the end of the function that
//! made the call; they are looked up one byte before. The first one, and one below the entry of an
//! interrupt or an exception, are *exact*: the instruction there is the one that is meant. An
//! address that no source covers stays an address: nothing is guessed.

pub mod canonical;
pub mod elf;
pub mod frames;
pub mod kallsyms;
pub mod modules;
pub mod texts;

use crate::stacks::Stacks;
use elf::{DebugFrame, DebugInfo};
use kallsyms::Kallsyms;
use serde::{Deserialize, Serialize};
use std::{fmt, rc::Rc};

/// What stands for a frame inside an ftrace trampoline; `FTRACE_TRAMPOLINE_MARKER` in the kernel.
pub const TRAMPOLINE_MARKER: u64 = i32::MAX as u64;
/// How the kernel prints [`TRAMPOLINE_MARKER`].
pub const TRAMPOLINE_NAME: &str = "[FTRACE TRAMPOLINE]";

/// Everything that is known about the addresses of one kernel.
#[derive(Default)]
pub struct Symbols {
    /// The kernel's own table.
    pub kallsyms: Option<Kallsyms>,
    /// ELF files with more than names.
    pub debug_info: Option<DebugInfo>,
    /// Whether [`stack`](Self::stack) has the frames of tracing itself, too.
    pub plumbing: bool,
}

/// A frame of a stack that is not named yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct At {
    /// How many frames lie above it, hidden ones included.
    pub depth: usize,
    /// The address.
    pub ip: u64,
    /// Whether it is looked up as it is, rather than as a return address.
    pub exact: bool,
}

/// A name that covers an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Symbol<'a> {
    /// The function.
    pub name: &'a str,
    /// The module that it is in.
    pub module: Option<&'a str>,
    /// How far the frame's address is after the beginning of the function; 0 also in the prefix
    /// that compilers put before it.
    pub offset: u64,
    /// How long the function is, if that is known.
    pub size: Option<u64>,
}

/// What a frame's address is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place<'a> {
    /// Inside a function.
    Symbol(Symbol<'a>),
    /// Inside code that ftrace generated.
    Trampoline,
    /// Not known.
    Unknown,
}

/// A line of source code.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SourceLine {
    /// The file, as it was given to the compiler.
    pub file: Rc<str>,
    /// The line, from 1.
    pub line: u32,
}

/// `file:line`
impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A frame of a stack, as people read it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// The address, as the kernel captured it.
    pub ip: u64,
    /// What is at the address.
    pub place: Place<'a>,
    /// Whether the compiler inlined this function into that of the next frame.
    pub inlined: bool,
    /// The line of source code that made the call.
    pub source: Option<&'a SourceLine>,
}

impl<'a> Frame<'a> {
    /// The name alone, if there is one.
    pub fn name(&self) -> Option<&'a str> {
        match self.place {
            Place::Symbol(symbol) => Some(symbol.name),
            Place::Trampoline => Some(TRAMPOLINE_NAME),
            Place::Unknown => None,
        }
    }

    /// How far after the beginning of its function the frame is, if there is one that was not
    /// inlined.
    pub fn offset(&self) -> Option<u64> {
        match self.place {
            Place::Symbol(symbol) if !self.inlined => Some(symbol.offset),
            _ => None,
        }
    }

    /// The module, if the frame is in one.
    pub fn module(&self) -> Option<&'a str> {
        match self.place {
            Place::Symbol(symbol) => symbol.module,
            Place::Trampoline | Place::Unknown => None,
        }
    }

    /// The name without an offset, with the module, or else the address.
    pub fn plain(&self) -> impl fmt::Display + use<'a> {
        let frame = *self;
        from_fn(move |f| match frame.place {
            Place::Symbol(symbol) => write_symbol(f, &symbol, false),
            _ => write!(f, "{frame}"),
        })
    }
}

/// As the kernel prints it: `name+0xoffset/0xsize [module]`, or the address.
impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Symbol(symbol) if self.inlined => {
                write_symbol(f, &symbol, false)?;
                f.write_str(" (inlined)")
            }
            Place::Symbol(symbol) => write_symbol(f, &symbol, true),
            Place::Trampoline => f.write_str(TRAMPOLINE_NAME),
            Place::Unknown => write!(f, "0x{:x}", self.ip),
        }
    }
}

fn write_symbol(f: &mut fmt::Formatter<'_>, symbol: &Symbol<'_>, offset: bool) -> fmt::Result {
    f.write_str(symbol.name)?;
    if offset {
        write!(f, "+0x{:x}", symbol.offset)?;
        if let Some(size) = symbol.size {
            write!(f, "/0x{size:x}")?;
        }
    }
    match symbol.module {
        Some(module) => write!(f, " [{module}]"),
        None => Ok(()),
    }
}

/// [`fmt::Display`] by a closure.
fn from_fn(f: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result) -> impl fmt::Display {
    struct FromFn<F>(F);
    impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for FromFn<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0(f)
        }
    }
    FromFn(f)
}

impl Symbols {
    /// Whether there is any source of names.
    pub fn is_empty(&self) -> bool {
        self.kallsyms.is_none() && self.debug_info.is_none()
    }

    /// Looks all frames of `stacks` up in the ELF files, if there are any, so that
    /// [`frames`](Self::frames) knows. `progress` is called now and then with the number of
    /// addresses that are done.
    pub fn prime(&mut self, stacks: &Stacks, progress: &mut dyn FnMut(u64)) {
        // Without kallsyms, entries are known only when the first pass has named them.
        let nr_passes = match self.kallsyms {
            Some(_) => 1,
            None => 2,
        };
        for _ in 0..nr_passes {
            let Some(debug_info) = &self.debug_info else {
                return;
            };
            let frames = stacks.iter().flat_map(|stack| self.exact(stack.ips));
            let wanted = debug_info.unknown(frames);
            if let Some(debug_info) = &mut self.debug_info {
                debug_info.look_up_all(wanted, self.kallsyms.as_ref(), progress);
            }
        }
    }

    /// The function that the kernel's table has at a frame.
    pub fn place(&self, ip: u64, exact: bool) -> Place<'_> {
        self.place_by(ip, |kallsyms| kallsyms.symbol(ip, exact))
    }

    /// The same, with its name as the table has it.
    pub fn raw_place(&self, ip: u64, exact: bool) -> Place<'_> {
        self.place_by(ip, |kallsyms| kallsyms.raw_symbol(ip, exact))
    }

    fn place_by<'a>(
        &'a self,
        ip: u64,
        symbol: impl Fn(&'a Kallsyms) -> Option<Symbol<'a>>,
    ) -> Place<'a> {
        if ip == TRAMPOLINE_MARKER {
            return Place::Trampoline;
        }
        match self.kallsyms.as_ref().and_then(symbol) {
            Some(symbol) => Place::Symbol(symbol),
            None => Place::Unknown,
        }
    }

    /// The frames of a stack, innermost first, without those of tracing itself unless they are
    /// wanted.
    pub fn stack<'a>(&'a self, ips: &'a [u64]) -> impl Iterator<Item = At> + use<'a> {
        let hidden = match self.plumbing {
            true => 0,
            false => self.nr_plumbing(ips),
        };
        self.all(ips).skip(hidden)
    }

    /// The same with those of tracing itself in any case.
    pub fn all<'a>(&'a self, ips: &'a [u64]) -> impl Iterator<Item = At> + use<'a> {
        let frames = self.exact(ips).enumerate();
        frames.map(|(depth, (ip, exact))| At { depth, ip, exact })
    }

    /// The addresses of a stack, innermost first, and whether each is exact.
    fn exact<'a>(&'a self, ips: &'a [u64]) -> impl Iterator<Item = (u64, bool)> + use<'a> {
        let mut next = true;
        ips.iter().map(move |ip| {
            let exact = next;
            next = self.is_entry(*ip, exact);
            (*ip, exact)
        })
    }

    /// Whether tracing itself caused an event with this stack.
    pub fn is_own(&self, ips: &[u64]) -> bool {
        let is_of_tracing = |kallsyms: &Kallsyms| {
            let mut addresses = ips.iter().enumerate();
            addresses.any(|(depth, ip)| kallsyms.is_of_tracing(lookup_address(*ip, depth == 0)))
        };
        // Looking up names takes long, and few stacks have such a function.
        self.kallsyms.as_ref().is_none_or(is_of_tracing)
            && frames::is_own(self.names(ips).skip(self.nr_plumbing(ips)))
    }

    /// How many frames at the beginning of a stack are of tracing itself.
    fn nr_plumbing(&self, ips: &[u64]) -> usize {
        frames::nr_plumbing(self.names(ips))
    }

    /// The name and the module of each frame.
    fn names<'a>(
        &'a self,
        ips: &'a [u64],
    ) -> impl Iterator<Item = Option<(&'a str, Option<&'a str>)>> {
        ips.iter().enumerate().map(|(depth, ip)| {
            let frame = self.frames(*ip, depth == 0).last()?;
            Some((frame.name()?, frame.module()))
        })
    }

    /// Whether a frame is the entry of an interrupt or an exception.
    fn is_entry(&self, ip: u64, exact: bool) -> bool {
        let address = lookup_address(ip, exact);
        if let Some(kallsyms) = &self.kallsyms {
            return kallsyms.is_entry(address);
        }
        let Some(debug_info) = &self.debug_info else {
            return false;
        };
        let frame = debug_info.frames(ip, exact).last();
        frame.is_some_and(DebugFrame::is_entry)
    }

    /// The frame at `ip`, after the frames that were inlined into it. `exact`: it is no return
    /// address.
    pub fn frames(&self, ip: u64, exact: bool) -> Frames<'_> {
        let known = self
            .debug_info
            .as_ref()
            .map_or(&[][..], |debug_info| debug_info.frames(ip, exact));
        if ip == TRAMPOLINE_MARKER || known.is_empty() {
            return Frames::One(Some(Frame {
                ip,
                place: self.place(ip, exact),
                inlined: false,
                source: None,
            }));
        }
        Frames::Known {
            ip,
            behind: ip - lookup_address(ip, exact),
            frames: known.iter(),
        }
    }
}

/// The frames at one address; see [`Symbols::frames`].
pub enum Frames<'a> {
    /// Of the kernel's table.
    One(Option<Frame<'a>>),
    /// Of an ELF file.
    Known {
        /// The address.
        ip: u64,
        /// How far it is after the address that was looked up.
        behind: u64,
        /// What was found there.
        frames: std::slice::Iter<'a, DebugFrame>,
    },
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        match self {
            Frames::One(frame) => frame.take(),
            Frames::Known { ip, behind, frames } => {
                frames.next().map(|frame| frame.frame(*ip, *behind))
            }
        }
    }
}

/// Where a frame is looked up: return addresses one byte before.
pub(crate) const fn lookup_address(ip: u64, exact: bool) -> u64 {
    if exact {
        ip
    } else {
        ip.saturating_sub(1)
    }
}
