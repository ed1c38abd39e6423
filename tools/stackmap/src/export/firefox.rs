// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles for <https://profiler.firefox.com>: each task a track, each event a sample with its
//! stack and a marker with its fields.
//!
//! Nothing can be written before all events are read, as a profile has tables of columns for each track.

use super::unnamed;
use crate::{
    error::{Error, Result},
    folded::{Kind, Known, Names},
    notes::Note,
    output::{warn, JsonText},
    source::Loaded,
    symbols::{Frame as KernelFrame, Place},
    tally::{Key, Keys},
    trace::{Event, Sides},
};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval,
    StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle,
    Timestamp,
};
use std::{
    collections::HashMap,
    io::{self, Write},
};

/// The most JSON, in bytes: Chromium cannot have a longer text. It is less in unit tests.
const MAX_JSON: usize = if cfg!(test) { 1 << 16 } else { 512 << 20 };
/// What an event takes beside its fields, at least.
const LEAST: usize = 60;

/// The fields of an event.
struct EventMarker {
    name: StringHandle,
    fields: StringHandle,
    cpu: u32,
}

impl StaticSchemaMarker for EventMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "ftrace";
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.fields}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        StaticSchemaMarkerField {
            key: "fields",
            label: "Fields",
            format: MarkerFieldFormat::SanitizedString,
            flags: MarkerFieldFlags::SEARCHABLE,
        },
        StaticSchemaMarkerField {
            key: "cpu",
            label: "CPU",
            format: MarkerFieldFormat::Integer,
            flags: MarkerFieldFlags::empty(),
        },
    ];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.fields
    }

    fn number_field_value(&self, _: u32) -> f64 {
        self.cpu.into()
    }
}

/// Says what a frame of the kernel is called.
type NameOfFrame = Box<dyn Fn(&KernelFrame<'_>) -> String>;

/// A profile that grows event by event.
pub struct Builder<'a> {
    loaded: &'a Loaded,
    addresses: bool,
    profile: Profile,
    process: ProcessHandle,
    /// By the PID and the name of a task.
    threads: HashMap<(u32, String), ThreadHandle>,
    /// Of kernel, modules, frames without a name, and programs.
    categories: [CategoryHandle; 4],
    keys: Keys,
    stacks: HashMap<(ThreadHandle, Key), Option<StackHandle>>,
    names: Names,
    known: Known<NameOfFrame>,
    title: String,
    /// The time of the earliest event, in nanoseconds of the trace. Events are not in the order of time.
    begin: u64,
    /// What the JSON takes at least, in bytes.
    len: usize,
    /// How many events weigh more than a profile can say.
    nr_cut: u64,
}

impl<'a> Builder<'a> {
    /// A profile without events, called `name`. `addresses`: whether it shows kernel addresses.
    pub fn new(loaded: &'a Loaded, name: &str, addresses: bool) -> Self {
        let manifest = loaded.manifest.as_ref();
        let zero = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
        let mut profile = Profile::new(name, zero, SamplingInterval::from_millis(1));
        profile.set_symbolicated(true);
        if let Some(manifest) = manifest {
            profile.set_os_name(&format!("Linux {} {}", manifest.release, manifest.machine));
        }
        let categories = [
            ("Kernel", CategoryColor::Orange),
            ("Module", CategoryColor::Green),
            ("Unknown", CategoryColor::Gray),
            ("User", CategoryColor::Yellow),
        ];
        let categories = categories.map(|(name, color)| profile.add_category(name, color));
        let zero = Timestamp::from_nanos_since_reference(0);
        let process = profile.add_process("Linux", 0, zero);
        Self {
            loaded,
            addresses,
            profile,
            process,
            threads: HashMap::new(),
            categories,
            keys: Keys::default(),
            stacks: HashMap::new(),
            names: Names::default(),
            known: Known::new(name_of_frame(addresses)),
            title: name.to_owned(),
            begin: u64::MAX,
            len: 0,
            nr_cut: 0,
        }
    }

    /// Adds an event, unless it has no weight.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) -> Result {
        let Ok(weight) = self.loaded.weight.of(event) else {
            return Ok(());
        };
        let time = event.time.value();
        self.begin = self.begin.min(time);
        let time = Timestamp::from_nanos_since_reference(time);
        let fields = event.fields.export(&self.loaded.symbols, self.addresses);
        self.len += LEAST + fields.len();
        if self.len > MAX_JSON {
            return Err(too_large());
        }
        let thread = self.thread(event, time);
        let stack = self.stack(thread, sides);
        let weight = i32::try_from(weight).unwrap_or_else(|_| {
            self.nr_cut += 1;
            i32::MAX
        });
        self.profile
            .add_sample(thread, time, stack, CpuDelta::ZERO, weight);
        let marker = EventMarker {
            name: self.profile.intern_string(&event.name),
            fields: self.profile.intern_string(&fields),
            cpu: event.cpu,
        };
        let timing = MarkerTiming::Instant(time);
        let marker = self.profile.add_marker(thread, timing, marker);
        self.profile.set_marker_stack(thread, marker, stack);
        Ok(())
    }

    fn thread(&mut self, event: &Event, time: Timestamp) -> ThreadHandle {
        // The idle tasks of all CPUs have the id 0.
        let name = match event.pid {
            0 => format!("{} on CPU {}", event.comm, event.cpu),
            _ => event.comm.to_string(),
        };
        let Self {
            threads,
            profile,
            process,
            ..
        } = self;
        let thread = threads.entry((event.pid, name));
        let name = thread.key().1.clone();
        *thread.or_insert_with(|| {
            let thread = profile.add_thread(*process, event.pid, time, false);
            profile.set_thread_name(thread, &name);
            thread
        })
    }

    /// The stack of an event; [`None`]: it has none.
    fn stack(&mut self, thread: ThreadHandle, sides: Sides<'_>) -> Option<StackHandle> {
        let key = self.keys.key(sides);
        if let Some(stack) = self.stacks.get(&(thread, key)) {
            return *stack;
        }
        let Self {
            loaded,
            keys,
            names,
            known,
            ..
        } = self;
        let mut frames = Vec::new();
        if key != Key::NONE {
            keys.walk(key, loaded, &mut |step| {
                known.push(&step, loaded, names, &mut frames);
            });
        }
        let infos: Vec<_> = frames
            .into_iter()
            .rev()
            .map(|frame| self.frame(frame))
            .collect();
        let stack = self.profile.intern_stack_frames(thread, infos.into_iter());
        self.stacks.insert((thread, key), stack);
        stack
    }

    /// The frame of a name.
    fn frame(&mut self, name: u32) -> FrameInfo {
        let (name, kind) = self.names.get(name);
        let [kernel, module, unknown, user] = self.categories;
        let category = match kind {
            Kind::Group => CategoryHandle::OTHER,
            Kind::Kernel => kernel,
            Kind::Module => module,
            Kind::Address | Kind::Missing => unknown,
            Kind::User | Kind::UserAddress => user,
        };
        FrameInfo {
            frame: Frame::Label(self.profile.intern_string(name)),
            category_pair: category.into(),
            flags: FrameFlags::empty(),
        }
    }

    /// Writes the profile.
    pub fn write(mut self, notes: &[Note], out: &mut impl Write) -> Result {
        if self.nr_cut > 0 {
            let nr = self.nr_cut;
            warn(format_args!(
                "{nr} events weigh {} in the profile, which is less than they do",
                i32::MAX
            ));
        }
        let notes: Vec<_> = notes.iter().map(|note| &note.text[..]).collect();
        if !notes.is_empty() {
            self.title = format!("stackmap ({})", notes.join("; "));
        }
        self.profile.set_product(&self.title);
        let manifest = self.loaded.manifest.as_ref();
        if let Some(manifest) = manifest.filter(|_| self.begin != u64::MAX) {
            let begin = manifest
                .clocks
                .begin
                .map_or(self.begin, |clock| clock.trace);
            let zero = manifest.began_ns() as f64 - begin as f64;
            let zero = ReferenceTimestamp::from_millis_since_unix_epoch(zero / 1e6);
            self.profile.set_reference_timestamp(zero);
        }
        let mut out = Bounded {
            out,
            left: MAX_JSON,
            is_full: false,
        };
        let written = serde_json::to_writer(JsonText(&mut out), &self.profile);
        match out.is_full {
            true => Err(too_large()),
            false => Ok(written.map_err(io::Error::from)?),
        }
    }
}

fn name_of_frame(addresses: bool) -> NameOfFrame {
    Box::new(move |frame| match (frame.place, frame.source) {
        (Place::Unknown, _) => unnamed(frame.ip, addresses),
        (_, Some(source)) => format!("{} ({source})", frame.plain()),
        (_, None) => frame.plain().to_string(),
    })
}

fn too_large() -> Error {
    Error::Refused(
        "the profile has more than 512 MiB of JSON, which Chromium cannot load\n  hint: choose events: \
         --time, --event, --comm; or --format perfetto"
            .to_owned(),
    )
}

/// A writer with a limit, in bytes.
struct Bounded<W> {
    out: W,
    left: usize,
    is_full: bool,
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len()) {
            Some(left) => self.left = left,
            None => {
                self.is_full = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        self.out.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ring::fields::Fields, trace::StackRef};

    /// Returns the size of a profile with `nr_events` events, whose frames have names of `frame` bytes.
    fn size(nr_events: usize, frame: usize) -> Result<usize> {
        let table = format!(
            "ffffffff81000000 t {}\nffffffff81000100 t end\n",
            "f".repeat(frame)
        );
        let loaded = Loaded::named(&table);
        let mut builder = Builder::new(&loaded, "name", false);
        let event = Event::example("x", Fields::default());
        let sides = Sides {
            kernel: StackRef::Whole(&[0xffff_ffff_8100_0010]),
            ..Sides::NONE
        };
        for _ in 0..nr_events {
            builder.event(&event, sides)?;
        }
        let mut json = Vec::new();
        builder.write(&[], &mut json).map(|()| json.len())
    }

    #[test]
    fn a_profile_that_no_browser_loads_is_refused() {
        let fits = size(100, MAX_JSON / 2).unwrap();
        assert!((MAX_JSON / 2..MAX_JSON).contains(&fits), "{fits}");
        // While events are read, and when it is written.
        for (nr_events, frame) in [(MAX_JSON / LEAST + 1, 1), (100, MAX_JSON - 1)] {
            let error = size(nr_events, frame).unwrap_err().to_string();
            assert!(error.contains("512 MiB of JSON"), "{error}");
        }
        // What events take at least is no more than they take.
        let [one, many] = [1, 100].map(|nr_events| size(nr_events, 1).unwrap());
        assert!(many - one >= 99 * LEAST, "{many} {one}");
    }
}
