// SPDX-License-Identifier: MIT OR Apache-2.0

//! A recording in its instance, from the first setting until tracing is off.

use super::{
    bpf::{self, BpfWatch},
    buffer::Header,
    clocks, comms,
    events::{self, Events},
    guard::Guard,
    instance::{copy_markers, Instance, UserStacks},
    limits::Limits,
    modules,
    recording::{Begun, Recording},
    save::{self, cpus, Ending},
    settings, sleepers,
    spool::{Directory, Spool, Streaming, OF_COMMS, OF_EVENTS},
    tasks, trigger,
    wait::{self, Ends, Signals, Stopped},
    watch::Watcher,
    window::Window,
    Options,
};
use crate::{
    capture::Writer,
    error::{Error, Result},
    kernel,
    output::{say, warn},
    symbols::modules::Modules,
    tracefs::Tracefs,
    user::live::since_boot,
};
use std::time::Instant;

/// What a recording works on.
pub(super) struct Session<'a> {
    pub(super) options: &'a Options,
    pub(super) top: &'a Tracefs,
    pub(super) instance: &'a Instance,
    pub(super) signals: &'a Signals,
    pub(super) events: &'a Events,
    pub(super) limits: &'a Limits<'a>,
}

/// Why there is no capture.
pub(super) enum Failed {
    /// Nothing was recorded, or the writing was aborted.
    Lost(Error),
    /// What was recorded is kept.
    Kept(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Lost(error)
    }
}

/// Says how what was recorded can be saved although it could not be here.
fn kept(recording: &Recording, error: Error) -> Failed {
    Failed::Kept(Error::Refused(format!(
        "the recording is not saved: {error}\n  hint: it is kept: \"stackmap recover {0} -o FILE\" saves it, \
         \"stackmap recover --remove {0}\" removes it",
        recording.name()
    )))
}

/// What was recorded.
struct Ended {
    stopped: Stopped,
    ending: Ending,
    /// The pages that were streamed.
    spool: Spool,
}

impl Session<'_> {
    /// Records, and saves it with `writer`.
    pub(super) fn run(
        &self,
        recording: &mut Recording,
        writer: Writer,
        mut guard: Guard,
    ) -> (Guard, Result<Stopped, Failed>) {
        let stored = recording.store();
        let recorded = match stored {
            Ok(()) => self.record(recording, &writer, &mut guard),
            Err(error) => Err(Failed::Lost(error)),
        };
        let result = recorded.and_then(|ended| {
            let Ended {
                stopped,
                ending,
                spool,
            } = ended;
            let tracefs = self.instance.tracefs();
            let saved = save::save(recording, ending, tracefs, spool, writer, self.signals);
            saved.map_err(|error| match error {
                Error::Status(_) => Failed::Lost(error),
                error => kept(recording, error),
            })?;
            stopped.say();
            Ok(stopped)
        });
        (guard, result)
    }

    /// Records. From the moment when tracing is on, `recording` says that it has begun.
    fn record(
        &self,
        recording: &mut Recording,
        writer: &Writer,
        guard: &mut Guard,
    ) -> Result<Ended, Failed> {
        let Self {
            options,
            instance,
            signals,
            ..
        } = *self;
        let tracefs = instance.tracefs();
        let user_stacks = self.prepare(guard)?;
        let map = tracefs.open("stack_map_bin")?;
        let ends = Ends {
            gone: self.limits.end(tracefs)?,
            watch: options.is_flight().then(|| {
                self.limits
                    .triggers
                    .watch(tracefs, options.after.unwrap_or_default())
            }),
        };
        let dir = Directory::create(&recording.spool)?;
        let spool = dir.spool(&cpus(tracefs)?, OF_EVENTS)?;
        let (streaming, unstreamed) = match options.streams() {
            true => {
                let layout = Header::read(tracefs)?.layout();
                (
                    Some(Streaming::start(
                        tracefs,
                        spool,
                        layout,
                        Some(writer.space()?),
                    )?),
                    Spool::new(),
                )
            }
            false => (None, spool),
        };
        let comms = self.start_comms(&dir)?;
        let bpf = bpf::reported(BpfWatch::start(self.top));
        recording.begun = Some(self.begun(&recording.recorder)?);
        recording.store()?;
        if signals.count() > 0 {
            say("stackmap: interrupted before anything was recorded");
            return Err(Error::Status(wait::INTERRUPTED).into());
        }
        let begun = Instant::now();
        tracefs.write("tracing_on", "1")?;
        let binds = user_stacks == UserStacks::Recorded;
        if let Some(begun) = &mut recording.begun {
            sleepers::begin(&mut begun.sleepers, binds.then_some(self.top));
            recording.store()?;
        }
        let watcher = Watcher::start(tracefs, self.copies_markers()?);
        // Not before: an event that nothing records yet would end the recording.
        self.limits.triggers.set(tracefs)?;
        let stopped = wait::wait(&options.command, options.duration, ends, signals);
        let mut written = watcher.end();
        let switched_off = trigger::is_off(tracefs);
        if switched_off {
            written.remove("tracing_on");
        }
        let binds = binds && !switched_off;
        if binds {
            self.settle();
        }
        if let Some(begun) = &mut recording.begun {
            sleepers::end(&mut begun.sleepers, binds.then_some(self.top));
        }
        // To stop takes long on a busy machine.
        let window = options.last.map(|last| Window::read(tracefs, last));
        let switched = instance.stop();
        let clock = clocks::read(tracefs);
        let spool = streaming.map(Streaming::end).transpose();
        drop(comms);
        let duration = begun.elapsed();
        let (stopped, command) = stopped?;
        if let Some(command) = command {
            wait::end_command(command, signals);
        }
        let triggered = match &stopped {
            Stopped::Triggered(event) => Some(event.clone()),
            _ => None,
        };
        let kept = |error| kept(recording, error);
        switched.map_err(kept)?;
        Ok(Ended {
            ending: Ending {
                duration: Some(duration),
                clock,
                window: window.transpose().map_err(kept)?,
                triggered,
                // A flight recorder ends by that, also after its event.
                switched_off: switched_off
                    && !matches!(stopped, Stopped::Off | Stopped::Triggered(_)),
                written,
                bpf,
                map: Some(map),
                running: tasks::running(),
                comms: comms::read(self.top, instance.comms(), &dir),
                ..Ending::default()
            },
            stopped,
            spool: spool.map_err(kept)?.unwrap_or(unstreamed),
        })
    }

    /// Sets everything but `tracing_on`. Returns whether user stacks are recorded.
    fn prepare(&self, guard: &mut Guard) -> Result<UserStacks> {
        let (options, tracefs) = (self.options, self.instance.tracefs());
        settings::set(tracefs, options)?;
        let user_stacks = self.instance.list(!options.no_user)?;
        if let UserStacks::Missing(why) = user_stacks {
            say(format_args!("note: no user stacks are recorded: {why}"));
        }
        self.limits.set(tracefs)?;
        if !options.function.is_empty() {
            settings::set_functions(self.top, tracefs, &options.function, &mut |what| {
                guard.tell(what)
            })?;
        }
        for event in &self.events.words {
            tracefs
                .append("set_event", &format!("{event}\n"))
                .map_err(|error| events::explain(error, event))?;
        }
        Ok(user_stacks)
    }

    /// Records the names of tasks, and streams them if the recording is streamed.
    fn start_comms(&self, dir: &Directory) -> Result<Option<Streaming>> {
        let Some(tracefs) = self.instance.comms() else {
            return Ok(None);
        };
        if let Err(error) = comms::set(tracefs, &self.options.clock) {
            warn(format_args!("names of tasks are not recorded: {error}"));
        }
        if !self.options.streams() {
            return Ok(None);
        }
        let layout = Header::read(tracefs)?.layout();
        let spool = dir.spool(&cpus(tracefs)?, OF_COMMS)?;
        Streaming::start(tracefs, spool, layout, None).map(Some)
    }

    fn begun(&self, recorder: &[u32]) -> Result<Begun> {
        let modules = kernel::modules_text().unwrap_or_default();
        let modules = String::from_utf8_lossy(&modules).into_owned();
        let tracefs = self.instance.tracefs();
        Ok(Begun {
            map: tracefs.map_state()?,
            builds: modules::builds(&Modules::parse(&modules)),
            modules,
            threads: tasks::threads(),
            settings: settings::watched(tracefs),
            sleepers: sleepers::find(tracefs, self.limits, recorder),
            since_boot: u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX),
            clock: clocks::read(tracefs),
        })
    }

    /// Has what programs write to `trace_marker` copied to the instance, if that is possible; returns whether it is. The
    /// kernel writes a marker to one buffer after the other, and ends with the first one that refuses it: so not while the
    /// instance is off, or does not record on all CPUs.
    fn copies_markers(&self) -> Result<bool> {
        let why = match self.limits.cpus() {
            Some(_) => "only some CPUs record",
            None if copy_markers(self.instance.tracefs(), true)? => return Ok(true),
            None => "this kernel does not copy them to instances",
        };
        say(format_args!(
            "note: what programs write to trace_marker is not recorded: {why}"
        ));
        Ok(false)
    }

    /// Binds the user stacks of tasks that stay in the kernel. It needs tracing to be on.
    fn settle(&self) {
        if let Err(error) = self.top.write("stack_map_user", "settle") {
            warn(format_args!("tasks that sleep have no user stack: {error}"));
        }
    }
}
