// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the events of a source with their stacks.

use crate::{
    error::Result,
    filter::Selection,
    notes::Notes,
    output::Progress,
    ring::{
        decode::{Decoder, Trace},
        stream::{Pages, Records},
    },
    source::{Loaded, Shown, Source},
    tally::{By, Tally},
    trace::{Binds, Event, Losses, Sides, StackRef, UserRef},
};
use std::io::Read;

/// How many records are read between two reports of progress.
const STEP: u64 = 4096;

/// Reads all events of `source`, counting in `notes` what is missing. `loaded` is what was read
/// from the same source.
pub fn for_each(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    out: &mut dyn FnMut(&Event, Sides<'_>) -> Result,
) -> Result {
    // Not only if there are user stacks: events may be bound to none, or to some that were forgotten.
    let binds = match loaded.shown {
        Shown::Kernel => Binds::default(),
        _ => {
            let (trace, pages, _) = source.ring()?;
            trace.binds(pages, loaded.manifest.as_ref())?
        }
    };
    let (trace, pages, size) = source.ring()?;
    for_each_record(&trace, pages, size, &binds, loaded, notes, out)?;
    if let Some(manifest) = &loaded.manifest {
        notes.losses.lost = notes.losses.lost.max(manifest.lost());
    }
    Ok(())
}

/// Counts all events of `source`, and in `notes` what is missing. `loaded` is what was read from the
/// same source.
pub fn tally(source: &mut Source, loaded: &Loaded, notes: &mut Notes, by: By) -> Result<Tally> {
    let mut tally = Tally::new(&loaded.weight);
    for_each(source, loaded, notes, &mut |event, sides| {
        tally.add(by, event, sides);
        Ok(())
    })?;
    Ok(tally)
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
    let mut decoder = Decoder::new(trace, binds, loaded);
    let mut progress = Progress::bytes("reading events", Some(size));
    let mut selection = Selection::new(loaded);
    let mut give =
        |event: &Event, sides: Sides<'_>| give(&mut selection, loaded, notes, event, sides, out);
    let mut nr_records = 0u64;
    while let Some((cpu, time, data)) = records.next_record()? {
        decoder.record(cpu, time, data, &mut give)?;
        nr_records += 1;
        if nr_records.is_multiple_of(STEP) {
            progress.set(records.offset());
        }
    }
    decoder.finish(&mut give)?;
    notes.losses = Losses {
        lost: records.lost.saturating_add(decoder.damaged),
        orphans: decoder.orphans(),
    };
    notes.own = selection.own;
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
    match sides.kernel {
        StackRef::Id(id) if loaded.stack_index(id).is_none() => {
            notes.missing.count(loaded.missing(id))
        }
        StackRef::Id(_) => {}
        StackRef::Whole(_) => notes.whole += 1,
        StackRef::None if sides.user == UserRef::None => notes.without += 1,
        StackRef::None => {}
    }
    let count = match sides.user {
        UserRef::Id(id) if !loaded.has_user_stack(id) => {
            return notes.user.missing.count(loaded.missing_user());
        }
        UserRef::Id(_) => &mut notes.user.bound,
        UserRef::NotKept => &mut notes.user.not_kept,
        UserRef::Pending => &mut notes.user.pending,
        UserRef::Lost => &mut notes.user.lost,
        UserRef::None => &mut notes.user.none,
    };
    *count += 1;
}
