// SPDX-License-Identifier: GPL-2.0

//! How the trace shows an id: as a number, or as its stack, in the kernel's format of a full stack.
//!
//! A dying kernel dumps its ring buffers to the console. The map cannot be read afterwards, so such
//! a dump always shows the stacks.
//!
//! C header: [`include/linux/trace_seq.h`](srctree/include/linux/trace_seq.h)

use crate::{
    map::{Epoch, Id, ReadSide, Record},
    modules::{Symbol, Symbols},
    shim, store,
    user::{
        self,
        encoded::{EncodedFrame, WORDS_MAX},
    },
};
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::{
    fmt::{self, Write},
    prelude::*,
    str::BStr,
};

static RESOLVES: AtomicBool = AtomicBool::new(false);

/// Returns whether stacks are shown instead of ids.
pub(crate) fn resolves() -> bool {
    RESOLVES.load(Ordering::Relaxed)
}

/// Sets whether stacks are shown instead of ids.
pub(crate) fn set(resolves: bool) -> Result {
    RESOLVES.store(resolves, Ordering::Relaxed);
    Ok(())
}

/// The output of an event's print function.
struct Seq<'a> {
    seq: &'a mut shim::trace_seq,
    flags: usize,
}

impl fmt::Write for Seq<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: The sequence is ours to write, and `text` can be read for its length.
        unsafe { shim::trace_seq_putmem(self.seq, text.as_ptr().cast(), text.len() as c_uint) };
        Ok(())
    }
}

impl Seq<'_> {
    fn text(&mut self, args: fmt::Arguments<'_>) {
        // What does not fit is noticed by `trace_handle_return()`.
        let _ = self.write_fmt(args);
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
            Some(name) if has(shim::STACKMAP_SEQ_OFFSET) => {
                self.text(fmt!("{}", name));
            }
            Some(name) => self.text(fmt!("{}", name.split('+').next().unwrap_or(name))),
            None => self.text(fmt!("{:#x}", address)),
        }
        if has(shim::STACKMAP_SEQ_ADDR) {
            self.text(fmt!(" <{:016x}>", address));
        }
    }

    /// Prints a stack as the kernel's own `trace_stack_print()` does.
    fn stack(&mut self, symbols: &Symbols<'_>, inserted: Epoch, record: Record<'_>) {
        self.text(fmt!("<stack trace>\n"));
        for address in record.frames() {
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

    /// Prints a user stack in the form of the kernel's own `trace_user_stack_print()`.
    fn user_stack(&mut self, words: impl Iterator<Item = u64>, has_paths: bool) {
        self.text(fmt!("<user stack trace>\n"));
        for word in words.filter_map(EncodedFrame::from_bits) {
            if shim::stackmap_seq_full(self.seq) {
                break;
            }
            match word {
                EncodedFrame::Binary { index, offset } => {
                    self.text(fmt!(" => "));
                    match has_paths {
                        true => user::path(index, |path| match path {
                            Some(path) => self.text(fmt!("{}", BStr::from_bytes(path))),
                            None => self.text(fmt!("binary {}", index)),
                        }),
                        false => self.text(fmt!("binary {}", index)),
                    }
                    self.text(fmt!("[+{:#x}]\n", offset));
                }
                EncodedFrame::Address(address) => self.text(fmt!(" => <{:016x}>\n", address)),
                EncodedFrame::Process { .. } | EncodedFrame::End { .. } => {}
            }
        }
    }

    /// Prints the user stack of an id, if there is one. Context: process; paths are read under a lock.
    fn user_stack_of(&mut self, id: Id) -> Option<()> {
        let mut words = KVec::with_capacity(WORDS_MAX, GFP_KERNEL).ok()?;
        store::USER.map()?.read(id, |_, record| {
            for word in record.frames() {
                // The longest one fits.
                let _ = words.push_within_capacity(word);
            }
        })?;
        self.user_stack(words.iter().copied(), true);
        Some(())
    }

    /// Prints the same while the kernel dies: without paths, and without memory of its own. Context: any.
    fn user_stack_dumped(&mut self, id: Id) -> Option<()> {
        let section = ReadSide::enter();
        store::USER
            .map_in(&section)?
            .read(id, |_, record| self.user_stack(record.frames(), false))
    }
}

/// Prints the event of an id: as a number, or as its stack. Context: any.
fn print_id(out: &mut Seq<'_>, stack_id: c_int, shows_stack: bool) {
    if !shows_stack {
        out.text(fmt!("<stack_id {}>\n", stack_id));
        return;
    }
    // At unload the map is freed after a grace period, which waits for this section.
    let section = ReadSide::enter();
    let symbols = Symbols::read(&section);
    let id = Id::from_raw(stack_id as u32);
    let shown = store::KERNEL
        .map_in(&section)
        .and_then(|map| map.read(id, |inserted, record| out.stack(&symbols, inserted, record)));
    if shown.is_none() {
        out.text(fmt!("<stack_id {}> (gone)\n", stack_id));
    }
}

/// Prints the event of an id.
///
/// # Safety
///
/// As `include/stackmap_shim.h` says. Context: any.
#[no_mangle]
unsafe extern "C" fn stackmap_print(
    seq: &mut shim::trace_seq,
    stack_id: c_int,
    flags: usize,
    dumped: bool,
) {
    print_id(&mut Seq { seq, flags }, stack_id, dumped || resolves());
}

/// Prints the event of an id with the cookie of its user stack.
///
/// # Safety
///
/// As for [`stackmap_print`].
#[no_mangle]
unsafe extern "C" fn stackmap_print_user(
    seq: &mut shim::trace_seq,
    stack_id: c_int,
    cookie: u64,
    flags: usize,
    dumped: bool,
) {
    let bound = user::bound(&ReadSide::enter(), cookie);
    let shows_stacks = dumped || resolves();
    let mut out = Seq { seq, flags };
    if shows_stacks {
        print_id(&mut out, stack_id, true);
    } else {
        out.text(fmt!("<stack_id {}> ", stack_id));
    }
    let shown = bound.and_then(|id| match (shows_stacks, dumped) {
        (false, _) => out.write_fmt(fmt!("<user_stack_id {}>\n", id)).ok(),
        (true, true) => out.user_stack_dumped(Id::from_raw(id)),
        (true, false) => out.user_stack_of(Id::from_raw(id)),
    });
    if shown.is_none() {
        out.text(fmt!("<user {}:{}>\n", cookie as u32, cookie >> 32));
    }
}
