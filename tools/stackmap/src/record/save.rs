// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes what was recorded into a capture.

use super::{
    buffer::{Buffer, Header},
    label::Label,
    limits::Limits,
    loss,
    spool::{Spool, Taken},
    user::UserSide,
    wait::{Signals, INTERRUPTED},
    window::Window,
    Options,
};
use crate::{
    capture::{member, Clocks, CpuStat, Manifest, Recorded, Writer},
    error::{Error, Result},
    kernel,
    notes::count_of,
    output::{say, warn},
    ring::Order,
    source::differ,
    stack_map_bin,
    stacks::Stacks,
    stat::Stat,
    symbols::kallsyms::Kallsyms,
    tracefs::{self, MapState, Tracefs},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// More than most descriptions of events have, in bytes; all of them together.
const FORMAT_LEN: u64 = 4096;
/// More than what names the addresses in a buffer takes, for each of its bytes.
const NAMES_LEN: u64 = 32;
/// Room for the other members: names of tasks, headers, the manifest, the zip directory.
const OTHERS_LEN: u64 = 1 << 20;

/// What is known of a recording besides what tracefs has.
pub(super) struct Saved<'a> {
    pub(super) options: &'a Options,
    pub(super) limits: &'a Limits<'a>,
    pub(super) duration: Duration,
    pub(super) clocks: Clocks,
    pub(super) modules_before: &'a [u8],
    pub(super) stat_before: &'a str,
    /// The same of user stacks, if the module has them.
    pub(super) user_stat_before: Option<&'a str>,
    /// When it began, since the system was started.
    pub(super) begun: Duration,
    pub(super) map_before: MapState,
    /// The map, open since before the recording: it cannot be read after a reset.
    pub(super) map: &'a File,
    /// What of it is kept; [`None`]: all.
    pub(super) window: Option<Window>,
    /// The event that ended it.
    pub(super) triggered: Option<&'a str>,
    pub(super) switched_off: bool,
    pub(super) put_aside: &'a BTreeMap<String, String>,
    pub(super) instance: Option<String>,
}

/// What is saved of a recording besides the buffer, which has not been read yet.
pub(super) struct Surroundings<'a> {
    saved: &'a Saved<'a>,
    spool: Spool,
    header: Header,
    cpus: Vec<CpuStat>,
    stat_text: String,
    stacks: Stacks,
    bin: Vec<u8>,
    user: Option<UserSide>,
    modules: Vec<u8>,
    kallsyms: Kallsyms,
    clock: String,
}

/// A recording, with everything that is written of it. The kernel's buffer is empty by then, so
/// this is kept until it is written.
pub(super) struct Collected {
    buffer: Buffer,
    members: Vec<(String, Vec<u8>)>,
    manifest: Manifest,
    loaded_anew: bool,
    nr_stacks: usize,
    nr_user_stacks: usize,
}

impl Saved<'_> {
    /// Reads all but the buffer.
    pub(super) fn surroundings(&self, tracefs: &Tracefs, spool: Spool) -> Result<Surroundings<'_>> {
        // Reading the buffer changes what is counted of it.
        let mut cpus = cpu_stats(tracefs)?;
        for cpu in &mut cpus {
            cpu.bytes += spool.get(&cpu.cpu).map_or(0, Taken::len);
        }
        let stacks = tracefs.stacks()?;
        let mut bin = Vec::new();
        stack_map_bin::write(&mut bin, Order::NATIVE, stacks.load_id(), stacks.iter())?;
        Ok(Surroundings {
            saved: self,
            spool,
            header: Header::read(tracefs)?,
            cpus,
            stat_text: tracefs.read("stack_map_stat")?,
            stacks,
            bin,
            user: match self.user_stat_before {
                Some(before) => UserSide::read(tracefs, before, self.begun)?,
                None => None,
            },
            modules: kernel::modules_text()?,
            kallsyms: kernel::kallsyms()?,
            clock: clock(&tracefs.read("trace_clock")?),
        })
    }

    /// Whether the map was emptied since the recording began; a reload is something else.
    fn was_reset(&self, stacks: &Stacks, slot_bits: Option<u32>) -> bool {
        if differ(self.map_before.load_id, stacks.load_id()) {
            return false;
        }
        let generation = |id: u32| id.checked_shr(slot_bits?);
        let before = self.map_before.first_id.and_then(generation);
        (before.is_some() && before != stacks.generation(slot_bits)) || is_stale(&mut &*self.map)
    }
}

impl Surroundings<'_> {
    /// How many bytes a capture has at most.
    pub(super) fn at_most(&self, tracefs: &Tracefs) -> u64 {
        let len = |text: &str| text.len() as u64;
        let buffered = self.cpus.iter().map(|cpu| cpu.bytes);
        let events = tracefs.read("set_event").unwrap_or_default();
        let events = events.lines().count() as u64;
        let buffered = buffered.fold(0, u64::saturating_add);
        let names = match self.saved.options.all_symbols {
            true => u64::MAX,
            // Of what is in the buffer, nothing is known yet.
            false => len(&self.kallsyms.slim(self.stacks.frames()))
                .saturating_add(buffered.saturating_mul(NAMES_LEN)),
        };
        [
            buffered,
            self.bin.len() as u64,
            self.user.as_ref().map_or(0, UserSide::len),
            self.modules.len() as u64,
            2 * len(&self.stat_text),
            len(self.kallsyms.text()).min(names),
            events * FORMAT_LEN,
            OTHERS_LEN,
        ]
        .into_iter()
        // Heads of pages; and what cannot be packed grows by that.
        .fold(0, |sum, len| {
            u64::saturating_add(sum, len.saturating_add(len / 16))
        })
    }

    /// Takes the buffer, which is empty afterwards, for a capture that `writer` writes.
    pub(super) fn collect(
        self,
        tracefs: &Tracefs,
        signals: &Signals,
        writer: &Writer,
    ) -> Result<Collected> {
        let Self {
            saved,
            spool,
            header,
            mut cpus,
            stat_text,
            stacks,
            bin,
            user,
            modules,
            kallsyms,
            clock,
        } = self;
        let Options {
            all_symbols,
            no_args,
            anonymous,
            ..
        } = *saved.options;
        let numbers: Vec<_> = cpus.iter().map(|cpu| cpu.cpu).collect();
        let bytes = cpus
            .iter()
            .map(|cpu| cpu.bytes)
            .fold(0, u64::saturating_add);
        // Heads of pages; and what cannot be packed grows by that.
        let size = bytes.saturating_add(bytes / 8).saturating_add(OTHERS_LEN);
        let spool = (spool, writer.room()?, size);
        let window = saved.window.as_ref();
        let mut buffer = Buffer::take(tracefs, &numbers, header, spool, window, !no_args, signals)?;
        for cpu in &mut cpus {
            if let (Some(window), Some(left)) = (window, buffer.left_out.get(&cpu.cpu)) {
                leave_out(cpu, window, *left);
            }
            // To the kernel, it was read like by anybody.
            let streamed = buffer.streamed.get(&cpu.cpu).copied().unwrap_or_default();
            cpu.entries += streamed;
            cpu.read = cpu.read.saturating_sub(streamed);
            cpu.streamed = streamed;
        }

        let names = match all_symbols {
            true => kallsyms.text().to_owned(),
            false => kallsyms.slim(stacks.frames().chain(buffer.frames.iter().copied())),
        };
        let slot_bits = Stat::parse(&stat_text).slot_bits();
        let mut manifest = Manifest {
            time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            duration_ns: u64::try_from(saved.duration.as_nanos()).unwrap_or(u64::MAX),
            host: kernel::host(),
            labels: Label::all(&saved.options.labels),
            release: kernel::release(),
            machine: kernel::machine(),
            page_size: u64::try_from(rustix::param::page_size()).ok(),
            build_id: kernel::build_id(),
            boot_id: kernel::boot_id(),
            kaslr_base: kallsyms.text_base().map(|base| format!("0x{base:x}")),
            generation: stacks.generation(slot_bits),
            slot_bits,
            load_id: saved.map_before.load_id,
            big_endian: Order::NATIVE == Order::Big,
            no_args,
            clock,
            clocks: saved.clocks.clone(),
            slim: !all_symbols,
            modules_changed: loaded(saved.modules_before) != loaded(&modules),
            recorded: Recorded {
                instance: saved.instance.clone(),
                ..saved.options.recorded(saved.limits)
            },
            reset: saved.was_reset(&stacks, slot_bits),
            triggered: saved.triggered.map(str::to_owned),
            switched_off: saved.switched_off,
            put_aside: saved.put_aside.clone(),
            cpus,
            ..Manifest::default()
        };
        let mut user = user;
        if anonymous {
            manifest.anonymize();
            buffer.hide_tasks();
            user = user.map(UserSide::without_paths);
        }
        let members = [
            (member::STACK_MAP_BIN, bin),
            (member::STAT, stat_text.into_bytes()),
            (member::STAT_BEFORE, saved.stat_before.as_bytes().to_vec()),
            (member::MODULES, modules),
            (member::KALLSYMS, names.into_bytes()),
        ];
        let members = members.map(|(name, content)| (name.to_owned(), content));
        let nr_user_stacks = user.as_ref().map_or(0, UserSide::nr_stacks);
        let user = user.into_iter().flat_map(UserSide::into_members);
        Ok(Collected {
            buffer,
            members: members.into_iter().chain(user).collect(),
            nr_user_stacks,
            manifest,
            loaded_anew: differ(saved.map_before.load_id, stacks.load_id()),
            nr_stacks: stacks.len(),
        })
    }
}

impl Collected {
    /// Writes the capture. A second signal aborts this. After an error, another file can be tried.
    pub(super) fn write(&self, signals: &Signals, mut to: Writer) -> Result {
        // The first signal may have ended the recording; one more aborts the writing.
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
        let path = to.path().to_owned();
        let size = to.finish(&self.manifest)?;
        if self.loaded_anew {
            warn(format_args!(
                "the module was reloaded during the recording: ids from before have no stacks"
            ));
        }
        for line in loss::lines(&self.manifest) {
            warn(line);
        }
        let nr_stacks = (self.nr_stacks, self.nr_user_stacks);
        summary(&self.manifest, nr_stacks, &path, size);
        Ok(())
    }
}

fn summary(manifest: &Manifest, (nr_stacks, nr_user): (usize, usize), path: &Path, size: u64) {
    let entries: u64 = manifest.cpus.iter().map(|cpu| cpu.entries).sum();
    let size = size.div_ceil(1024);
    let user = match nr_user {
        0 => String::new(),
        nr => format!(", {}", count_of(nr as u64, "user stack")),
    };
    let streamed: u64 = manifest.cpus.iter().map(|cpu| cpu.streamed).sum();
    let place = match streamed {
        0 => " in the buffer".to_owned(),
        streamed => format!(" ({streamed} of them streamed)"),
    };
    let counts = format!(
        "{}{place}, {} in the map{user}, {size} KiB",
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

/// Whether the map was reset since `map` was opened.
fn is_stale(map: &mut dyn Read) -> bool {
    // The kernel reports a stale map only after the header.
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

/// A reader that fails after more than `limit` signals.
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

/// Counts what was `left_out` of a CPU, and what was overwritten before that: neither is missing. If
/// the others begin within `window`, what is missing is a part of it.
fn leave_out(cpu: &mut CpuStat, window: &Window, (older, first): (u64, Option<u64>)) {
    match first {
        Some(first) if older == 0 && cpu.overrun > 0 && first > window.begin(cpu.cpu) => {
            cpu.reach_ns = Some(window.before_end(cpu.cpu, first));
        }
        _ => {
            cpu.entries = cpu.entries.saturating_sub(older);
            cpu.older = older.saturating_add(std::mem::take(&mut cpu.overrun));
        }
    }
}

/// The clock in brackets of `[local] global counter`.
pub(super) fn clock(text: &str) -> String {
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
            read: number("read events"),
            ..CpuStat::default()
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
    fn estale_after_the_header_means_a_stale_map() {
        struct Behind(i32);
        impl Read for Behind {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::from_raw_os_error(self.0))
            }
        }
        let header = &[0_u8; 16][..];
        assert!(is_stale(&mut header.chain(Behind(116))));
        assert!(!is_stale(&mut header.chain(Behind(5))));
        assert!(!is_stale(&mut &header[..]));
    }

    #[test]
    fn use_counts_of_a_module_are_no_change() {
        let a = b"9p 86016 1 - Live 0xffffffffc09e0000\n";
        let b = b"9p 86016 7 x, Live 0xffffffffc09e0000\n";
        let c = b"9p 86016 7 x, Live 0xffffffffc09f0000\n";
        assert_eq!(loaded(a), loaded(b));
        assert_ne!(loaded(a), loaded(c));
    }
}
