// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where stacks come from: a live tracefs, a capture, or a raw `stack_map_bin`.

use crate::{
    capture::{self, member, Capture, Member},
    error::{Error, Result},
    files::read_full,
    filter::Filter,
    kernel,
    output::warn,
    ring::{decode::Trace, page::Layout, stream::Pages},
    stack_map_bin::{LoadId, Stack},
    stacks::Stacks,
    symbols::{
        elf::{self, DebugInfo},
        kallsyms::{self, Kallsyms},
        modules::Modules,
        Symbols,
    },
    tracefs::Tracefs,
    user::{
        binaries::Binaries,
        live,
        names::{vdso_index, Names, Places},
        words, User,
    },
    weight::Weight,
};
use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

mod loaded;

pub use loaded::{Loaded, Missing, Shown};

/// Files that the user gives for names.
#[derive(Clone, Debug, Default)]
pub struct SymbolFiles {
    /// A table of names in place of the running kernel's or the capture's.
    pub kallsyms: Option<PathBuf>,
    /// ELF files.
    pub elf: elf::Files,
    /// Directories with debug information of programs.
    pub debug_dirs: Vec<PathBuf>,
    /// See [`Places::apart`].
    pub apart: bool,
}

impl SymbolFiles {
    /// Where names of user stacks are looked for; `since`: see [`Places::since`].
    fn places(&self, since: Option<i64>) -> Places {
        Places {
            debug_dirs: self.debug_dirs.clone(),
            since,
            apart: self.apart,
        }
    }
}

/// Where stacks come from.
pub enum Source {
    /// The running kernel: its stacks, without events.
    Live(Tracefs),
    /// A capture.
    Capture(Box<Capture>),
    /// A `stack_map_bin` that was copied.
    Raw {
        /// What it is called.
        name: String,
        /// What was in it.
        stacks: Stacks,
        /// Whether it was a `stack_map_user_bin`.
        is_user: bool,
    },
}

impl Source {
    /// Opens `file`: a capture or a `stack_map_bin`, `-` for one on standard input, or the live
    /// tracefs if there is no file.
    pub fn open(file: Option<&Path>, tracefs: Option<&Path>) -> Result<Self> {
        let Some(path) = file else {
            return Ok(Source::Live(Tracefs::find(tracefs)?));
        };
        if path == Path::new("-") {
            return Self::from_pipe(&mut io::stdin().lock());
        }
        let mut file = File::open(path).map_err(|error| Error::read(path, error))?;
        let name = path.display().to_string();
        let mut magic = [0; 4];
        let len =
            read_full(&mut file, &mut magic).map_err(|(_, error)| Error::read(path, error))?;
        if magic[..len] == capture::MAGIC {
            return Ok(Source::Capture(Box::new(Capture::open(path)?)));
        }
        let input = magic[..len].chain(BufReader::with_capacity(256 << 10, file));
        Self::raw(input, name)
    }

    fn raw(input: impl Read, name: String) -> Result<Self> {
        let (stacks, is_user) = Stacks::read_either(input, &name)?;
        Ok(Source::Raw {
            name,
            stacks,
            is_user,
        })
    }

    fn from_pipe(input: &mut dyn Read) -> Result<Self> {
        let name = "standard input".to_owned();
        let failed = |error| Error::io("read standard input", error);
        let mut magic = [0; 4];
        let len = read_full(input, &mut magic).map_err(|(_, error)| failed(error))?;
        let mut input = magic[..len].chain(input);
        if magic != capture::MAGIC {
            return Self::raw(BufReader::with_capacity(256 << 10, input), name);
        }
        // A capture has its directory at the end.
        let mut file = tempfile::tempfile()
            .map_err(|error| Error::io("make a temporary file for the capture", error))?;
        io::copy(&mut input, &mut file).map_err(failed)?;
        file.rewind().map_err(failed)?;
        Ok(Source::Capture(Box::new(Capture::new(file, name)?)))
    }

    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Source::Live(tracefs) => tracefs.root().display().to_string(),
            Source::Capture(capture) => capture.name().to_owned(),
            Source::Raw { name, .. } => name.clone(),
        }
    }

    /// The files that the user stacks of a capture have frames in.
    pub fn binaries(&mut self) -> Result<Binaries> {
        match self {
            Source::Capture(capture) => capture.binaries(),
            _ => Ok(Binaries::default()),
        }
    }

    /// Reads the stacks, and the names from where they came and from `files`. `users_later`: of the user stacks
    /// of a capture only the ids are read, and [`user_stacks`](Self::user_stacks) reads the rest.
    pub fn load(&mut self, files: &SymbolFiles, users_later: bool) -> Result<Loaded> {
        let mut modules = Modules::default();
        let mut stat = None;
        let mut manifest = None;
        let trace_load = self.trace_load();
        let stacks;
        let mut own_kallsyms: Option<Kallsyms> = None;
        let mut elf = files.elf.clone();
        let mut user = User::default();
        match self {
            Source::Live(tracefs) => {
                stacks = tracefs.stacks()?;
                let of_users = live_user(tracefs, files, true);
                user = or_without("user stacks", of_users, true).unwrap_or_default();
                stat = or_without("counters", tracefs.stat(), true);
                modules = or_without("modules", kernel::modules(), true).unwrap_or_default();
                if files.kallsyms.is_none() {
                    own_kallsyms = or_without(KERNEL_NAMES, kernel::kallsyms(), true);
                }
                elf.build_id = kernel::build_id();
            }
            Source::Capture(capture) => {
                stacks = capture.stacks()?;
                let of = capture.manifest();
                let is_here = of.boot_id.is_some() && of.boot_id == kernel::boot_id();
                let since = is_here.then(|| of.began() as i64);
                user = capture.user(files.places(since), users_later)?;
                stat = Some(capture.stat()?);
                modules = capture.modules()?;
                if files.kallsyms.is_none() {
                    own_kallsyms = Some(capture.kallsyms()?);
                }
                elf.build_id = capture.manifest().build_id.clone();
                manifest = Some(capture.manifest().clone());
            }
            Source::Raw {
                stacks: read,
                is_user,
                ..
            } => {
                let read = std::mem::take(read);
                match is_user {
                    true => {
                        stacks = Stacks::default();
                        user.stacks = read;
                    }
                    false => stacks = read,
                }
            }
        }
        let kallsyms = match &files.kallsyms {
            Some(path) => Some(read_kallsyms(path, &modules)?),
            None => own_kallsyms,
        };
        let debug_info = match &elf {
            elf::Files {
                vmlinux: None,
                modules: None,
                ..
            } => None,
            files => Some(DebugInfo::open(files, kallsyms.as_ref())?),
        };
        let slot_bits = match &manifest {
            Some(manifest) => manifest.slot_bits,
            None => stat.as_ref().and_then(|stat| stat.slot_bits()),
        };
        Ok(Loaded {
            stacks,
            symbols: Symbols {
                kallsyms,
                debug_info,
                ..Symbols::default()
            },
            modules,
            stat,
            manifest,
            slot_bits,
            trace_load,
            user,
            shown: Shown::default(),
            filter: Filter::default(),
            weight: Weight::default(),
        })
    }

    /// The capture, if it is one.
    pub fn capture(&mut self) -> Option<&mut Capture> {
        match self {
            Source::Capture(capture) => Some(capture),
            _ => None,
        }
    }

    /// Gives `out` the user stacks that [`load`](Self::load) has left.
    pub fn user_stacks(&mut self, out: &mut dyn FnMut(Stack<'_>)) -> Result {
        match self {
            Source::Capture(capture) => capture.user_stacks(out).map(drop),
            Source::Live(_) | Source::Raw { .. } => Ok(()),
        }
    }

    /// The load of the module that the trace is of, if that is known.
    pub fn trace_load(&self) -> Option<LoadId> {
        match self {
            Source::Capture(capture) => capture.manifest().load_id,
            Source::Live(_) | Source::Raw { .. } => None,
        }
    }

    /// What describes the records of the ring buffer, the pages that they are in, and how many bytes
    /// these have.
    pub fn ring(&mut self) -> Result<(Trace, Pages<Member<'_>>, u64)> {
        let Source::Capture(capture) = self else {
            return Err(Error::input(
                self.name(),
                "a stack_map_bin has no events\n  hint: \"stackmap record\" captures both; \
                 \"stackmap resolve --map FILE\" adds stacks to the text of a trace",
            ));
        };
        let (trace, layout) = capture.ring()?;
        let name = capture.member_name(member::PAGES);
        let member = capture.member(member::PAGES)?;
        let size = member.size;
        Ok((trace, Pages::new(member, layout, &name), size))
    }

    /// The files that describe the ring buffer of a capture, and its pages.
    pub fn described(&mut self) -> Result<(capture::Described, Layout)> {
        match self {
            Source::Capture(capture) => Ok((capture.described()?, capture.ring()?.1)),
            _ => Err(Error::Refused(format!(
                "{} has no binary ring buffer to write a trace.dat of\n  hint: record a capture: stackmap record",
                self.name()
            ))),
        }
    }
}

/// Whether two loads of the module are known to be different ones.
pub(crate) fn differ(one: Option<LoadId>, other: Option<LoadId>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

/// What a result lacks without `/proc/kallsyms`.
pub(crate) const KERNEL_NAMES: &str = "names of kernel functions";

/// Returns what was read of the running kernel, or warns if it is `said` that the result is without it.
pub(crate) fn or_without<T>(what: &str, read: Result<T>, said: bool) -> Option<T> {
    let read = read.inspect_err(|error| {
        if said {
            warn(format_args!("without {what}: {error}"));
        }
    });
    read.ok()
}

/// The user stacks of the running kernel, and what names their frames. `said`: see [`or_without`].
pub(crate) fn live_user(tracefs: &Tracefs, files: &SymbolFiles, said: bool) -> Result<User> {
    let Some(stacks) = tracefs.user_stacks()? else {
        return Ok(User::default());
    };
    // Since then there are stacks.
    let since = fs::metadata(tracefs.path("stack_map_binaries"))
        .ok()
        .map(|table| table.ctime());
    let mut names = Names::new(files.places(since));
    if let Some(image) = live::vdso() {
        if let Some(index) = vdso_index(&image) {
            names.set_vdso(index, image);
        }
    }
    let processes = stacks.iter().flat_map(words::processes).collect();
    for (process, text) in live::perf_maps(&processes, None) {
        names.add_perf_map(process, text);
    }
    let table = tracefs.read_bytes("stack_map_binaries");
    let table = or_without("files of user stacks", table, said);
    let binaries = Binaries::parse(table.unwrap_or_default());
    Ok(User::new(stacks, binaries, names))
}

fn read_kallsyms(path: &Path, modules: &Modules) -> Result<Kallsyms> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(kallsyms::MAX_LEN + 1).read_to_end(&mut text))
        .map_err(|error| Error::read(path, error))?;
    Kallsyms::parse(text, modules, &path.display().to_string())
}
