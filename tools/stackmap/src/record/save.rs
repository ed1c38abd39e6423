// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes what was recorded into a capture.

use super::{
    buffer::Buffer,
    wait::{Signals, INTERRUPTED},
    Options,
};
use crate::{
    capture::{member, CpuStat, Manifest, Writer},
    error::{Error, Result},
    kernel,
    notes::count_of,
    output::{say, warn},
    ring::Order,
    source::differ,
    stack_map_bin::{self, LoadId},
    stat::Stat,
    tracefs::Tracefs,
};
use std::{
    fs,
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
    pub(super) load_id_before: Option<LoadId>,
}

/// A recording, with everything that is written of it. The kernel's buffer is empty by then, so
/// this is kept until it is written.
struct Collected {
    buffer: Buffer,
    members: [(&'static str, Vec<u8>); 5],
    manifest: Manifest,
    loaded_anew: bool,
    nr_stacks: usize,
}

impl Saved<'_> {
    /// Writes it all. A second signal ends this.
    pub(super) fn write(&self, tracefs: &Tracefs, signals: &Signals, to: Writer) -> Result {
        let collected = self.collect(tracefs, signals)?;
        collected.write(signals, to)?;
        if collected.loaded_anew {
            warn(format_args!(
                "the module was loaded anew during the recording: the stacks behind its ids are gone"
            ));
        }
        self.summary(&collected.manifest, collected.nr_stacks);
        Ok(())
    }

    fn collect(&self, tracefs: &Tracefs, signals: &Signals) -> Result<Collected> {
        // Reading the buffer changes what is counted of it.
        let cpus = cpu_stats(tracefs)?;
        let numbers: Vec<_> = cpus.iter().map(|cpu| cpu.cpu).collect();
        let stat_text = tracefs.read("stack_map_stat")?;
        let stat = Stat::parse(&stat_text);
        let stacks = tracefs.stacks()?;
        let mut bin = Vec::new();
        stack_map_bin::write(&mut bin, Order::NATIVE, stacks.load_id(), stacks.iter())?;
        let modules = fs::read(kernel::MODULES)
            .map_err(|error| Error::read(Path::new(kernel::MODULES), error))?;
        let kallsyms = kernel::kallsyms()?;
        let clock = clock(&tracefs.read("trace_clock")?);
        let buffer = Buffer::take(tracefs, &numbers, !self.options.no_args, signals)?;

        let names = match self.options.slim {
            true => kallsyms.slim(stacks.frames().chain(buffer.frames.iter().copied())),
            false => kallsyms.text().to_owned(),
        };
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
            load_id: self.load_id_before,
            big_endian: Order::NATIVE == Order::Big,
            no_args: self.options.no_args,
            clock,
            slim: self.options.slim,
            modules_changed: loaded(self.modules_before) != loaded(&modules),
            recorded: self.options.recorded(),
            cpus,
            ..Manifest::default()
        };
        Ok(Collected {
            buffer,
            members: [
                (member::STACK_MAP_BIN, bin),
                (member::STAT, stat_text.into_bytes()),
                (member::STAT_BEFORE, self.stat_before.as_bytes().to_vec()),
                (member::MODULES, modules),
                (member::KALLSYMS, names.into_bytes()),
            ],
            manifest,
            loaded_anew: differ(self.load_id_before, stacks.load_id()),
            nr_stacks: stacks.len(),
        })
    }

    fn summary(&self, manifest: &Manifest, nr_stacks: usize) {
        let entries: u64 = manifest.cpus.iter().map(|cpu| cpu.entries).sum();
        let path = &self.options.output;
        let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
        say(format_args!(
            "{}: {} in the buffer, {} in the map, {} KiB; see it with \"stackmap report {}\"",
            path.display(),
            count_of(entries, "record"),
            count_of(nr_stacks as u64, "stack"),
            size.div_ceil(1024),
            path.display(),
        ));
    }
}

impl Collected {
    fn write(&self, signals: &Signals, mut to: Writer) -> Result {
        // One signal has ended the recording; the next one means this.
        let limit = signals.count().max(1);
        for (name, content) in &self.members {
            let mut content = Interruptible {
                content: &content[..],
                signals,
                limit,
            };
            to.member(name, &mut content).map_err(|error| match error {
                Error::Io { error, .. }
                    if error.kind() == std::io::ErrorKind::ConnectionAborted =>
                {
                    Error::Status(INTERRUPTED)
                }
                error => error,
            })?;
        }
        self.buffer.write(&mut to)?;
        to.finish(&self.manifest)
    }
}

/// Ends when one signal more than `limit` has come.
struct Interruptible<'a> {
    content: &'a [u8],
    signals: &'a Signals,
    limit: usize,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.signals.count() > self.limit {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        self.content.read(buffer)
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
