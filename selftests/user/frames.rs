// SPDX-License-Identifier: GPL-2.0

//! What is remembered of frames without CFI, as in the module.

use crate::{
    decoded::DecodedFrames,
    frame::{Caller, CallerPointer, Frame, Memory, Unreadable},
};
use kernel::prelude::*;
use std::cell::Cell;

const SP: u64 = 0x7fff_0000;
const FRAME: Frame = Frame {
    ip: 0x1000,
    sp: SP,
    fp: 0,
};
const RETURN_ADDRESS: u64 = 0x2000;

/// Memory whose words are all the same. It counts how often it is read.
struct Words {
    word: Cell<u64>,
    reads: Cell<u32>,
}

impl Words {
    fn new() -> Self {
        Self {
            word: Cell::new(RETURN_ADDRESS),
            reads: Cell::new(0),
        }
    }
}

impl Memory for Words {
    fn word(&self, _: u64) -> Result<u64, Unreadable> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.word.get())
    }
}

/// Returns the caller whose return address is after this number of words.
fn caller(words: u64) -> Caller {
    Caller {
        slot: SP + 8 * words,
        fp: CallerPointer::Unchanged,
        is_guessed: false,
    }
}

/// Returns the key of a frame by its number.
fn key(number: u64) -> [u64; 7] {
    [number, 0, 0, FRAME.ip, SP, 0, 1]
}

#[test]
fn a_caller_is_remembered_with_its_return_address() -> Result {
    let (frames, memory) = (DecodedFrames::new()?, Words::new());
    frames.put(key(0), &FRAME, Some(caller(3)), &memory);
    assert_eq!(frames.get(key(0), &FRAME, &memory), Some(Some(caller(3))));
    memory.word.set(RETURN_ADDRESS + 1);
    assert_eq!(frames.get(key(0), &FRAME, &memory), None);
    memory.word.set(RETURN_ADDRESS);
    frames.forget();
    assert_eq!(frames.get(key(0), &FRAME, &memory), None);
    Ok(())
}

/// What is remembered of it leads elsewhere on the stack, and the words there may be absent, or read in vain.
#[test]
fn no_memory_is_read_for_what_is_remembered_of_another_frame() -> Result {
    let (frames, memory) = (DecodedFrames::new()?, Words::new());
    frames.put(key(0), &FRAME, Some(caller(3)), &memory);
    memory.reads.set(0);
    // More than there are entries: many have that of the frame.
    for number in 1..10_000 {
        assert_eq!(frames.get(key(number), &FRAME, &memory), None);
    }
    assert_eq!(memory.reads.get(), 0);
    Ok(())
}

#[test]
fn a_failure_is_taken_for_granted_31_times() -> Result {
    let (frames, memory) = (DecodedFrames::new()?, Words::new());
    frames.put(key(0), &FRAME, None, &memory);
    for _ in 0..31 {
        assert_eq!(frames.get(key(0), &FRAME, &memory), Some(None));
    }
    assert_eq!(frames.get(key(0), &FRAME, &memory), None);
    assert_eq!(memory.reads.get(), 0);
    Ok(())
}
