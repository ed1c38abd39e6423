// SPDX-License-Identifier: MIT OR Apache-2.0

//! The words of a user stack, as `Documentation/abi/stack_map_user_bin.rst` describes them.

use crate::stack_map_bin::Stack;
use std::fmt;

const FILE: u64 = 1 << 63;
const INDEX_SHIFT: u32 = 40;
/// The last index that a file can have.
pub(crate) const MAX_INDEX: u32 = (1 << 23) - 1;
const OFFSET_MASK: u64 = (1 << INDEX_SHIFT) - 1;
const PROCESS: u64 = 1 << 62;
const START_SHIFT: u32 = 32;
const START_MASK: u64 = (1 << 30) - 1;
/// Bits of how a stack ends.
const END_BITS: u32 = 4;
/// No address is below this.
const LEAST_ADDRESS: u64 = 4096;

/// A process whose frames are addresses.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Process {
    /// Its thread group.
    pub tgid: u32,
    /// 21 bits of its start time, in units of 2^20 ns, and 9 bits of its count of `exec` calls.
    pub start: u32,
}

/// How a user stack ends, and the first frame that nothing verifies; 0: all are verified.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct End(Option<&'static str>, u64);

impl End {
    const fn new(word: u64) -> Self {
        let end = match word & ((1 << END_BITS) - 1) {
            1 => "complete",
            2 => "cut: no rule",
            3 => "cut: fault",
            4 => "cut: 510 frames",
            5 => "cut: frame pointers ended",
            6 => "cut: no memory",
            7 => "cut: bad address",
            8 => "cut: no CFI",
            9 => "cut: complex CFI",
            // A module newer than this tool.
            _ => return End(None, 0),
        };
        End(Some(end), word >> END_BITS)
    }
}

/// As `stack_map_user` prints it.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.unwrap_or("end unknown"), self.1) {
            (end, 0) => f.write_str(end),
            ("complete", frame) => write!(f, "guessed from frame {frame}"),
            (end, frame) => write!(f, "{end}, guessed from frame {frame}"),
        }
    }
}

/// A word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Word {
    /// A frame in a file.
    File {
        /// Its index in `stack_map_binaries`.
        index: u32,
        /// Where in the file, in bytes.
        offset: u64,
    },
    /// A frame in no file: an address of the process that a later word names.
    Address(u64),
    /// The process of such frames.
    Process(Process),
    /// How the stack ends.
    End(End),
}

impl Word {
    /// What a word means.
    pub fn new(word: u64) -> Self {
        if word & FILE != 0 {
            return Word::File {
                index: (word >> INDEX_SHIFT) as u32 & MAX_INDEX,
                offset: word & OFFSET_MASK,
            };
        }
        if word & PROCESS != 0 {
            return Word::Process(Process {
                tgid: word as u32,
                start: (word >> START_SHIFT & START_MASK) as u32,
            });
        }
        match word < LEAST_ADDRESS {
            true => Word::End(End::new(word)),
            false => Word::Address(word),
        }
    }
}

/// A frame of a user stack.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum At {
    /// In a file.
    File {
        /// Its index in `stack_map_binaries`.
        index: u32,
        /// Where in the file, in bytes.
        offset: u64,
    },
    /// In no file.
    Address {
        /// Where in the process.
        address: u64,
        /// Which; [`None`]: the stack does not say.
        process: Option<Process>,
    },
}

/// The frames of a stack, innermost first, and how it ends.
pub fn frames(words: &[u64]) -> (impl Iterator<Item = At> + Clone + use<'_>, End) {
    let mut process = None;
    let mut end = End::default();
    for word in words {
        match Word::new(*word) {
            Word::Process(found) => process = Some(found),
            Word::End(found) => end = found,
            Word::File { .. } | Word::Address(_) => {}
        }
    }
    let frames = words.iter().filter_map(move |word| match Word::new(*word) {
        Word::File { index, offset } => Some(At::File { index, offset }),
        Word::Address(address) => Some(At::Address { address, process }),
        Word::Process(_) | Word::End(_) => None,
    });
    (frames, end)
}

/// The processes that a stack has frames of in no file.
pub fn processes(stack: Stack<'_>) -> impl Iterator<Item = Process> + use<'_> {
    frames(stack.ips).0.filter_map(|at| match at {
        At::Address { process, .. } => process,
        At::File { .. } => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_the_module_writes() {
        let words = [
            FILE | 2 << INDEX_SHIFT | 0x1_0003,
            0x7f31_c0de_1000,
            PROCESS | 5 << START_SHIFT | 812,
            1,
        ];
        let (frames, end) = frames(&words);
        let process = Process {
            tgid: 812,
            start: 5,
        };
        let want = [
            At::File {
                index: 2,
                offset: 0x1_0003,
            },
            At::Address {
                address: 0x7f31_c0de_1000,
                process: Some(process),
            },
        ];
        assert!(frames.eq(want));
        assert_eq!(end.to_string(), "complete");
    }

    #[test]
    fn a_stack_says_how_it_ends() {
        let end = |words: &[u64]| frames(words).1.to_string();
        assert_eq!(end(&[1]), "complete");
        assert_eq!(end(&[FILE, 2]), "cut: no rule");
        assert_eq!(end(&[7]), "cut: bad address");
        assert_eq!(end(&[8]), "cut: no CFI");
        assert_eq!(end(&[9]), "cut: complex CFI");
        assert_eq!(end(&[]), "end unknown");
        assert_eq!(end(&[4095]), "end unknown");
        assert_eq!(end(&[3 << 4 | 1]), "guessed from frame 3");
        assert_eq!(
            end(&[255 << 4 | 7]),
            "cut: bad address, guessed from frame 255"
        );
    }

    #[test]
    fn the_ends_are_those_of_the_module() {
        let module = include_str!("../../../../src/user/encoded.rs");
        for number in 1.. {
            let end = format!(" = {number},");
            let known = End::new(number).0.is_some();
            assert_eq!(module.contains(&end), known, "{number}");
            if !known {
                break;
            }
        }
    }
}
