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

const MANUAL: &str = "\
examples:
  stackmap manual /usr/local/share/man/man1
  stackmap manual /tmp/man && man -l /tmp/man/stackmap-record.1";

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
#[command(before_help = MANUAL)]
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
    let bare = command.clone().before_help(None::<&str>);
    let mut text = Vec::new();
    Man::new(bare).manual("stackmap").render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(page, "{line}")?;
        if line == ".SH SYNOPSIS" {
            // The synopsis of clap_mangen lacks the values of options and the "--" before a command.
            lines.next();
            let usage = command.clone().render_usage().to_string();
            let usage = usage.replace("Usage: ", "").replace('\\', "\\e");
            writeln!(page, "{}", usage.replace('-', "\\-"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synopsis_is_the_usage() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let page = page_of(command.find_subcommand("record").unwrap()).unwrap();
        let page = String::from_utf8(page).unwrap().replace('\\', "");
        let usage =
            "stackmap record [OPTIONS] <--event <EVENT[,EVENT...]>|--function <FUNC>|--list [<PATTERN>]> [COMMAND]...";
        assert!(page.contains(&format!(".SH SYNOPSIS\n{usage}\n")), "{page}");
    }
}
