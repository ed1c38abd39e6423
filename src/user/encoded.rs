// SPDX-License-Identifier: GPL-2.0

//! A user stack as words of 64 bits, in the form that is the same for all runs of a program.
//!
//! ```text
//!  1 | index 23 | offset 40                 offset in a file of the binary with this index
//! 00 | address 62                           frame without an index; the stack then also has a process
//! 01 | start time 21 | execs 9 | tgid 32    the process that these addresses belong to
//!  0 | guessed 8 | end 4                    how the stack ends, and the first frame that was guessed
//! ```
//!
//! The innermost frame comes first, the process after the last frame, the end last.

/// The most frames of a stack: as many as the kernel's own cache has.
pub const FRAMES_MAX: usize = 510;

/// Words of the longest stack: its frames, a process and an end.
pub const WORDS_MAX: usize = FRAMES_MAX + 2;

/// The largest index of a binary that fits into a word.
pub const INDEX_MAX: u32 = (1 << 23) - 1;

const OFFSET_BITS: u32 = 40;
const IN_BINARY: u64 = 1 << 63;
const PROCESS: u64 = 1 << 62;
const END_BITS: u32 = 4;

/// The largest number of a guessed frame that fits into a word: a later one has this number.
pub const GUESSED_MAX: usize = 255;

/// Below this there is no address: the kernel maps nothing there.
const ADDRESS_MIN: u64 = 4096;

/// How a user stack ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub enum End {
    /// At the outermost frame.
    Complete = 1,
    /// It is not known yet how to leave the last frame.
    NoRule = 2,
    /// The stack cannot be read.
    Fault = 3,
    /// There are more frames than [`FRAMES_MAX`]; or as many, where only frame pointers are followed.
    Depth = 4,
    /// The chain of frame pointers ends.
    FramePointer = 5,
    /// There are no frames: the task has never been in user space.
    NoMemory = 6,
    /// A return address is in no code of user space, or the stack would go down.
    BadAddress = 7,
    /// No call frame information describes the code, and neither decoding nor the frame pointer leads to a caller.
    NoCfi = 8,
    /// No rule can express the call frame information of the code.
    Inexpressible = 9,
}

/// What users are shown of each end, by its number less 1.
const ENDS: [(End, &str); 9] = [
    (End::Complete, "complete"),
    (End::NoRule, "cut: no rule"),
    (End::Fault, "cut: fault"),
    (End::Depth, "cut: depth"),
    (End::FramePointer, "cut: frame pointers"),
    (End::NoMemory, "cut: no memory"),
    (End::BadAddress, "cut: bad address"),
    (End::NoCfi, "cut: no CFI"),
    (End::Inexpressible, "cut: complex CFI"),
];

/// One word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EncodedFrame {
    /// A frame in a file.
    Binary {
        /// The index of the binary.
        index: u32,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// A frame that is in no file: an address of the process.
    Address(u64),
    /// The process that addresses belong to.
    Process {
        /// Its thread group.
        tgid: u32,
        /// When it began, and the programs that it has been: see [`process`].
        start: u32,
    },
    /// How the stack ends.
    End {
        /// Where, or why.
        end: End,
        /// The first frame that nothing verifies, at most [`GUESSED_MAX`]. 0: all are verified.
        guessed: usize,
    },
}

impl EncodedFrame {
    /// Returns the word. [`None`]: a part of it is too large.
    pub const fn bits(self) -> Option<u64> {
        match self {
            EncodedFrame::Binary { index, offset } => {
                if index > INDEX_MAX || offset >> OFFSET_BITS != 0 {
                    return None;
                }
                Some(IN_BINARY | (index as u64) << OFFSET_BITS | offset)
            }
            EncodedFrame::Address(address) => {
                if address < ADDRESS_MIN || address >= PROCESS {
                    return None;
                }
                Some(address)
            }
            EncodedFrame::Process { tgid, start } => {
                if start >> 30 != 0 {
                    return None;
                }
                Some(PROCESS | (start as u64) << 32 | tgid as u64)
            }
            EncodedFrame::End { end, guessed } => {
                let guessed = if guessed > GUESSED_MAX {
                    GUESSED_MAX
                } else {
                    guessed
                };
                Some((guessed as u64) << END_BITS | end as u64)
            }
        }
    }

    /// Decodes a word. [`None`]: it encodes nothing.
    pub fn from_bits(bits: u64) -> Option<Self> {
        if bits & IN_BINARY != 0 {
            return Some(EncodedFrame::Binary {
                index: (bits >> OFFSET_BITS) as u32 & INDEX_MAX,
                offset: bits & ((1 << OFFSET_BITS) - 1),
            });
        }
        if bits & PROCESS != 0 {
            return Some(EncodedFrame::Process {
                tgid: bits as u32,
                start: (bits >> 32) as u32 & ((1 << 30) - 1),
            });
        }
        if bits >= ADDRESS_MIN {
            return Some(EncodedFrame::Address(bits));
        }
        let number = bits as usize & ((1 << END_BITS) - 1);
        let (end, _) = *ENDS.get(number.checked_sub(1)?)?;
        let guessed = bits as usize >> END_BITS;
        Some(EncodedFrame::End { end, guessed })
    }
}

impl End {
    /// Returns what users are shown: `complete`, or why the stack is cut.
    pub const fn text(self) -> &'static str {
        ENDS[self as usize - 1].1
    }
}

/// The words of one stack.
pub struct EncodedStack {
    words: [u64; WORDS_MAX],
    nr: usize,
    /// Frames that are in no file.
    raw: usize,
    /// The first frame that nothing verifies, or 0.
    guessed: usize,
}

impl Default for EncodedStack {
    fn default() -> Self {
        Self {
            words: [0; WORDS_MAX],
            nr: 0,
            raw: 0,
            guessed: 0,
        }
    }
}

impl EncodedStack {
    /// Removes all words.
    pub fn clear(&mut self) {
        (self.nr, self.raw, self.guessed) = (0, 0, 0);
    }

    /// Keeps frames, whose words `next` returns, until it returns [`None`] or there are [`FRAMES_MAX`].
    #[inline(always)]
    pub fn keep_all(&mut self, mut next: impl FnMut() -> Option<u64>) {
        let [frames @ .., _, _] = &mut self.words;
        let mut nr = self.nr;
        while let Some(slot) = frames.get_mut(nr) {
            let Some(word) = next() else {
                break;
            };
            *slot = word;
            nr = nr.wrapping_add(1);
        }
        self.nr = nr;
    }

    /// Keeps a frame in a file, unless there are [`FRAMES_MAX`].
    pub fn keep(&mut self, word: u64) {
        let mut word = Some(word);
        self.keep_all(|| word.take());
    }

    /// Keeps a frame that is in no file: its address.
    pub fn keep_raw(&mut self, address: u64) {
        self.raw += 1;
        self.keep(address);
    }

    /// Marks the frames that are kept from now on as guessed.
    pub fn guess(&mut self) {
        if self.guessed == 0 {
            self.guessed = self.nr;
        }
    }

    /// Adds the process, if there are addresses, and how the stack ends.
    pub fn end(&mut self, process: EncodedFrame, end: End) {
        let guessed = self.guessed().min(GUESSED_MAX) as u64;
        let process = (self.raw != 0).then(|| process.bits().unwrap_or(0));
        for word in process
            .into_iter()
            .chain([guessed << END_BITS | end as u64])
        {
            if let Some(slot) = self.words.get_mut(self.nr) {
                *slot = word;
                self.nr += 1;
            }
        }
    }

    /// Returns all words.
    pub fn words(&self) -> &[u64] {
        self.words.get(..self.nr).unwrap_or_default()
    }

    /// Returns the number of frames, before [`EncodedStack::end`].
    pub fn frames(&self) -> usize {
        self.nr
    }

    /// Returns the first frame that was guessed, before [`EncodedStack::end`]; 0: none.
    pub fn guessed(&self) -> usize {
        if self.guessed < self.nr {
            self.guessed
        } else {
            0
        }
    }

    /// Returns the number of frames that are in no file.
    pub fn raw(&self) -> usize {
        self.raw
    }
}

/// Returns what distinguishes a program of a process from others of the same number, in 30 bits: when the
/// process began (21 bits, about a million nanoseconds each) and its count of `exec` calls (9 bits).
pub const fn process(start_time: u64, exec_id: u64) -> u32 {
    ((start_time >> 20) as u32 & 0x1f_ffff) << 9 | exec_id as u32 & 0x1ff
}

/// Returns whether an address can be one of user space.
pub const fn is_user(address: u64, user_end: u64) -> bool {
    address >= ADDRESS_MIN && address < user_end
}
