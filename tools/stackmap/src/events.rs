// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the events of a source with their stacks.

use crate::{
    capture::Manifest,
    error::{Error, Result},
    filter::Selection,
    notes::Notes,
    output::Progress,
    ring::{
        decode::{Decoder, Trace},
        format::Special,
        stream::{Pages, Records},
    },
    source::{Loaded, Shown, Source},
    tally::{By, Tally},
    trace::{
        Binds, Body, Event, Joiner, Late, LateRef, Line, Lines, Losses, Sides, StackRef, UserRef,
        UserSide, Users,
    },
};
use memchr::memmem;
use std::io::{BufReader, Read};

/// How many lines or records are read between two reports of progress.
const STEP: u64 = 4096;
/// More of a tally waits for user stacks only if it is lost which they are.
const MAX_WAITING: usize = 1 << 18;

/// Reads all events of `source`, counting in `notes` what is missing. `loaded` is what was read
/// from the same source.
pub fn for_each(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    of_each(source, loaded, notes, &mut |source, notes| {
        for_each_of_one(source, loaded, notes, out)
    })
}

/// Reads all events of this one of its recordings, which `recording` describes.
pub fn for_each_of(
    (number, recording): (u32, &Manifest),
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    source.select(number)?;
    for_each_of_one(source, loaded, notes, out)?;
    notes.losses.lost = notes.losses.lost.max(recording.lost());
    Ok(())
}

/// Reads all recordings of `source`, one by one.
fn of_each(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    read: &mut dyn FnMut(&mut Source, &mut Notes) -> Result,
) -> Result {
    for number in 0..source.nr_recordings() {
        source.select(number)?;
        let mut found = Notes::default();
        read(source, &mut found)?;
        notes.add(found);
    }
    if let Some(manifest) = &loaded.manifest {
        // The header of `trace` counts the same losses.
        notes.losses.lost = notes.losses.lost.max(manifest.lost());
    }
    Ok(())
}

/// Reads all events of one recording.
fn for_each_of_one(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    let user = wants_user(loaded);
    if source.has_ring() {
        let binds = match user {
            true => {
                let (trace, pages, _) = source.ring()?;
                trace.binds(pages)?
            }
            false => Binds::default(),
        };
        let (trace, pages, size) = source.ring()?;
        return for_each_record(&trace, pages, size, &binds, loaded, notes, out);
    }
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
    Ok(())
}

/// Whether it is of interest which user stacks events have. They may be bound to none, or to some that were
/// forgotten: so not only if there are any.
fn wants_user(loaded: &Loaded) -> bool {
    loaded.shown != Shown::Kernel
}

/// Counts all events of `source`, and in `notes` what is missing. `loaded` is what was read from the
/// same source.
pub fn tally(source: &mut Source, loaded: &Loaded, notes: &mut Notes, by: By) -> Result<Tally> {
    // Whether a stack is wanted that is known later is known only then.
    if wants_user(loaded) && source.has_ring() && !loaded.filter.has_stacks() {
        let mut found = Notes::default();
        if let Some(tally) = tally_all_once(source, loaded, &mut found, by)? {
            *notes = found;
            return Ok(tally);
        }
    }
    let mut tally = Tally::new(&loaded.weight);
    for_each(source, loaded, notes, &mut |event, sides| {
        tally.add(by, event, sides);
        Ok(())
    })?;
    Ok(tally)
}

/// The same in one pass, which a trace may be too odd for.
fn tally_all_once(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    by: By,
) -> Result<Option<Tally>> {
    let mut tally = Tally::new(&loaded.weight);
    let mut all = true;
    of_each(source, loaded, notes, &mut |source, notes| {
        let (trace, pages, size) = source.ring()?;
        // Without user stacks two passes are no more than one.
        all = all
            && trace.about.formats.have(Special::UserStackId)
            && tally_once(&trace, pages, size, loaded, notes, (by, &mut tally))?;
        Ok(())
    })?;
    Ok(all.then_some(tally))
}

/// Counts the events of one recording in one pass; says whether that was possible.
fn tally_once(
    trace: &Trace,
    pages: Pages<impl Read>,
    size: u64,
    loaded: &Loaded,
    notes: &mut Notes,
    (by, tally): (By, &mut Tally),
) -> Result<bool> {
    let mut reader = Reader::new(trace, pages, size, Late::default(), loaded);
    let mut selection = Selection::new(loaded);
    loop {
        let mut counting = |event: &Event, sides: Sides<'_, LateRef>| {
            if !selection.keeps_any_stack(event) || !notes.unweighed.count(&loaded.weight, event) {
                return Ok(());
            }
            let sides = loaded.shown.of(sides);
            count_kernel(
                notes,
                loaded,
                sides.kernel,
                sides.user == LateRef::default(),
            );
            if let LateRef::Known(user) = sides.user {
                count_user(notes, loaded, user, 1);
            }
            tally.add_late(by, event, sides);
            Ok(())
        };
        let more = reader.next(&mut counting)?;
        let late = &mut reader.decoder.users;
        if let Some((number, user)) = late.take_bound() {
            let nr_events = tally.bind(number, user);
            count_user(notes, loaded, user, nr_events);
        }
        if late.is_unsure() || tally.nr_waiting() > MAX_WAITING {
            return Ok(false);
        }
        if !more {
            break;
        }
    }
    notes.losses = reader.losses();
    notes.filtered = selection.finish();
    let lost_until = reader.records.lost_until;
    let Some(unbound) = reader.decoder.users.finish(lost_until) else {
        return Ok(false);
    };
    for (number, user) in unbound {
        let nr_events = tally.bind(number, user);
        count_user(notes, loaded, user, nr_events);
    }
    Ok(true)
}

/// Reads the events of a ring buffer.
struct Reader<'a, R, U> {
    records: Records<R>,
    decoder: Decoder<'a, U>,
    progress: Progress,
    nr_records: u64,
}

impl<'a, R: Read, U: Users> Reader<'a, R, U> {
    /// `pages` have `size` bytes.
    fn new(trace: &'a Trace, pages: Pages<R>, size: u64, users: U, loaded: &'a Loaded) -> Self {
        Self {
            records: Records::new(pages),
            decoder: Decoder::new(trace, users, &loaded.symbols),
            progress: Progress::bytes("reading events", Some(size)),
            nr_records: 0,
        }
    }

    /// Reads a record, and says whether there was one. `out` gets the events that are complete by it.
    fn next(&mut self, out: &mut impl FnMut(&Event, Sides<'_, U::User>) -> Result) -> Result<bool> {
        let Some((cpu, time, data)) = self.records.next_record()? else {
            self.decoder.finish(out)?;
            return Ok(false);
        };
        self.decoder.record(cpu, time, data, out)?;
        self.nr_records += 1;
        if self.nr_records.is_multiple_of(STEP) {
            self.progress.set(self.records.offset());
        }
        Ok(true)
    }

    /// What was missing in what was read.
    fn losses(&self) -> Losses {
        Losses {
            lost: self.records.lost.saturating_add(self.decoder.damaged),
            orphans: self.decoder.orphans(),
        }
    }
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
    let mut reader = Reader::new(trace, pages, size, binds, loaded);
    let mut selection = Selection::new(loaded);
    let mut counting =
        |event: &Event, sides: Sides<'_>| give(&mut selection, loaded, notes, event, sides, out);
    while reader.next(&mut counting)? {}
    notes.losses = reader.losses();
    notes.filtered = selection.finish();
    Ok(())
}

/// The same of a capture, with the frames of a full stack, innermost first.
pub fn for_each_with_frames(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>, &[u64]) -> Result,
) -> Result {
    of_each(source, loaded, notes, &mut |source, notes| {
        for_each_of_one_with_frames(source, loaded, notes, out)
    })
}

fn for_each_of_one_with_frames(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>, &[u64]) -> Result,
) -> Result {
    let binds = match wants_user(loaded) {
        true => {
            let (trace, pages, _) = source.ring()?;
            trace.binds(pages)?
        }
        false => Binds::default(),
    };
    let (trace, pages, size) = source.ring()?;
    let mut reader = Reader::new(&trace, pages, size, &binds, loaded);
    let mut selection = Selection::new(loaded);
    let formats = &trace.about.formats;
    let mut ips = Vec::new();
    while let Some((cpu, time, data)) = reader.records.next_record()? {
        let format = formats.head(data).and_then(|head| formats.get(head.id));
        ips.clear();
        if let Some(format) = format.filter(|format| format.special == Special::KernelStack) {
            formats.frames(format, data, &mut ips);
        }
        let mut with_frames = |event: &Event, sides: Sides<'_>| out(event, sides, &ips);
        let mut counting = |event: &Event, sides: Sides<'_>| {
            give(
                &mut selection,
                loaded,
                notes,
                event,
                sides,
                &mut with_frames,
            )
        };
        reader.decoder.record(cpu, time, data, &mut counting)?;
        reader.nr_records += 1;
        if reader.nr_records.is_multiple_of(STEP) {
            reader.progress.set(reader.records.offset());
        }
    }
    let mut without = |event: &Event, sides: Sides<'_>| out(event, sides, &[]);
    reader
        .decoder
        .finish(&mut |event: &Event, sides: Sides<'_>| {
            give(&mut selection, loaded, notes, event, sides, &mut without)
        })?;
    notes.losses = reader.losses();
    notes.filtered = selection.finish();
    Ok(())
}

/// Gives `out` an event with its stacks and counts it, if it is wanted.
fn give(
    selection: &mut Selection<'_>,
    loaded: &Loaded,
    notes: &mut Notes,
    event: &Event,
    sides: Sides<'_>,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    let sides = loaded.shown.of(sides);
    if !selection.keeps(event, sides) || !notes.unweighed.count(&loaded.weight, event) {
        return Ok(());
    }
    count(notes, loaded, sides);
    out(event, sides)
}

/// Counts in `notes` an event with these stacks.
fn count(notes: &mut Notes, loaded: &Loaded, sides: Sides<'_>) {
    count_kernel(notes, loaded, sides.kernel, sides.user == UserRef::None);
    count_user(notes, loaded, sides.user, 1);
}

/// Counts in `notes` an event with this stack of the kernel. `alone`: it has no user stack.
fn count_kernel(notes: &mut Notes, loaded: &Loaded, stack: StackRef<'_>, alone: bool) {
    match stack {
        StackRef::Id(id) if loaded.stack(id).is_none() => notes.missing(loaded.missing(id), 1),
        StackRef::Id(_) => {}
        StackRef::Whole(_) => notes.whole += 1,
        StackRef::None if alone => notes.without += 1,
        StackRef::None => {}
    }
}

/// Counts in `notes` events with this user stack.
fn count_user(notes: &mut Notes, loaded: &Loaded, user: UserRef, nr_events: u64) {
    let count = match user {
        UserRef::Id(id) if !loaded.has_user_stack(id) => {
            return notes.user.missing(loaded.missing_user(id), nr_events);
        }
        UserRef::Id(_) => &mut notes.user.bound,
        UserRef::NotKept => &mut notes.user.not_kept,
        UserRef::Pending => &mut notes.user.pending,
        UserRef::Lost => &mut notes.user.lost,
        UserRef::None => &mut notes.user.none,
    };
    *count += nr_events;
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
    let mut selection = Selection::new(loaded);
    let mut counting =
        |event: &Event, sides: Sides<'_>| give(&mut selection, loaded, notes, event, sides, out);
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
    notes.filtered = selection.finish();
    if let Some(filtered) = &mut notes.filtered {
        let filter = &loaded.filter;
        filtered.without_systems = filter.has_systems() && filter.systems.is_none();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
