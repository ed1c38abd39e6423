// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures of buffers that nobody records into by `record`: what recorders that were killed have left, and what others
//! have recorded.

use super::{
    clocks, comms,
    instance::{self, Instance},
    recording::{is_newer, Recording},
    save::{self, cpu_stats, cpus, Ending},
    spool::{Directory, Spool, OF_EVENTS},
    tasks,
    wait::Signals,
};
use crate::{
    capture::Writer,
    error::{Error, Result},
    notes::count_of,
    output::{say, warn, Out},
    tracefs::Tracefs,
};
use indexmap::IndexSet;
use std::{io::Write, path::Path, thread::sleep, time::Duration};

/// What a recorder has left, or a recorder that runs.
struct Leftover {
    name: String,
    /// What is known of it; [`None`]: nothing, as with a recorder in another container.
    recording: Option<Recording>,
    top: Tracefs,
    /// The instance; [`None`]: it is gone.
    instance: Option<Instance>,
}

impl Leftover {
    /// Looks for what the recorder of this name has left; [`None`]: it still runs.
    fn find(top: &Tracefs, name: &str) -> Result<Option<Self>> {
        // No instance of others, and nothing elsewhere in tracefs.
        if !names(top)?.iter().any(|known| known == name) {
            return Err(Error::Refused(format!(
                "there is no recording {name}\n  hint: \"stackmap recover --list\" lists them"
            )));
        }
        let instance = match top.instance_path(name).exists() {
            false => None,
            true => match Instance::adopt(top, name)? {
                Some(instance) => Some(instance),
                None => return Ok(None),
            },
        };
        Ok(Some(Self {
            name: name.to_owned(),
            recording: Recording::load(name)?,
            top: top.clone(),
            instance,
        }))
    }

    /// Looks for all of them, and for recorders that run. A leftover that cannot be read is a warning.
    fn all(top: &Tracefs) -> Result<Vec<(String, Option<Self>)>> {
        let mut all = Vec::new();
        for name in names(top)? {
            match Self::find(top, &name) {
                Ok(found) => all.push((name, found)),
                // It has ended meanwhile.
                Err(_) if !names(top)?.contains(&name) => {}
                Err(error) => warn_of(&name, &error),
            }
        }
        Ok(all)
    }

    /// Returns whether nothing is worth to be kept.
    fn is_empty(&self) -> bool {
        let instance = self.instance.as_ref();
        let empty = instance.is_none_or(|instance| instance.is_empty().unwrap_or(false));
        empty && self.streamed() == 0
    }

    /// Returns where it was to be saved, if that is known.
    fn output(&self) -> Option<&Path> {
        self.recording.as_ref()?.output.as_deref()
    }

    /// Says how much there is, and for which file.
    fn describe(&self) -> Result<String> {
        let instance = self.instance.as_ref();
        let stats = instance.map(|instance| cpu_stats(instance.tracefs()));
        let stats = stats.transpose()?.unwrap_or_default();
        let bytes: u64 = stats.iter().map(|cpu| cpu.bytes).sum();
        let output = self.output().map(|output| output.display().to_string());
        Ok(format!(
            "{} KiB in the buffer, {} KiB streamed, for {}",
            bytes.div_ceil(1024),
            self.streamed().div_ceil(1024),
            output.unwrap_or_else(|| "an unknown file".to_owned())
        ))
    }

    /// Returns how many bytes were streamed: at least one if the directory is there, but cannot be read.
    fn streamed(&self) -> u64 {
        let spool = self.recording.as_ref().map(|recording| &recording.spool);
        match spool.filter(|spool| spool.symlink_metadata().is_ok()) {
            Some(spool) => Directory::open(spool).map_or(1, |dir| dir.len()),
            None => 0,
        }
    }

    /// Removes all of it.
    fn remove(self) -> Result {
        if let Some(recording) = &self.recording {
            recording.remove_files();
        }
        match (self.instance, comms::find(&self.top, &self.name)) {
            (Some(instance), _) => instance.remove(),
            (None, Some(comms)) => instance::unmake(&comms),
            (None, None) => Ok(()),
        }
    }

    /// Switches tracing off.
    fn stop(&self) -> Result {
        self.instance.as_ref().map_or(Ok(()), Instance::stop)
    }

    /// Makes a capture of it, and removes it.
    fn save(self, output: Option<&Path>) -> Result {
        let known = self.output();
        let refused = |why: &str| Error::Refused(format!("{}: {why}\n  hint: -o FILE", self.name));
        let output = match (output, known) {
            (Some(output), _) => output,
            (None, Some(known)) if is_newer(known, &self.name) => {
                let known = known.display();
                return Err(refused(&format!("{known} was written after it had begun")));
            }
            (None, Some(known)) => known,
            (None, None) => return Err(refused("its output is not a file, or is not known")),
        };
        self.stop()?;
        let tracefs = match &self.instance {
            Some(instance) => instance.tracefs(),
            None => &self.top,
        };
        let recording = match &self.recording {
            Some(recording) => recording.clone(),
            None => Recording::of_instance(&self.name, output)?,
        };
        let dir = match recording.spool.exists() {
            true => Directory::open(&recording.spool),
            false => Directory::create(&recording.spool),
        }?;
        let spool = dir.spool(&cpus(tracefs)?, OF_EVENTS)?;
        // Nothing is left out of what --last has kept: nobody knows when the recorder ended.
        let ending = Ending {
            clock: clocks::read(tracefs),
            gone: self.instance.is_none(),
            running: tasks::running(),
            comms: comms::read(&self.top, comms::find(&self.top, &self.name).as_ref(), &dir),
            ..Ending::default()
        };
        make(&recording, output, ending, tracefs, spool)?;
        recording.remove_files();
        self.remove()
    }
}

/// Warns of what one recorder has left, which concerns no other recording.
fn warn_of(name: &str, error: &Error) {
    warn(format_args!("{name} was left: {error}"));
}

/// The time between two attempts to lock the instance of a process that is being killed.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes the capture, at `output`.
fn make(
    recording: &Recording,
    output: &Path,
    ending: Ending,
    tracefs: &Tracefs,
    spool: Spool,
) -> Result {
    let signals = Signals::catch()?;
    let writer = Writer::create(output)?;
    save::save(recording, ending, tracefs, spool, writer, &signals)
}

/// Finishes a recording whose process has died.
pub(super) fn for_the_dead(top: &Tracefs, name: &str) -> Result {
    // The process may not have closed its files yet, one of which is the lock.
    let left = loop {
        match Leftover::find(top, name) {
            Ok(Some(left)) => break left,
            Ok(None) => sleep(PAUSE),
            // All was done already, or somebody else does it.
            Err(Error::Refused(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    };
    if left.is_empty() {
        return left.remove();
    }
    let hint = format!("\"stackmap recover {name} -o FILE\" saves its recording");
    if left.output().is_none() {
        say(format_args!("stackmap: the recording process died: {hint}"));
        return left.stop();
    }
    left.save(None)
        .map_err(|error| Error::Refused(format!("{error}\n  hint: {hint}")))?;
    say("stackmap: the recording process died: its recording is saved");
    Ok(())
}

/// The names of all recordings, left or running.
fn names(top: &Tracefs) -> Result<Vec<String>> {
    let mut names = Recording::names()?;
    names.extend(instance::names(top));
    names.sort();
    names.dedup();
    Ok(names)
}

/// Removes leftovers of killed recorders that recorded nothing, and prints a note for each other one. A failure is a
/// warning, since it concerns no other recording.
pub(super) fn look(top: &Tracefs) {
    let all = Leftover::all(top).unwrap_or_else(|error| {
        warn(format_args!(
            "recordings that were left cannot be read: {error}"
        ));
        Vec::new()
    });
    for (name, found) in all {
        match found {
            Some(left) if left.is_empty() => {
                left.remove().unwrap_or_else(|error| warn_of(&name, &error));
            }
            Some(left) => {
                left.stop().unwrap_or_else(|error| warn_of(&name, &error));
                say(format_args!(
                    "note: a recorder was killed and has left a recording: \"stackmap recover {name}\" saves it, \
                     \"stackmap recover --remove {name}\" removes it"
                ));
            }
            None => {}
        }
    }
}

/// Saves what a recorder has left: that of this name, or the only one. `output`: where, if not where it was to be.
pub fn recover(tracefs: Option<&Path>, name: Option<&str>, output: Option<&Path>) -> Result {
    let top = Tracefs::find(tracefs)?.into_top()?;
    top.require_stackmap()?;
    let left = match name {
        Some(name) => match Leftover::find(&top, name)? {
            Some(left) => left,
            None => return Err(runs(name)),
        },
        None => the_only_one(&top)?,
    };
    left.save(output)
}

fn runs(name: &str) -> Error {
    Error::Refused(format!(
        "{name} is being recorded, or saved by another process"
    ))
}

fn the_only_one(top: &Tracefs) -> Result<Leftover> {
    let all = Leftover::all(top)?.into_iter();
    let mut found: Vec<_> = all.filter_map(|(_, found)| found).collect();
    match (found.pop(), found.len()) {
        (Some(left), 0) => Ok(left),
        (None, _) => Err(Error::Refused(
            "no recorder has left anything that can be saved".to_owned(),
        )),
        (Some(_), others) => Err(Error::Refused(format!(
            "{} were left\n  hint: \"stackmap recover --list\" lists them; recover takes a name",
            count_of(others as u64 + 1, "recording")
        ))),
    }
}

/// Removes what the recorder of this name has left.
pub fn remove(tracefs: Option<&Path>, name: &str) -> Result {
    match Leftover::find(&Tracefs::find(tracefs)?.into_top()?, name)? {
        Some(left) => left.remove(),
        None => Err(runs(name)),
    }
}

/// Lists what recorders have left, and recorders that run.
pub fn list(tracefs: Option<&Path>) -> Result {
    let top = Tracefs::find(tracefs)?.into_top()?;
    let mut out = Out::stdout();
    for (name, found) in Leftover::all(&top)? {
        let line = match found {
            None => Ok("is being recorded, or saved".to_owned()),
            Some(left) => left.describe(),
        };
        match line {
            Ok(line) => writeln!(out, "{name}: {line}")?,
            Err(error) => warn_of(&name, &error),
        }
    }
    out.finish()
}

/// Saves the buffer of the top level, or of an instance. Reading empties it.
pub fn save_buffer(tracefs: Option<&Path>, instance: Option<&str>, output: &Path) -> Result {
    let found = Tracefs::find(tracefs)?;
    found.require_stackmap()?;
    let tracefs = match instance {
        Some(name) => found.clone().into_top()?.instance(name)?,
        None => found,
    };
    let top = Tracefs::find(Some(tracefs.top()))?;
    let recordings = names(&top)?;
    if let Some(name) = tracefs
        .instance_name()
        .filter(|name| recordings.contains(name))
    {
        return match Leftover::find(&top, &name)? {
            Some(left) => left.save(Some(output)),
            None => Err(runs(&name)),
        };
    }
    let mut recording = Recording::of_buffer(output);
    recording.recorded.instance = tracefs.instance_name();
    recording.recorded.events = enabled(&tracefs)?.into_iter().collect();
    let ending = Ending {
        clock: clocks::read(&tracefs),
        running: tasks::running(),
        ..Ending::default()
    };
    let dir = Directory::create(&recording.spool)?;
    let spool = dir.spool(&cpus(&tracefs)?, OF_EVENTS)?;
    let made = make(&recording, output, ending, &tracefs, spool);
    dir.remove();
    made?;
    say("note: the buffer is empty now: what it had is in the capture");
    Ok(())
}

/// Returns the enabled events; `SYSTEM:*` where all of a system are.
fn enabled(tracefs: &Tracefs) -> Result<IndexSet<String>> {
    let name = |event: &str| {
        let system = event.split(':').next().unwrap_or_default();
        let are_all = tracefs.read(&format!("events/{system}/enable"));
        match are_all.is_ok_and(|text| text.starts_with('1')) {
            true => format!("{system}:*"),
            false => event.to_owned(),
        }
    };
    Ok(tracefs.read("set_event")?.lines().map(name).collect())
}
