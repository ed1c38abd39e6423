// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap view`: a page in the browser.

use super::{
    args::{Input, WeightArgs},
    folded::{about, access, title},
};
use crate::{
    error::{reason, Error, Result},
    events,
    notes::Notes,
    output::{self, Out},
    source::{Loaded, Source},
    view,
};
use clap::Args;
use std::{
    env,
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{absolute, Path, PathBuf},
    process::{Command, Stdio},
};

const EXAMPLES: &str = "\
examples:
  stackmap view                              write stackmap.data.html, and open it in the browser
  stackmap view --event 'sys_enter_*' a.data
  stackmap view --weight bytes_alloc a.data  stacks as wide as what they allocate
  stackmap view --time 8.77..8.78 a.data     of a long recording, a part
  stackmap view -o page.html a.data          write another file, and open nothing";

/// Show a recording in the browser: a heat map of its events over time, and flame graphs of any range
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct View {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    weight: WeightArgs,
    /// Write the page to this file, - for standard output, and do not open it [default: FILE.html]
    #[arg(short, long, value_name = "HTML")]
    output: Option<PathBuf>,
    /// Title of the page [default: the name of FILE]
    #[arg(long)]
    title: Option<String>,
    /// Show the address of a frame without a name; only the owner can read the file then
    #[arg(long)]
    addresses: bool,
}

impl View {
    pub(super) fn run(self) -> Result {
        let (mut source, mut loaded) = self.input.open(false)?;
        if matches!(source, Source::Raw { .. }) {
            let what = "a stack_map_bin has no events that could be shown\n  hint: \"stackmap flame\" draws \
                        its stacks";
            return Err(Error::input(source.name(), what));
        }
        self.weight.set(&source, &mut loaded)?;
        let path = match &self.output {
            Some(path) => path.clone(),
            None => beside(self.input.file())?,
        };
        let html = self.page(&mut source, &loaded)?;
        let mut out = Out::file(&path, access(self.addresses))?;
        out.write_all(&html)?;
        out.finish()?;
        match &self.output {
            Some(_) => Ok(()),
            None => open(&path),
        }
    }

    fn page(&self, source: &mut Source, loaded: &Loaded) -> Result<Vec<u8>> {
        let mut notes = Notes::default();
        let mut builder = view::Builder::new(loaded, self.addresses);
        let mut nr_events = 0;
        events::for_each(source, loaded, &mut notes, &mut |event, sides| {
            nr_events += 1;
            builder.event(event, sides)
        })?;
        notes.require_events(&source.name(), loaded)?;
        let lines = notes.lines(Some(loaded));
        output::say_notes(&lines);
        let look = view::Look {
            title: self.title.clone().unwrap_or_else(|| title(source)),
            about: about(loaded, &notes.nr_events(nr_events)),
            unit: loaded.weight.unit(),
        };
        // Written before a file is touched: what cannot be shown leaves no empty file behind.
        let mut html = Vec::new();
        builder.write(&look, &lines, &mut html)?;
        Ok(html)
    }
}

/// Returns the path of the page of a capture. A file there is replaced only if it is a page.
fn beside(capture: &Path) -> Result<PathBuf> {
    if capture == Path::new("-") {
        let why =
            "standard input has no name that the page could have\n  hint: name a file with -o";
        return Err(Error::Refused(why.to_owned()));
    }
    let mut path = capture.as_os_str().to_owned();
    path.push(".html");
    let path = PathBuf::from(path);
    match File::open(&path).and_then(|mut file| view::is_page(&mut file)) {
        Ok(true) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path),
        _ => Err(Error::Refused(format!(
            "{} is no page of \"stackmap view\", and stays\n  hint: name another file with -o",
            path.display()
        ))),
    }
}

/// Says where the page is, and opens it if there is a screen. A browser of root is not started.
fn open(path: &Path) -> Result {
    let path = absolute(path).map_err(|error| Error::read(path, error))?;
    output::say(format_args!("the page is {}", path.display()));
    let mut screens = ["DISPLAY", "WAYLAND_DISPLAY"].map(env::var_os).into_iter();
    if screens.all(|screen| screen.is_none()) || rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // It may be the browser itself: Ctrl-C in this terminal is not for it.
    let started = Command::new("xdg-open")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    if let Err(error) = started {
        output::say(format_args!(
            "note: cannot run xdg-open: {}",
            reason(&error)
        ));
    }
    Ok(())
}
