// SPDX-License-Identifier: MIT OR Apache-2.0

//! What packages install besides the program: manual pages and completions.

use super::Cli;
use crate::{
    error::{Error, Result},
    output::{Access, Out},
};
use clap::{Arg, ArgAction, Args, Command, CommandFactory};
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
            // The synopsis of clap_mangen lacks the values of options and the "--" before a
            // command.
            lines.next();
            writeln!(page, "{}", synopsis(command))?;
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

/// All that a command takes, for roff.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![name.to_owned()];
    if command.has_subcommands() {
        words.push("COMMAND [ARGUMENT...]".to_owned());
    }
    let groups: Vec<_> = command
        .get_groups()
        .filter(|group| group.is_required_set())
        .collect();
    let grouped = |arg: &Arg| {
        let mut groups = groups.iter();
        groups.any(|group| group.get_args().any(|id| id == arg.get_id()))
    };
    for group in &groups {
        let args = group.get_args().filter_map(|id| {
            let mut args = command.get_arguments();
            args.find(|arg| arg.get_id() == id)
        });
        let choice: Vec<_> = args.map(form).collect();
        words.push(format!("{{{}}}...", choice.join(" | ")));
    }
    let shown = |arg: &&Arg| {
        let own = !matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
        );
        own && !arg.is_hide_set() && !grouped(arg)
    };
    let (positional, options): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(shown)
        .partition(|arg| arg.is_positional());
    for arg in options.iter().chain(&positional) {
        words.push(match arg.is_required_set() {
            true => form(arg),
            false => format!("[{}]", form(arg)),
        });
    }
    words.join(" ").replace('\\', "\\e").replace('-', "\\-")
}

/// How an argument is given.
fn form(arg: &Arg) -> String {
    let name = match (arg.get_short(), arg.get_long()) {
        (Some(short), _) => Some(format!("-{short}")),
        (None, Some(long)) => Some(format!("--{long}")),
        (None, None) => None,
    };
    let value = match arg.get_action().takes_values() {
        true => arg.get_value_names().map(|names| names.join(" ")),
        false => None,
    };
    let dashes = arg.is_last_set().then(|| "--".to_owned());
    let form: Vec<_> = [dashes, name, value].into_iter().flatten().collect();
    let many = arg.is_positional() && matches!(arg.get_action(), ArgAction::Append);
    form.join(" ") + if many { "..." } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of a command.
    fn page(name: &str) -> String {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let command = command.find_subcommand(name).unwrap();
        String::from_utf8(page_of(command).unwrap()).unwrap()
    }

    fn synopsis_of(name: &str) -> String {
        let page = page(name);
        let (_, rest) = page.split_once(".SH SYNOPSIS\n").unwrap();
        rest.lines().next().unwrap().replace('\\', "")
    }

    #[test]
    fn a_synopsis_lists_all_arguments() {
        assert_eq!(
            synopsis_of("record"),
            "stackmap record {-e EVENT | -f FUNC}... [--filter EXPR] [-p PID[,PID...]] [-C LIST] [-d SECS] \
             [-b KB] [--overwrite] [--last SECS] [--on-trigger EVENT[ if EXPR]] [--after SECS] [--clock NAME] \
             [-o FILE] [--all-symbols] [--no-args] [--label NAME=VALUE] [--anonymous] [--no-user] \
             [--module KO] [--tracefs DIR] [--color WHEN] [--no-pager] [-- COMMAND...]"
        );
        assert!(synopsis_of("diff").ends_with(" BEFORE AFTER"));
        assert!(synopsis_of("flame").contains(" -o SVG "));
    }

    #[test]
    fn every_option_is_in_the_synopsis() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
            let synopsis = synopsis_of(part.get_name());
            for arg in part.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = matches!(arg.get_id().as_str(), "help" | "version");
                assert!(help || synopsis.contains(&form(arg)), "{synopsis}: {arg}");
            }
        }
    }
}
