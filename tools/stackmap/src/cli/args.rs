// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments that several commands have.

use crate::{
    capture::DEFAULT_CAPTURE,
    error::{Error, Result},
    filter::Filter,
    output::Progress,
    source::{Loaded, Shown, Source, SymbolFiles},
    symbols::elf,
    weight::Weight,
};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// What every command has.
#[derive(Args, Debug)]
pub(super) struct Global {
    /// Directory of tracefs, or of one of its instances [default: /sys/kernel/tracing]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help_heading = "Global options"
    )]
    pub(super) tracefs: Option<PathBuf>,
    /// When to colour results; NO_COLOR in the environment turns colours off, too
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    #[arg(help_heading = "Global options")]
    color: Color,
    /// Do not use a pager ($PAGER, or less) for long results on a terminal
    #[arg(long, global = true, help_heading = "Global options")]
    no_pager: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

impl Global {
    pub(super) fn set_color(&self) {
        match self.color {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::AlwaysAnsi,
            Color::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }

    /// Whether long results are shown page by page.
    pub(super) fn pager(&self) -> bool {
        !self.no_pager
    }

    pub(super) fn tracefs(&self) -> Option<&Path> {
        self.tracefs.as_deref()
    }
}

/// In the help, what names frames is apart from what else there is to choose.
const NAMES: &str = "Names";

/// Files to get names from.
#[derive(Args, Debug)]
pub(super) struct SymbolArgs {
    /// Kernel image with debug information, for inlined functions and source lines
    #[arg(long, help_heading = NAMES, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
    /// Directory with .ko files, for inlined functions and source lines of modules
    #[arg(long, help_heading = NAMES, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Copy of /proc/kallsyms to use instead of the running kernel's or the capture's
    #[arg(long, help_heading = NAMES, value_name = "FILE")]
    kallsyms: Option<PathBuf>,
    /// Offset that KASLR added to the addresses of --vmlinux [default: found from kallsyms]
    #[arg(long, help_heading = NAMES, value_name = "HEX", value_parser = parse_hex)]
    kaslr_offset: Option<u64>,
    /// Also show the frames of tracing itself, which are the innermost ones of a stack, and the events
    /// that the module and the recorder cause
    #[arg(long, help_heading = NAMES)]
    plumbing: bool,
    /// Directory with debug information of programs, by build-id or as in the root directory; can be
    /// repeated
    #[arg(long, help_heading = NAMES, value_name = "DIR")]
    debug_dir: Vec<PathBuf>,
    /// Show user stacks only
    #[arg(long, help_heading = NAMES, conflicts_with = "kernel")]
    user: bool,
    /// Show stacks of the kernel only
    #[arg(long, help_heading = NAMES)]
    kernel: bool,
}

fn parse_hex(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|error| error.to_string())
}

impl SymbolArgs {
    fn files(&self) -> SymbolFiles {
        SymbolFiles {
            kallsyms: self.kallsyms.clone(),
            elf: elf::Files {
                vmlinux: self.vmlinux.clone(),
                modules: self.modules.clone(),
                kaslr_offset: self.kaslr_offset,
                build_id: None,
            },
            debug_dirs: self.debug_dir.clone(),
            apart: true,
        }
    }

    /// Reads a source with these names.
    pub(super) fn load(&self, source: &mut Source) -> Result<Loaded> {
        self.load_some(source, &Filter::default(), false)
    }

    /// The same, to be filtered; `users_later`: see [`Source::load`].
    pub(super) fn load_some(
        &self,
        source: &mut Source,
        filter: &Filter,
        users_later: bool,
    ) -> Result<Loaded> {
        if !filter.is_empty() && matches!(source, Source::Raw { .. }) {
            let what = "a stack_map_bin has no events that could be filtered";
            return Err(Error::input(source.name(), what));
        }
        let mut loaded = source.load(&self.files(), users_later && !filter.has_stacks())?;
        loaded.filter = Filter {
            hides_own: !self.plumbing,
            ..filter.clone()
        };
        let mut progress = Progress::new("reading debug information", None);
        loaded.shown = match (self.user, self.kernel) {
            (true, _) => Shown::User,
            (_, true) => Shown::Kernel,
            _ => Shown::Both,
        };
        let symbols = &mut loaded.symbols;
        symbols.plumbing = self.plumbing;
        symbols.prime(&loaded.stacks, &mut |done| progress.set(done));
        if loaded.shown != Shown::Kernel {
            loaded.user.prime(&mut |done| progress.set(done));
        }
        Ok(loaded)
    }
}

/// What events are counted by.
#[derive(Args, Debug, Default)]
pub(super) struct WeightArgs {
    /// Weight events by this field: --weight bytes_alloc
    #[arg(long, value_name = "FIELD")]
    weight: Option<String>,
}

impl WeightArgs {
    /// Has the events of a source counted by it.
    pub(super) fn set(&self, source: &Source, loaded: &mut Loaded) -> Result {
        let Some(field) = &self.weight else {
            return Ok(());
        };
        if matches!(source, Source::Raw { .. }) {
            let what = "a stack_map_bin has no events, whose fields --weight could add up";
            return Err(Error::input(source.name(), what));
        }
        loaded.weight = Weight::Field(field.clone());
        Ok(())
    }
}

/// What most commands read.
#[derive(Args, Debug)]
pub(super) struct Input {
    /// Capture that "stackmap record" wrote
    #[arg(value_name = "FILE", default_value = DEFAULT_CAPTURE)]
    file: PathBuf,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    symbols: SymbolArgs,
}

impl Input {
    /// Returns the path of the capture, `-` for standard input.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Opens what is to be read, and reads its stacks. `users_later`: see [`Source::load`].
    pub(super) fn open(&self, users_later: bool) -> Result<(Source, Loaded)> {
        let mut source = Source::open(Some(&self.file), None)?;
        let loaded = self
            .symbols
            .load_some(&mut source, &self.filter, users_later)?;
        Ok((source, loaded))
    }
}
