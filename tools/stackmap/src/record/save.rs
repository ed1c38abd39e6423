// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes what was recorded into a capture.

use super::{
    loss,
    wait::{Signals, INTERRUPTED},
    Options,
};
use crate::{
    capture::{member, CpuStat, Manifest, Recorded, Writer},
    error::{Error, Result},
    kernel,
    notes::count_of,
    output::{say, warn, Progress},
    source::differ,
    stack_map_bin,
    stacks::Stacks,
    stat::Stat,
    tracefs::{self, MapState, Tracefs},
};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What is known of a recording besides what tracefs has.
pub(super) struct Saved<'a> {
    pub(super) options: &'a Options,
    pub(super) duration: Duration,
    pub(super) modules_before: &'a [u8],
    pub(super) stat_before: &'a str,
    pub(super) map_before: MapState,
    /// The map, open since before the recording: it cannot be read after a reset.
    pub(super) map: &'a File,
    pub(super) switched_off: bool,
    pub(super) put_aside: &'a BTreeMap<String, String>,
    pub(super) instance: Option<String>,
}

impl Saved<'_> {
    /// Writes it all. A second signal ends this. What fails can be tried again with another file:
    /// nothing is taken out of the buffer.
    pub(super) fn write(&self, tracefs: &Tracefs, signals: &Signals, mut to: Writer) -> Result {
        let cpus = cpu_stats(tracefs)?;
        let stat_text = tracefs.read("stack_map_stat")?;
        let stat = Stat::parse(&stat_text);
        let stacks = tracefs.stacks()?;
        let mut bin = Vec::new();
        stack_map_bin::write(&mut bin, NATIVE, stacks.load_id(), stacks.iter())?;
        let modules = kernel::modules_text()?;
        let kallsyms = kernel::kallsyms()?;

        let mut add = |name: &str, content: &mut dyn Read| {
            // One signal has ended the recording; the next one means this.
            let mut content = Interruptible {
                content,
                signals,
                limit: signals.count().max(1),
                progress: Progress::bytes("writing the trace", None),
                done: 0,
            };
            to.member(name, &mut content).map_err(|error| match error {
                Error::Io { error, .. }
                    if error.kind() == std::io::ErrorKind::ConnectionAborted =>
                {
                    Error::Status(INTERRUPTED)
                }
                error => error,
            })
        };
        add(member::STACK_MAP_BIN, &mut &bin[..])?;
        add(member::STAT, &mut stat_text.as_bytes())?;
        add(member::STAT_BEFORE, &mut self.stat_before.as_bytes())?;
        add(member::MODULES, &mut &modules[..])?;
        let names = match self.options.slim {
            true => Cow::Owned(kallsyms.slim(stacks.frames())),
            false => Cow::Borrowed(kallsyms.text()),
        };
        add(member::KALLSYMS, &mut names.as_bytes())?;
        add(member::TRACE, &mut tracefs.open("trace")?)?;

        let slot_bits = stat.slot_bits();
        let manifest = Manifest {
            time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            duration_ns: u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX),
            release: kernel::release(),
            machine: kernel::machine(),
            build_id: kernel::build_id(),
            boot_id: kernel::boot_id(),
            kaslr_base: kallsyms.text_base().map(|base| format!("0x{base:x}")),
            generation: stacks.generation(slot_bits),
            slot_bits,
            load_id: self.map_before.load_id,
            clock: clock(&tracefs.read("trace_clock")?),
            slim: self.options.slim,
            modules_changed: loaded(self.modules_before) != loaded(&modules),
            recorded: Recorded {
                instance: self.instance.clone(),
                ..self.options.recorded()
            },
            reset: self.was_reset(&stacks, slot_bits),
            switched_off: self.switched_off,
            put_aside: self.put_aside.clone(),
            cpus,
            ..Manifest::default()
        };
        let path = to.path().to_owned();
        let size = to.finish(&manifest)?;
        if differ(self.map_before.load_id, stacks.load_id()) {
            warn(format_args!(
                "the module was loaded anew during the recording: the stacks behind its ids are gone"
            ));
        }
        for line in loss::lines(&manifest) {
            warn(line);
        }
        summary(&manifest, stacks.len(), &path, size);
        Ok(())
    }

    /// Whether the map was emptied since the recording began; a reload is something else.
    fn was_reset(&self, stacks: &Stacks, slot_bits: Option<u32>) -> bool {
        if differ(self.map_before.load_id, stacks.load_id()) {
            return false;
        }
        let generation = |id: u32| id.checked_shr(slot_bits?);
        let before = self.map_before.first_id.and_then(generation);
        (before.is_some() && before != stacks.generation(slot_bits)) || is_stale(self.map)
    }
}

fn summary(manifest: &Manifest, nr_stacks: usize, path: &Path, size: u64) {
    let entries: u64 = manifest.cpus.iter().map(|cpu| cpu.entries).sum();
    let size = size.div_ceil(1024);
    let counts = format!(
        "{} in the buffer, {} in the map, {size} KiB",
        count_of(entries, "record"),
        count_of(nr_stacks as u64, "stack")
    );
    let path = path.display();
    match fs::metadata(path.to_string()) {
        Ok(metadata) if metadata.is_file() => say(format_args!(
            "{path}: {counts}; see it with \"stackmap report {path}\""
        )),
        _ => say(format_args!("{path}: {counts}")),
    }
}

/// Whether the kernel refuses to go on with a map that was opened before.
fn is_stale(mut map: &File) -> bool {
    // It says so behind the header.
    let mut buffer = [0; 4096];
    for _ in 0..16 {
        match map.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return tracefs::is_stale(&error),
        }
    }
    false
}

#[cfg(target_endian = "little")]
const NATIVE: stack_map_bin::Order = stack_map_bin::Order::Little;
#[cfg(target_endian = "big")]
const NATIVE: stack_map_bin::Order = stack_map_bin::Order::Big;

/// Ends when one signal more than `limit` has come.
struct Interruptible<'a> {
    content: &'a mut dyn Read,
    signals: &'a Signals,
    limit: usize,
    progress: Progress,
    done: u64,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.signals.count() > self.limit {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        let len = self.content.read(buffer)?;
        self.done += len as u64;
        self.progress.set(self.done);
        Ok(len)
    }
}

/// The clock in brackets of `[local] global counter`.
fn clock(text: &str) -> String {
    let inner = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(text.trim(), |(clock, _)| clock).to_owned()
}

/// The names and places of modules; how often they are used changes all the time.
fn loaded(modules: &[u8]) -> Vec<(String, u64)> {
    let modules = crate::symbols::modules::Modules::parse(&String::from_utf8_lossy(modules));
    let mut loaded: Vec<_> = modules
        .iter()
        .map(|module| (module.name.clone(), module.base))
        .collect();
    loaded.sort();
    loaded
}

/// The CPUs that have a buffer, in their order.
pub(super) fn cpus(tracefs: &Tracefs) -> Result<Vec<u32>> {
    let path = tracefs.path("per_cpu");
    let entries = fs::read_dir(&path).map_err(|error| Error::read(&path, error))?;
    let mut cpus: Vec<u32> = entries
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_prefix("cpu")?
                .parse()
                .ok()
        })
        .collect();
    cpus.sort_unstable();
    Ok(cpus)
}

fn cpu_stats(tracefs: &Tracefs) -> Result<Vec<CpuStat>> {
    let stats = cpus(tracefs)?.into_iter().map(|cpu| {
        let text = Stat::parse(&tracefs.read(&format!("per_cpu/cpu{cpu}/stats"))?);
        let number = |key| text.number(key).unwrap_or(0);
        Ok(CpuStat {
            cpu,
            entries: number("entries"),
            overrun: number("overrun"),
            dropped: number("dropped events").saturating_add(number("commit overrun")),
            bytes: number("bytes"),
        })
    });
    stats.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_clock() {
        assert_eq!(clock("[local] global counter\n"), "local");
        assert_eq!(clock("local [x86-tsc]\n"), "x86-tsc");
        assert_eq!(clock("odd\n"), "odd");
    }

    #[test]
    fn uses_of_a_module_are_no_change() {
        let a = b"9p 86016 1 - Live 0xffffffffc09e0000\n";
        let b = b"9p 86016 7 x, Live 0xffffffffc09e0000\n";
        let c = b"9p 86016 7 x, Live 0xffffffffc09f0000\n";
        assert_eq!(loaded(a), loaded(b));
        assert_ne!(loaded(a), loaded(c));
    }
}
