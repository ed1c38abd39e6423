// SPDX-License-Identifier: MIT OR Apache-2.0

//! What packages install besides the program: manual pages and completions.

use super::Cli;
use crate::{
    error::{Error, Result},
    output::{Access, Out},
};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

const EXAMPLES: &str = "\
examples:
  stackmap completions bash > /usr/share/bash-completion/completions/stackmap
  stackmap completions zsh > /usr/local/share/zsh/site-functions/_stackmap";

/// Print completions for a shell
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Completions {
    /// Shell to print completions for
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "stackmap", &mut script);
        Ok(io::stdout().write_all(&script)?)
    }
}

/// Write a manual page for each command into a directory
#[derive(Args, Debug)]
pub(super) struct Manual {
    /// Directory to write into
    dir: PathBuf,
}

impl Manual {
    pub(super) fn run(self) -> Result {
        let failed = |error| Error::io(format!("write into {}", self.dir.display()), error);
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let parts = command.get_subcommands().filter(|part| !part.is_hide_set());
        for page in [&command].into_iter().chain(parts) {
            let text = page_of(page).map_err(failed)?;
            let name = match page.get_display_name() {
                Some(name) => name,
                None => page.get_name(),
            };
            let mut out = Out::file(&self.dir.join(format!("{name}.1")), Access::Umask)?;
            out.write_all(&text)?;
            out.finish()?;
        }
        Ok(())
    }
}

/// The manual page of a command, its examples at the end.
fn page_of(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // The examples would stand before the name of the command.
    let mut bare = command.clone().before_help(None::<&str>);
    let usage = bare.render_usage().to_string();
    let mut text = Vec::new();
    Man::new(bare).manual("stackmap").render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(page, "{line}")?;
        if line == ".SH SYNOPSIS" {
            // That of the help: with the values of options, and what a command stands behind.
            lines.next();
            writeln!(page, "{}", synopsis(&usage))?;
        }
    }
    if let Some(examples) = command.get_before_help() {
        writeln!(page, ".SH EXAMPLES\n.nf")?;
        for line in examples.to_string().lines().skip(1) {
            // A leading space keeps a line from being a request; backslashes are for roff.
            writeln!(page, "  {}", line.trim_start().replace('\\', "\\e"))?;
        }
        writeln!(page, ".fi")?;
    }
    Ok(page)
}

/// A line of usage for roff.
fn synopsis(usage: &str) -> String {
    let usage = usage.trim().trim_start_matches("Usage:").trim();
    usage.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_synopsis_is_that_of_the_help() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let record = command.find_subcommand("record").unwrap();
        let page = String::from_utf8(page_of(record).unwrap()).unwrap();
        let (_, rest) = page.split_once(".SH SYNOPSIS\n").unwrap();
        assert_eq!(
            rest.lines().next().unwrap(),
            "stackmap record [OPTIONS] <\\-\\-event <EVENT>|\\-\\-function <FUNC>> [\\-\\- <COMMAND>...]"
        );
    }
}
