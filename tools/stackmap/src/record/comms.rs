// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names that tasks have during a recording.
//!
//! A second instance records the events that tell them: of all tasks, on all CPUs, without stacks. So they take no space in the
//! buffer of the recording. They are streamed if that is; if it is not, or no more can be, the kernel overwrites the oldest.

use super::{
    buffer::Header,
    recording::PREFIX,
    save::{cpu_stats, cpus},
    settings,
    spool::{self, Directory, OF_COMMS},
};
use crate::{
    error::Result,
    notes::count_of,
    output::warn,
    ring::{
        comms::{RecordedComms, EVENTS, MODULE},
        format::Formats,
        page::{Cursor, Missed},
    },
    tracefs::Tracefs,
};
use std::path::PathBuf;

/// Returns where the instance is that belongs to that of this name.
pub(super) fn path(top: &Tracefs, name: &str) -> PathBuf {
    let number = name.strip_prefix(PREFIX).unwrap_or(name);
    // Not named like instances of recordings.
    top.instance_path(&format!("stackmap_names-{number}"))
}

/// Returns it, if it is there.
pub(super) fn find(top: &Tracefs, name: &str) -> Option<Tracefs> {
    Tracefs::find(Some(&path(top, name))).ok()
}

/// Sets it up, and switches it on.
pub(super) fn set(tracefs: &Tracefs, clock: &str) -> Result {
    settings::set_buffer(tracefs, clock, false)?;
    settings::set_streamed(tracefs)?;
    for (system, event, _) in EVENTS {
        let set = tracefs.append("set_event", &format!("{system}:{event}\n"));
        set.or_else(|error| if system == MODULE { Ok(()) } else { Err(error) })?;
    }
    tracefs.write("tracing_on", "1")
}

/// Returns what was recorded: by `instance`, and before it was gone, in `dir`. Without it, a recording has the last names.
pub(super) fn read(top: &Tracefs, instance: Option<&Tracefs>, dir: &Directory) -> RecordedComms {
    let mut comms = RecordedComms::default();
    let is_complete = add(top, instance, dir, &mut comms).unwrap_or_else(|error| {
        warn(format_args!(
            "tasks that were renamed or have ended may lack their names: {error}"
        ));
        false
    });
    if !is_complete {
        comms.lost(u64::MAX);
    }
    comms.sort();
    comms
}

/// Returns whether nothing is missing, except before pages that say so.
fn add(
    top: &Tracefs,
    instance: Option<&Tracefs>,
    dir: &Directory,
    comms: &mut RecordedComms,
) -> Result<bool> {
    let tracefs = instance.unwrap_or(top);
    let layout = Header::read(tracefs)?.layout();
    let mut spool = dir.spool(&cpus(tracefs)?, OF_COMMS)?;
    let mut is_complete = instance.is_some();
    if instance.is_some() {
        let stats = cpu_stats(tracefs)?;
        is_complete = stats.iter().all(|cpu| cpu.dropped == 0);
        let lost: u64 = stats.iter().map(|cpu| cpu.overrun + cpu.dropped).sum();
        if lost > 0 {
            let changes = count_of(lost, "change");
            warn(format_args!(
                "{changes} of names of tasks are lost: events before may have later names or none"
            ));
        }
        spool = spool::drain(tracefs, layout, spool)?;
    }
    let mut formats = Formats::default();
    for (system, event, _) in EVENTS {
        match tracefs.read(&format!("events/{system}/{event}/format")) {
            Ok(text) => drop(formats.add(system, &text)),
            Err(error) if system != MODULE => return Err(error),
            Err(_) => {}
        }
    }
    for taken in spool.values() {
        let mut pages = taken.read()?;
        loop {
            let page = spool::next_page(&mut pages)?;
            if page.is_empty() {
                break;
            }
            let Ok(mut cursor) = Cursor::new(layout, page) else {
                is_complete = false;
                continue;
            };
            if cursor.missed != Missed::None {
                comms.lost(cursor.time());
            }
            while let Some(record) = cursor.next_record().unwrap_or_else(|_| {
                is_complete = false;
                None
            }) {
                let data = &cursor.page()[record.data.clone()];
                let Some(head) = formats.head(data) else {
                    continue;
                };
                if let Some(format) = formats.get(head.id) {
                    comms.add(&formats, format, &head, record.time, data);
                }
            }
        }
    }
    Ok(is_complete)
}
