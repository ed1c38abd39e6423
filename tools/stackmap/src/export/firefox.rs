// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles for <https://profiler.firefox.com>: each task a track, each event a sample with its
//! stack and a marker with its fields.

use crate::{
    error::Result,
    notes::Note,
    source::Loaded,
    symbols::Place,
    tally::missing_name,
    trace::{Event, StackRef},
};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval,
    StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle,
    Timestamp,
};
use std::{collections::HashMap, io::Write, time::Duration};

/// A profile that grows event by event.
pub struct Builder<'a> {
    loaded: &'a Loaded,
    profile: Profile,
    process: ProcessHandle,
    threads: HashMap<(u32, String), ThreadHandle>,
    /// The stacks that each thread has had, by id.
    stacks: HashMap<(ThreadHandle, u32), Option<StackHandle>>,
    kernel: CategoryHandle,
    module: CategoryHandle,
    unknown: CategoryHandle,
    /// The time of the first event, in nanoseconds.
    begin: Option<u64>,
}

impl<'a> Builder<'a> {
    /// One without events; `name` is what the profile is called.
    pub fn new(loaded: &'a Loaded, name: &str) -> Self {
        let manifest = loaded.manifest.as_ref();
        // Of the end of the recording.
        let time = manifest.map_or(Duration::ZERO, |manifest| {
            Duration::from_secs(manifest.time)
                .saturating_sub(Duration::from_nanos(manifest.duration_ns))
        });
        let reference = ReferenceTimestamp::from_duration_since_unix_epoch(time);
        let mut profile = Profile::new(name, reference, SamplingInterval::from_millis(1));
        if let Some(manifest) = manifest {
            profile.set_os_name(&format!("Linux {} {}", manifest.release, manifest.machine));
        }
        profile.set_symbolicated(true);
        let start = Timestamp::from_nanos_since_reference(0);
        let process = profile.add_process("Linux", 0, start);
        Self {
            loaded,
            process,
            threads: HashMap::new(),
            stacks: HashMap::new(),
            kernel: profile.add_category("Kernel", CategoryColor::Orange),
            module: profile.add_category("Module", CategoryColor::Green),
            unknown: profile.add_category("Unknown", CategoryColor::Gray),
            begin: None,
            profile,
        }
    }

    /// Adds an event.
    pub fn event(&mut self, event: &Event, stack: StackRef<'_>) {
        let begin = *self.begin.get_or_insert(event.time.value());
        let nanos = event.time.value().saturating_sub(begin);
        let time = Timestamp::from_nanos_since_reference(nanos);
        let thread = self.thread(event, time);
        let stack = match stack {
            StackRef::Id(id) => self.stack(thread, id),
            StackRef::Whole(frames) => {
                let mut infos: Vec<_> = frames.iter().map(|frame| self.text(frame)).collect();
                infos.reverse();
                self.profile.intern_stack_frames(thread, infos.into_iter())
            }
            StackRef::None => None,
        };
        self.profile
            .add_sample(thread, time, stack, CpuDelta::ZERO, 1);
        let marker = EventMarker {
            name: self.profile.intern_string(&event.name),
            fields: self
                .profile
                .intern_string(&event.fields.text(&self.loaded.symbols)),
            cpu: event.cpu,
        };
        let timing = MarkerTiming::Instant(time);
        let marker = self.profile.add_marker(thread, timing, marker);
        self.profile.set_marker_stack(thread, marker, stack);
    }

    /// Writes the profile.
    pub fn write(mut self, notes: &[Note], out: &mut impl Write) -> Result {
        let warnings: Vec<_> = notes.iter().map(|note| &note.text[..]).collect();
        if !warnings.is_empty() {
            self.profile
                .set_product(&format!("stackmap ({})", warnings.join("; ")));
        }
        serde_json::to_writer(out, &self.profile).map_err(std::io::Error::from)?;
        Ok(())
    }

    fn thread(&mut self, event: &Event, time: Timestamp) -> ThreadHandle {
        // The idle tasks of all CPUs have the id 0.
        let name = match event.pid {
            0 => format!("{} on CPU {}", event.comm, event.cpu),
            _ => event.comm.clone(),
        };
        let (profile, process) = (&mut self.profile, self.process);
        let thread = self.threads.entry((event.pid, name));
        *thread.or_insert_with_key(|(pid, name)| {
            let handle = profile.add_thread(process, *pid, time, false);
            profile.set_thread_name(handle, name);
            handle
        })
    }

    fn stack(&mut self, thread: ThreadHandle, id: u32) -> Option<StackHandle> {
        if let Some(stack) = self.stacks.get(&(thread, id)) {
            return *stack;
        }
        let loaded = self.loaded;
        let mut infos = Vec::new();
        match loaded.stack(id) {
            Some(stack) => {
                for (depth, ip) in stack.ips.iter().enumerate() {
                    for frame in loaded.symbols.frames(*ip, depth == 0) {
                        infos.push(self.frame(&frame));
                    }
                }
            }
            None => infos.push(self.text(&missing_name(id, loaded.missing(id)))),
        }
        infos.reverse();
        let stack = self.profile.intern_stack_frames(thread, infos.into_iter());
        self.stacks.insert((thread, id), stack);
        stack
    }

    fn frame(&mut self, frame: &crate::symbols::Frame<'_>) -> FrameInfo {
        let category = match frame.place {
            Place::Symbol(symbol) if symbol.module.is_some() => self.module,
            Place::Symbol(_) => self.kernel,
            Place::Trampoline | Place::Unknown => self.unknown,
        };
        let name = match frame.source {
            Some(source) => format!("{} ({source})", frame.plain()),
            None => frame.plain().to_string(),
        };
        FrameInfo {
            frame: Frame::Label(self.profile.intern_string(&name)),
            category_pair: category.into(),
            flags: FrameFlags::empty(),
        }
    }

    fn text(&mut self, name: &str) -> FrameInfo {
        FrameInfo {
            frame: Frame::Label(self.profile.intern_string(name)),
            category_pair: self.unknown.into(),
            flags: FrameFlags::empty(),
        }
    }
}

/// An event, as a marker.
#[derive(Clone, Debug)]
struct EventMarker {
    name: StringHandle,
    fields: StringHandle,
    cpu: u32,
}

impl StaticSchemaMarker for EventMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "ftrace";
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.fields}");
    const TOOLTIP_LABEL: Option<&'static str> = Some("{marker.name}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        StaticSchemaMarkerField {
            key: "fields",
            label: "Fields",
            format: MarkerFieldFormat::String,
            flags: MarkerFieldFlags::SEARCHABLE,
        },
        StaticSchemaMarkerField {
            key: "cpu",
            label: "CPU",
            format: MarkerFieldFormat::Integer,
            flags: MarkerFieldFlags::empty(),
        },
    ];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _field_index: u32) -> StringHandle {
        self.fields
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        self.cpu.into()
    }
}
