// SPDX-License-Identifier: GPL-2.0

//! `stack_map_user`: the user stacks as text; writing `settle` or `settle PID` binds the stacks of
//! tasks that stay in the kernel. `stack_map_user_stat`: what is counted of them. `stack_map_binaries`:
//! the files that they have frames in.

use super::stack_map_bin::Walk;
use crate::{
    control, counters,
    map::Map,
    store,
    tracefs::{File, Output, Reader, Single, Text},
    user::{
        self,
        encoded::{EncodedFrame, End},
    },
};
use kernel::{bindings::umode_t, prelude::*};

pub(super) struct StackMapUser;

impl File for StackMapUser {
    const NAME: &'static CStr = c"stack_map_user";
    const MODE: umode_t = 0o640;
    type Reader = TextReader;

    fn write(data: &[u8]) -> Result {
        match super::trim_newline(data) {
            b"settle" => control::settle(0),
            command => control::settle(thread(command).ok_or(EINVAL)?),
        }
    }
}

/// Returns the thread ID of `settle PID`.
fn thread(command: &[u8]) -> Option<i32> {
    let pid = command.strip_prefix(b"settle ")?;
    let pid = core::str::from_utf8(pid).ok()?.parse().ok()?;
    (pid > 0).then_some(pid)
}

/// One block a stack. A reset meanwhile ends the reading.
pub(super) struct TextReader(Walk);

impl Reader for TextReader {
    fn open() -> Result<Self> {
        Walk::begin(&store::USER).map(Self)
    }

    fn seek(&mut self, position: u64) -> Result<Option<u64>> {
        Ok(self.0.seek(position).unwrap_or(None))
    }

    fn show(&self, out: &Output<'_>) {
        let Some((stack, words)) = self.0.stack() else {
            return;
        };
        let words = || {
            words
                .iter()
                .filter_map(|word| EncodedFrame::from_bits(*word))
        };
        let frame = |word: &EncodedFrame| {
            matches!(word, EncodedFrame::Binary { .. } | EncodedFrame::Address(_))
        };
        let end = words().find_map(|word| match word {
            EncodedFrame::End { end, guessed } => Some((end, guessed)),
            _ => None,
        });
        out.text(fmt!(
            "user_stack_id {} [ref {}, depth {}, ",
            stack.id.get(),
            stack.ref_count,
            words().filter(frame).count(),
        ));
        match end {
            Some((End::Complete, guessed @ 1..)) => {
                out.text(fmt!("guessed from frame {}]\n", guessed))
            }
            Some((end, guessed @ 1..)) => {
                out.text(fmt!("{}, guessed from frame {}]\n", end.text(), guessed))
            }
            end => out.text(fmt!("{}]\n", end.map_or("cut", |(end, _)| end.text()))),
        }
        let tgid = words().find_map(|word| match word {
            EncodedFrame::Process { tgid, .. } => Some(tgid),
            _ => None,
        });
        for (index, word) in words().filter(frame).enumerate() {
            out.text(fmt!("  [{}] ", index));
            match word {
                EncodedFrame::Binary { index, offset } => {
                    path(out, index);
                    out.text(fmt!("+{:#x}\n", offset));
                }
                EncodedFrame::Address(address) => {
                    out.text(fmt!("{:#x}", address));
                    if let Some(tgid) = tgid {
                        out.text(fmt!(" (process {})", tgid));
                    }
                    out.bytes(b"\n");
                }
                _ => {}
            }
        }
        out.bytes(b"\n");
    }
}

/// Shows the path of a binary.
fn path(out: &Output<'_>, index: u32) {
    user::path(index, |path| match path {
        Some(path) => out.path(path),
        None => out.text(fmt!("binary {}", index)),
    });
}

pub(super) struct StackMapUserStat;

impl File for StackMapUserStat {
    const NAME: &'static CStr = c"stack_map_user_stat";
    const MODE: umode_t = 0o440;
    type Reader = Single<Self>;
}

impl Text for StackMapUserStat {
    fn show(out: &Output<'_>) {
        let map = store::USER.map();
        let map = map.as_deref();
        out.text(fmt!(
            "{:<20}{} / {}\n",
            "entries:",
            map.map_or(0, Map::entries),
            map.map_or(0, Map::capacity)
        ));
        for counter in &counters::USER {
            out.text(fmt!("{:<20}{}\n", counter.key, counter.total(map)));
        }
        let line = |key: &str, value: u64| out.text(fmt!("{:<20}{}\n", key, value));
        let (binaries, files) = user::known();
        line("binaries:", binaries as u64);
        line("files:", files as u64);
        line("pool_bytes:", map.map_or(0, Map::pool_bytes));
        line("table_bytes:", map.map_or(0, Map::table_bytes));
    }
}

pub(super) struct StackMapBinaries;

impl File for StackMapBinaries {
    const NAME: &'static CStr = c"stack_map_binaries";
    const MODE: umode_t = 0o440;
    type Reader = BinariesReader;
}

/// One line a binary: its index, build-id (`-` if none is known), device, inode, size and path.
pub(super) struct BinariesReader(u32);

impl Reader for BinariesReader {
    fn open() -> Result<Self> {
        Ok(Self(0))
    }

    fn seek(&mut self, position: u64) -> Result<Option<u64>> {
        let from = u32::try_from(position).unwrap_or(u32::MAX);
        let next = user::next_binary(from);
        self.0 = next.unwrap_or(0);
        Ok(next.map(u64::from))
    }

    fn show(&self, out: &Output<'_>) {
        user::binary(self.0, |binary| {
            out.text(fmt!("{} ", self.0));
            if binary.build_id.is_empty() {
                out.bytes(b"-");
            }
            for byte in &binary.build_id {
                out.text(fmt!("{:02x}", byte));
            }
            out.text(fmt!(
                " {}:{} {} {} ",
                binary.file.dev >> 20,
                binary.file.dev & 0xf_ffff,
                binary.file.ino,
                binary.file.size
            ));
            out.path(&binary.path);
            out.bytes(b"\n");
        });
    }
}
