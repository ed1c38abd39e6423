// SPDX-License-Identifier: GPL-2.0

//! `stack_map`: the stacks as text; written to, it resets the map.

use super::stack_map_bin::Walk;
use crate::{
    control,
    map::ReadSide,
    modules::{Symbol, Symbols},
    store,
    tracefs::{File, Output, Reader},
};
use kernel::{bindings::umode_t, prelude::*};

pub(super) struct StackMap;

impl File for StackMap {
    const NAME: &'static CStr = c"stack_map";
    const MODE: umode_t = 0o640;
    type Reader = TextReader;

    fn write(data: &[u8]) -> Result {
        match super::trim_newline(data) {
            b"0" | b"reset" => control::reset(),
            _ => Err(EINVAL),
        }
    }
}

/// One block a stack. A reset meanwhile ends the reading.
pub(super) struct TextReader(Walk);

impl Reader for TextReader {
    fn open() -> Result<Self> {
        Walk::begin(&store::KERNEL).map(Self)
    }

    fn seek(&mut self, position: u64) -> Result<Option<u64>> {
        Ok(self.0.seek(position).unwrap_or(None))
    }

    fn show(&self, out: &Output<'_>) {
        let Some((stack, frames)) = self.0.stack() else {
            return;
        };
        // What a reset has removed has no names any more.
        let section = ReadSide::enter();
        if !store::KERNEL
            .map_in(&section)
            .is_some_and(|map| map.has(stack.inserted))
        {
            return;
        }
        out.text(fmt!(
            "stack_id {} [ref {}, depth {}]\n",
            stack.id.get(),
            stack.ref_count,
            stack.nr
        ));
        let symbols = Symbols::read(&section);
        for (index, frame) in frames.iter().enumerate() {
            out.text(fmt!("  [{}] ", index));
            match symbols.of(stack.inserted, *frame) {
                Symbol::Trampoline => out.text(fmt!("[FTRACE TRAMPOLINE]")),
                Symbol::Current => out.symbol(*frame),
                Symbol::Saved(name) => out.bytes(name),
                Symbol::Unknown => out.text(fmt!("{:#x}", frame)),
            }
            out.bytes(b"\n");
        }
        out.bytes(b"\n");
    }
}
