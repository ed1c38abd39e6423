// SPDX-License-Identifier: MIT OR Apache-2.0

//! Makes a capture of a buffer: what is in tracefs besides the pages, where it is written, and what was lost.

use super::{
    bpf::{self, BpfWatch},
    buffer::{Buffer, Header, Written},
    loss, modules,
    recording::{Begun, Recording},
    sleepers,
    spool::{self, Spool},
    tasks::Running,
    user::UserSide,
    wait::Signals,
    window::Window,
};
use crate::{
    capture::{member, ClockReading, Clocks, CpuStat, Manifest, Writer},
    error::{Error, Result},
    kernel,
    notes::count_of,
    output::{say, warn},
    ring::{comms::RecordedComms, decode::Trace},
    source::differ,
    stack_map_bin::{self, Order},
    stacks::Stacks,
    stat::Stat,
    symbols::{kallsyms::Kallsyms, modules::Modules},
    tracefs::{self, Tracefs},
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// More than most descriptions of events have, in bytes; all of them together.
const FORMAT_LEN: u64 = 4096;
/// More than what names the addresses in a buffer takes, for each of its bytes.
const NAMES_LEN: u64 = 32;
/// Space for the other members: names of tasks, headers, the manifest, the zip directory.
const OTHERS_LEN: u64 = 1 << 20;

/// How a recording has ended.
#[derive(Default)]
pub(super) struct Ending {
    /// How long it took; [`None`]: the records tell.
    pub(super) duration: Option<Duration>,
    pub(super) clock: Option<ClockReading>,
    /// What of it is kept; [`None`]: all.
    pub(super) window: Option<Window>,
    /// The event that ended it.
    pub(super) triggered: Option<String>,
    pub(super) switched_off: bool,
    /// Files of the instance that another process wrote to.
    pub(super) written: BTreeSet<&'static str>,
    /// The BPF programs that were loaded meanwhile, if they are known.
    pub(super) bpf: Option<BpfWatch>,
    /// Whether the buffer is gone, and only what was taken from it is left.
    pub(super) gone: bool,
    /// The map, open since the beginning: it cannot be read after a reset.
    pub(super) map: Option<File>,
    /// The tasks that ran at the end; read before the events of names end.
    pub(super) running: Running,
    /// The names of tasks, and when they had them.
    pub(super) comms: RecordedComms,
}

/// Makes a capture of the buffer of `tracefs` and of what was taken from it before. If that fails, all of it is still in the
/// buffer, or in the files of `spool`; what could not be written to these either is lost, and the error says so.
pub(super) fn save(
    recording: &Recording,
    mut ending: Ending,
    tracefs: &Tracefs,
    spool: Spool,
    writer: Writer,
    signals: &Signals,
) -> Result {
    let bpf = ending.bpf.take();
    let around = Surroundings::read(recording, &ending, bpf, tracefs, &spool)?;
    writer.reserve(around.at_most())?;
    let spool = match ending.gone {
        true => spool,
        false => spool::drain(tracefs, around.header.layout(), spool)?,
    };
    let in_memory = spool.values().any(spool::Taken::is_in_memory);
    let around = match recording.begun {
        Some(_) => around,
        None => around.with_later_stacks(&spool),
    };
    around
        .write(&spool, writer, signals)
        .map_err(|error| match error {
            Error::Status(_) => error,
            error if in_memory => {
                Error::Refused(format!("{error}\n  what was in the buffer is lost in part"))
            }
            error => error,
        })
}

/// What is saved besides the pages.
struct Surroundings<'a> {
    recording: &'a Recording,
    begun: Begun,
    ending: &'a Ending,
    tracefs: &'a Tracefs,
    header: Header,
    cpus: Vec<CpuStat>,
    stat_text: String,
    stacks: Stacks,
    bin: Vec<u8>,
    user: Option<UserSide>,
    modules: Vec<u8>,
    kallsyms: Kallsyms,
    clock: String,
    nr_events: u64,
}

impl<'a> Surroundings<'a> {
    fn read(
        recording: &'a Recording,
        ending: &'a Ending,
        mut bpf: Option<BpfWatch>,
        tracefs: &'a Tracefs,
        spool: &Spool,
    ) -> Result<Self> {
        // Reading the buffer changes what is counted of it.
        let mut cpus = match ending.gone {
            true => spool
                .keys()
                .map(|cpu| CpuStat {
                    cpu: *cpu,
                    ..CpuStat::default()
                })
                .collect(),
            false => cpu_stats(tracefs)?,
        };
        for cpu in &mut cpus {
            cpu.bytes += spool.get(&cpu.cpu).map_or(0, spool::Taken::len);
        }
        let stacks = tracefs.stacks()?;
        let mut bin = Vec::new();
        stack_map_bin::write(&mut bin, Order::Little, stacks.load_id(), stacks.iter())?;
        let begun = recording.begun.clone().unwrap_or_default();
        let mut user = UserSide::read(tracefs, Duration::from_nanos(begun.since_boot))?;
        if recording.anonymous {
            user = user.map(UserSide::without_paths);
        }
        let events = tracefs.read("set_event").unwrap_or_default();
        Ok(Self {
            recording,
            begun,
            ending,
            tracefs,
            header: Header::read(tracefs)?,
            cpus,
            stat_text: tracefs.read("stack_map_stat")?,
            stacks,
            bin,
            user,
            modules: kernel::modules_text()?,
            kallsyms: match &recording.begun {
                Some(begun) => {
                    let (before, now) = (Modules::parse(&begun.modules), kernel::modules()?);
                    let text = match bpf.as_mut().and_then(BpfWatch::unchanged_kallsyms) {
                        Some(text) => text,
                        None => kernel::kallsyms_text()?,
                    };
                    let text = modules::named(
                        text,
                        (&before, &begun.builds),
                        (&now, &modules::builds(&now)),
                        &ending.comms.freed,
                        &modules::inits(&now),
                    );
                    // After the text is read, so that all of its programs were reported.
                    let symbols = bpf.and_then(|bpf| bpf::reported(bpf.end()));
                    kernel::parse_kallsyms(bpf::named(text, symbols.as_ref()))?
                }
                None => kernel::kallsyms()?,
            },
            clock: match &recording.clock {
                Some(clock) => clock.clone(),
                None => clock(&tracefs.read("trace_clock")?),
            },
            nr_events: events.lines().count() as u64,
        })
    }

    /// Has also the stacks that a buffer of others, which records on, got while it was read.
    fn with_later_stacks(self, spool: &Spool) -> Self {
        match Self::read(self.recording, self.ending, None, self.tracefs, spool) {
            Ok(later) => Self {
                cpus: self.cpus,
                ..later
            },
            Err(_) => self,
        }
    }

    /// How many bytes a capture has at most.
    fn at_most(&self) -> u64 {
        let len = |text: &str| text.len() as u64;
        let buffered = self.cpus.iter().map(|cpu| cpu.bytes);
        let buffered = buffered.fold(0, u64::saturating_add);
        let names = match self.recording.all_symbols {
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
            len(&self.stat_text),
            len(self.kallsyms.text()).min(names),
            self.nr_events * FORMAT_LEN,
            OTHERS_LEN,
        ]
        .into_iter()
        // Heads of pages; and what cannot be packed grows by that.
        .fold(0, |sum, len| {
            u64::saturating_add(sum, len.saturating_add(len / 16))
        })
    }

    /// Writes the capture. A second signal aborts this.
    fn write(&self, spool: &Spool, mut to: Writer, signals: &Signals) -> Result {
        let Self {
            recording, ending, ..
        } = *self;
        let sleepers = self.begun.sleepers.iter().map(|sleeper| sleeper.pid);
        let recorder = recording.recorder.iter().map(|pid| pid.cast_signed());
        let named: Vec<_> = sleepers.chain(recorder).collect();
        let buffer = Buffer {
            tracefs: self.tracefs,
            header: &self.header,
            spool,
            window: ending.window.as_ref(),
            keep_fields: !recording.no_args,
            hide_tasks: recording.anonymous,
            threads: &self.begun.threads,
            named: &named,
            running: &ending.running,
            comms: &ending.comms,
        };
        let written = buffer.write(&mut to, signals)?;
        let sleepers = sleepers::located(&self.begun.sleepers, &self.kallsyms);
        let of_sleepers = || sleepers.iter().flat_map(|sleeper| &sleeper.stack);
        let frames = || {
            let frames = self.stacks.frames().chain(written.frames.iter().copied());
            frames.chain(of_sleepers().map(|ip| (*ip, false)))
        };
        let names = match recording.all_symbols {
            true => self.kallsyms.text(),
            false => &self.kallsyms.slim(frames()),
        };
        for (name, content) in [
            (member::STACK_MAP_BIN, &self.bin[..]),
            (member::STAT, self.stat_text.as_bytes()),
            (member::MODULES, &self.modules),
            (member::KALLSYMS, names.as_bytes()),
        ] {
            to.member(name, &mut &content[..])?;
        }
        if !sleepers.is_empty() {
            let json = serde_json::to_vec(&sleepers).map_err(io::Error::from)?;
            to.member(member::SLEEPERS, &mut &json[..])?;
        }
        for (name, content) in self.user.iter().flat_map(UserSide::members) {
            to.member(name, &mut &content[..])?;
        }
        let manifest = self.manifest(&written);
        let path = to.path().to_owned();
        let size = to.finish(&manifest)?;
        if differ(self.begun.map.load_id, self.stacks.load_id()) {
            warn("the module was reloaded during the recording: ids from before have no stacks");
        }
        let nr_events = written.cpus.values().map(|cpu| cpu.events).sum();
        for line in loss::lines(&manifest, nr_events) {
            warn(line);
        }
        let nr_user_stacks = self.user.as_ref().map_or(0, UserSide::nr_stacks);
        summary(nr_events, (self.stacks.len(), nr_user_stacks), &path, size);
        Ok(())
    }

    fn manifest(&self, written: &Written) -> Manifest {
        let Self {
            recording,
            begun,
            ending,
            stacks,
            ..
        } = self;
        let slot_bits = Stat::parse(&self.stat_text).slot_bits();
        let is_new = recording.begun.is_some();
        let mut manifest = Manifest {
            time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            duration_ns: match ending.duration {
                Some(duration) => u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
                None => self.length(written),
            },
            host: kernel::host(),
            labels: recording.labels.clone(),
            release: kernel::release(),
            machine: kernel::machine(),
            page_size: u64::try_from(rustix::param::page_size()).ok(),
            build_id: kernel::build_id(),
            boot_id: kernel::boot_id(),
            kaslr_base: self.kallsyms.text_base().map(|base| format!("0x{base:x}")),
            generation: stacks.generation(slot_bits),
            slot_bits,
            load_id: match is_new {
                true => begun.map.load_id,
                false => stacks.load_id(),
            },
            no_args: recording.no_args,
            clock: self.clock.clone(),
            clocks: Clocks {
                begin: begun.clock,
                end: ending.clock,
            },
            skipped_pages: written.cpus.values().map(|cpu| cpu.skipped).sum(),
            modules_changed: is_new && loaded(begun.modules.as_bytes()) != loaded(&self.modules),
            recorded: recording.recorded.clone(),
            recorder: recording.recorder.clone(),
            children: ending.comms.children(&recording.recorder),
            reset: is_new && self.was_reset(slot_bits),
            triggered: ending.triggered.clone(),
            switched_off: ending.switched_off,
            settings_changed: self.settings_changed(written),
            cpus: self.cpus.iter().map(|cpu| self.cpu(cpu, written)).collect(),
            ..Manifest::default()
        };
        if recording.anonymous {
            manifest.anonymize();
        }
        manifest
    }

    /// The files of the instance that another process wrote to, as far as that can be seen.
    fn settings_changed(&self, written: &Written) -> Vec<String> {
        let mut changed = Vec::new();
        if self.ending.gone || self.recording.begun.is_none() {
            return changed;
        }
        let before = self.begun.settings.iter();
        let differs = |(file, text): &(&String, &String)| {
            // That of an event whose module was unloaded is gone.
            self.tracefs.has(file) && self.tracefs.read(file).unwrap_or_default() != **text
        };
        changed.extend(before.filter(differs).map(|(file, _)| file.clone()));
        // Then the kernel counts from 0 again.
        let is_cleared = |cpu: &CpuStat| {
            let of = written.cpus.get(&cpu.cpu);
            of.is_some_and(|of| of.streamed > cpu.read)
        };
        let mut written = self.ending.written.clone();
        written.extend(self.cpus.iter().any(is_cleared).then_some("trace"));
        changed.extend(written.into_iter().map(str::to_owned));
        changed
    }

    /// What the ring buffer says of a CPU, and what was written of it.
    fn cpu(&self, stat: &CpuStat, written: &Written) -> CpuStat {
        let of = written.cpus.get(&stat.cpu).copied().unwrap_or_default();
        let mut cpu = stat.clone();
        if self.recording.begun.is_none() {
            // It may still record.
            cpu.entries = of.entries;
            cpu.read = 0;
            return cpu;
        }
        if let Some(window) = &self.ending.window {
            leave_out(&mut cpu, window, (of.older, of.first));
        }
        // To the kernel, it was read like by anybody.
        cpu.entries += of.streamed;
        cpu.read = cpu.read.saturating_sub(of.streamed);
        cpu.streamed = of.streamed;
        cpu
    }

    /// How long it took until the last record, if the clock counts time.
    fn length(&self, written: &Written) -> u64 {
        if !Trace::counts_nanos(&self.clock) {
            return 0;
        }
        let cpus = || written.cpus.values().filter(|cpu| cpu.entries > 0);
        let begun = self.begun.clock.map(|clock| clock.trace);
        let first = begun.or_else(|| cpus().filter_map(|cpu| cpu.first).min());
        let last = cpus().map(|cpu| cpu.last).max();
        first
            .zip(last)
            .map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Whether the map was emptied since the recording began; a reload is something else.
    fn was_reset(&self, slot_bits: Option<u32>) -> bool {
        let before = self.begun.map;
        if differ(before.load_id, self.stacks.load_id()) {
            return false;
        }
        let generation = |id: u32| id.checked_shr(slot_bits?);
        let before = before.first_id.and_then(generation);
        let is_stale = self
            .ending
            .map
            .as_ref()
            .is_some_and(|map| is_stale(&mut &*map));
        (before.is_some() && before != self.stacks.generation(slot_bits)) || is_stale
    }
}

fn summary(nr_events: u64, (nr_stacks, nr_user): (usize, usize), path: &Path, size: u64) {
    let size = size.div_ceil(1024);
    let user = match nr_user {
        0 => String::new(),
        nr => format!(", {}", count_of(nr as u64, "user stack")),
    };
    let counts = format!(
        "{}, {} in the map{user}, {size} KiB",
        count_of(nr_events, "event"),
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
    let modules = Modules::parse(&String::from_utf8_lossy(modules));
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

/// What the ring buffer says of each CPU.
pub(super) fn cpu_stats(tracefs: &Tracefs) -> Result<Vec<CpuStat>> {
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
