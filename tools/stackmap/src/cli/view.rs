// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap view`: a page in the browser.

use super::{
    args::{Global, Input, WeightArgs},
    folded::{about, access, title},
};
use crate::{
    error::{Error, Result},
    events,
    notes::Notes,
    output::{self, Out},
    source::{Loaded, Source},
    view::{self, serve::Server},
};
use clap::Args;
use std::{
    env,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

const EXAMPLES: &str = "\
examples:
  stackmap view                              open stackmap.data in the browser, until Ctrl-C
  stackmap view --event 'sys_enter_*' a.data
  stackmap view --weight bytes_alloc a.data  stacks as wide as what they allocate
  stackmap view --time 8.77..8.78 a.data     of a long recording, a part
  stackmap view -o page.html a.data          a file to keep, or to send to others";

/// Show a recording in the browser: a heat map of its events over time, and flame graphs of any range
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct View {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    weight: WeightArgs,
    /// Write the page to this file, - for standard output, and show nothing
    #[arg(short, long, value_name = "HTML")]
    output: Option<PathBuf>,
    /// Title of the page [default: the name of FILE]
    #[arg(long)]
    title: Option<String>,
    /// End when the browser has read the page, which it then cannot load again
    #[arg(long, conflicts_with = "output")]
    once: bool,
    /// Print the address of the page, and start no browser
    #[arg(long, conflicts_with = "output")]
    no_browser: bool,
    /// Show the address of a frame without a name; only the owner can read the file then, and no
    /// browser is started
    #[arg(long)]
    addresses: bool,
}

impl View {
    pub(super) fn run(self, global: &Global) -> Result {
        let (mut source, mut loaded) = self.input.open(global)?;
        source.require_one("a timeline is drawn")?;
        if matches!(source, Source::Raw { .. }) {
            let what = "a stack_map_bin has no events that could be shown\n  hint: \"stackmap flame\" draws \
                        its stacks";
            return Err(Error::input(source.name(), what));
        }
        self.weight.set(&source, &mut loaded)?;
        let nonce = view::secret()?;
        let html = self.page(&mut source, &loaded, &nonce)?;
        if let Some(path) = &self.output {
            let mut out = Out::file(path, access(self.addresses))?;
            out.write_all(&html)?;
            return out.finish();
        }
        // What was read is not needed any more.
        drop((source, loaded));
        let server = Server::new(html, view::policy(&nonce), view::secret()?)?;
        self.announce(&server);
        server.run(self.once)
    }

    fn page(&self, source: &mut Source, loaded: &Loaded, nonce: &str) -> Result<Vec<u8>> {
        let mut notes = Notes::default();
        let mut builder = view::Builder::new(loaded, self.addresses);
        let mut nr_events = 0;
        events::for_each(source, loaded, &mut notes, &mut |event, sides| {
            nr_events += 1;
            builder.event(event, sides)
        })?;
        let lines = notes.lines(Some(loaded));
        output::say_notes(&lines);
        let look = view::Look {
            title: self.title.clone().unwrap_or_else(|| title(source)),
            about: about(loaded, &notes.nr_events(nr_events)),
            unit: loaded.weight.unit(),
        };
        // Written before a file is touched: what cannot be shown leaves no empty file behind.
        let mut html = Vec::new();
        builder.write(&look, &lines, nonce, &mut html)?;
        Ok(html)
    }

    /// Says where the page is, and starts a browser if there is a screen.
    fn announce(&self, server: &Server) {
        let url = server.url();
        let until = match self.once {
            true => "until it was read",
            false => "until Ctrl-C",
        };
        output::say(format_args!("the page is at {url} {until}"));
        // The arguments of a program can be read by all users. That is no harm for what anybody may read, as
        // the files of other exports.
        let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].map(|name| env::var_os(name).is_some());
        let is_root = rustix::process::geteuid().is_root();
        if has_screen.contains(&true) && !is_root && !self.no_browser && !self.addresses {
            let mut command = Command::new("xdg-open");
            command
                .arg(&url)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            match command.spawn() {
                Ok(mut child) => {
                    // It may be the browser itself, and stay.
                    thread::spawn(move || child.wait());
                }
                Err(error) => output::say(format_args!("note: cannot run xdg-open: {error}")),
            }
        } else if env::var_os("SSH_CONNECTION").is_some() {
            let port = server.port();
            output::say(format_args!(
                "  hint: on the machine with the browser: ssh -L {port}:127.0.0.1:{port} HOST"
            ));
        }
    }
}
