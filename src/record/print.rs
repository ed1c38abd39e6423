// SPDX-License-Identifier: GPL-2.0

//! How the trace shows an id: as a number, or as its stack, in the kernel's format of a full stack.
//!
//! A dying kernel dumps its ring buffers to the console. The map cannot be read afterwards, so such
//! a dump always shows the stacks.
//!
//! C header: [`include/linux/trace_seq.h`](srctree/include/linux/trace_seq.h)

use crate::{
    map::{Frames, Id, InsertEpoch, ReadSide},
    modules::{Symbol, Symbols},
    shim,
};
use core::{
    ffi::c_void,
    ptr::from_ref,
    sync::atomic::{AtomicBool, Ordering},
};
use kernel::{fmt, prelude::*};

static RESOLVES: AtomicBool = AtomicBool::new(false);

/// Whether stacks are shown instead of ids.
pub(crate) fn resolves() -> bool {
    RESOLVES.load(Ordering::Relaxed)
}

/// Sets whether stacks are shown instead of ids.
pub(crate) fn set(resolves: bool) {
    RESOLVES.store(resolves, Ordering::Relaxed);
}

/// The output of an event's print function.
struct Seq<'a> {
    seq: &'a mut shim::trace_seq,
    flags: usize,
}

impl Seq<'_> {
    fn text(&mut self, args: fmt::Arguments<'_>) {
        // SAFETY: It is ours to write; `%pA` takes a pointer to `Arguments`.
        unsafe {
            shim::trace_seq_printf(
                self.seq,
                c"%pA".as_char_ptr(),
                from_ref(&args).cast::<c_void>(),
            )
        };
    }

    /// Prints an address as the kernel does.
    fn ip(&mut self, address: u64) {
        shim::stackmap_seq_ip(self.seq, address as usize, self.flags);
    }

    /// Prints an address with a saved name, or without one, in the format of `ip`.
    fn named(&mut self, address: u64, name: Option<&[u8]>) {
        let form = shim::stackmap_seq_form(self.seq, self.flags);
        let has = |part: shim::stackmap_seq_form| form & part != 0;
        let name = name.and_then(|name| core::str::from_utf8(name).ok());
        match name {
            Some(name) if has(shim::stackmap_seq_form_STACKMAP_SEQ_OFFSET) => {
                self.text(fmt!("{}", name));
            }
            Some(name) => self.text(fmt!("{}", name.split('+').next().unwrap_or(name))),
            None => self.text(fmt!("{:#x}", address)),
        }
        if has(shim::stackmap_seq_form_STACKMAP_SEQ_ADDR) {
            self.text(fmt!(" <{:016x}>", address));
        }
    }

    /// Prints a stack as the kernel's own `trace_stack_print()` does.
    fn stack(&mut self, symbols: &Symbols<'_>, inserted: InsertEpoch, frames: Frames<'_>) {
        self.text(fmt!("<stack trace>\n"));
        for address in frames {
            if shim::stackmap_seq_full(self.seq) {
                break;
            }
            self.text(fmt!(" => "));
            match symbols.of(inserted, address) {
                Symbol::Trampoline => self.text(fmt!("[FTRACE TRAMPOLINE]")),
                Symbol::Current => self.ip(address),
                Symbol::Saved(name) => self.named(address, Some(name)),
                Symbol::Unknown => self.named(address, None),
            }
            self.text(fmt!("\n"));
        }
    }
}

/// Prints the event of an id.
///
/// # Safety
///
/// As `include/stackmap_shim.h` says. Context: any.
#[no_mangle]
unsafe extern "C" fn stackmap_print(
    seq: *mut shim::trace_seq,
    stack_id: c_int,
    flags: usize,
    dumped: bool,
) {
    // SAFETY: By the requirement no other code uses `seq` during the call.
    let seq = unsafe { &mut *seq };
    let mut out = Seq { seq, flags };
    if !dumped && !resolves() {
        out.text(fmt!("<stack_id {}>\n", stack_id));
        return;
    }
    // At unload the map is freed after a grace period, which waits for this section.
    let section = ReadSide::enter();
    let symbols = Symbols::read(&section);
    let id = Id::from_raw(stack_id as u32);
    let shown = super::map_in(&section)
        .and_then(|map| map.read(id, |inserted, frames| out.stack(&symbols, inserted, frames)));
    if shown.is_none() {
        out.text(fmt!("<stack_id {}> (gone)\n", stack_id));
    }
}
