// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the events of a source with their stacks.

use crate::{
    error::{Error, Result},
    notes::Notes,
    output::Progress,
    ring::{
        decode::{Decoder, Trace},
        stream::{Pages, Records},
    },
    source::{Loaded, Shown, Source},
    trace::{Binds, Body, Event, Joiner, Line, Lines, Losses, Sides, StackRef, UserRef, UserSide},
};
use memchr::memmem;
use std::io::{BufReader, Read};

/// How many lines or records are read between two reports of progress.
const STEP: u64 = 4096;

/// Reads all events of `source`, counting in `notes` what is missing. `loaded` is what was read
/// from the same source.
pub fn for_each(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    let user = loaded.shown != Shown::Kernel && !loaded.user.stacks.is_empty();
    if source.has_ring() {
        let binds = match user {
            true => {
                let (trace, pages, _) = source.ring()?;
                trace.binds(pages)?
            }
            false => Binds::default(),
        };
        let (trace, pages, size) = source.ring()?;
        for_each_record(&trace, pages, size, &binds, loaded, notes, out)?;
    } else {
        let binds = match user {
            true => {
                let (input, _, name) = source.trace()?;
                binds_in(input, &name)?
            }
            false => Binds::default(),
        };
        let (input, size, name) = source.trace()?;
        for_each_in(input, size, &name, &binds, loaded, notes, out)?;
        notes.text = true;
    }
    if let Some(manifest) = &loaded.manifest {
        // The header of `trace` counts the same losses.
        notes.losses.lost = notes.losses.lost.max(manifest.lost());
    }
    Ok(())
}

/// Reads all events of a ring buffer whose pages have `size` bytes.
pub fn for_each_record(
    trace: &Trace,
    pages: Pages<impl Read>,
    size: u64,
    binds: &Binds,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    let mut records = Records::new(pages);
    let mut decoder = Decoder::new(trace, binds, &loaded.symbols);
    let mut progress = Progress::bytes("reading events", Some(size));
    let mut counting = |event: &Event, sides: Sides<'_>| {
        let sides = loaded.shown.of(sides);
        count(notes, loaded, sides);
        out(event, sides)
    };
    let mut nr_records = 0u64;
    while let Some((cpu, time, data)) = records.next_record()? {
        decoder.record(cpu, time, data, &mut counting)?;
        nr_records += 1;
        if nr_records.is_multiple_of(STEP) {
            progress.set(records.offset());
        }
    }
    decoder.finish(&mut counting)?;
    notes.losses = Losses {
        lost: records.lost.saturating_add(decoder.damaged),
        orphans: decoder.orphans(),
    };
    Ok(())
}

/// Counts in `notes` an event with these stacks.
fn count(notes: &mut Notes, loaded: &Loaded, sides: Sides<'_>) {
    match sides.kernel {
        StackRef::Id(id) if loaded.stack(id).is_none() => notes.missing(loaded.missing(id)),
        StackRef::Id(_) => {}
        StackRef::Whole(_) => notes.whole += 1,
        StackRef::None if sides.user == UserRef::None => notes.without += 1,
        StackRef::None => {}
    }
    match sides.user {
        UserRef::Id(id) if loaded.user_stack(id).is_none() => notes.missing(loaded.missing_user()),
        UserRef::Id(_) => notes.user.bound += 1,
        UserRef::NotKept => notes.user.not_kept += 1,
        UserRef::Pending => notes.user.pending += 1,
        UserRef::Lost => notes.user.lost += 1,
        UserRef::None => notes.user.none += 1,
    }
}

/// Reads which user stack each entry into the kernel had from a text that is called `name`.
fn binds_in(input: impl Read, name: &str) -> Result<Binds> {
    let mut lines = Lines::new(BufReader::with_capacity(256 << 10, input));
    let mut binds = Binds::default();
    // What both lines have that are looked for, and most others have not.
    let user = memmem::Finder::new("<user");
    // Whether records before the next line are lost.
    let mut is_lost = false;
    loop {
        let offset = lines.offset();
        let chunk = match lines.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => return Err(Error::reading(name, offset, error)),
        };
        is_lost |= chunk.whole && is_gap(chunk.text());
        if !chunk.whole || (!is_lost && user.find(chunk.text()).is_none()) {
            continue;
        }
        let Some(line) = Line::parse(chunk.text()) else {
            continue;
        };
        let time = line.time.value();
        if std::mem::take(&mut is_lost) {
            binds.lost(time);
        }
        match line.body {
            Body::UserStackId { id, cookie } => binds.bind(time, cookie, id),
            Body::StackId(_, UserSide::Cookie(cookie)) => binds.event(line.pid, time, cookie),
            _ => {}
        }
    }
    binds.finish();
    Ok(binds)
}

/// Whether a line says that records of a CPU are lost.
fn is_gap(line: &[u8]) -> bool {
    // "CPU:1 [LOST 4198 EVENTS]", "##### CPU 1 buffer started ####"
    let has = |begin: &[u8], text| line.starts_with(begin) && memmem::find(line, text).is_some();
    has(b"CPU:", b" [LOST ") || has(b"##### CPU ", b" buffer started ")
}

/// Reads all events of a text that is called `name` and has `size` bytes.
pub fn for_each_in(
    input: impl Read,
    size: Option<u64>,
    name: &str,
    binds: &Binds,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    let mut lines = Lines::new(BufReader::with_capacity(256 << 10, input));
    let mut joiner = Joiner::new(binds);
    let mut progress = Progress::bytes("reading events", size);
    let mut counting = |event: &Event, sides: Sides<'_>| {
        let sides = loaded.shown.of(sides);
        count(notes, loaded, sides);
        out(event, sides)
    };
    let mut nr_lines = 0u64;
    loop {
        let offset = lines.offset();
        let chunk = match lines.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => return Err(Error::reading(name, offset, error)),
        };
        if chunk.whole {
            joiner.line(chunk.text(), &mut counting)?;
        }
        nr_lines += 1;
        if nr_lines.is_multiple_of(STEP) {
            progress.set(lines.offset());
        }
    }
    joiner.finish(&mut counting)?;
    notes.losses = joiner.losses();
    Ok(())
}
