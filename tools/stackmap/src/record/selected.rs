// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arguments of `record` whose order matters: `--filter` is about the `-e` before it.

use super::Selected;
use clap::{error::ErrorKind, Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

const EVENT: &str = "event";
const FILTER: &str = "filter";
/// Declared by the command that has these arguments.
const FUNCTION: &str = "function";

/// The events that are selected, each with its filter.
#[derive(Debug)]
pub(super) struct Events(pub(super) Vec<Selected>);

impl Args for Events {
    fn augment_args(command: Command) -> Command {
        command
            .arg(
                Arg::new(EVENT)
                    .short('e')
                    .long(EVENT)
                    .value_name("EVENT[,EVENT...]")
                    .action(ArgAction::Append)
                    .help("Events to record: system:event, event or system, each with wildcards (* ? [a-z])"),
            )
            .arg(
                Arg::new(FILTER)
                    .long(FILTER)
                    .value_name("EXPR")
                    .action(ArgAction::Append)
                    .help(
                        "Record the events of the -e before this only if their fields are so: \
                         --filter 'bytes_req > 100 && comm == \"ls\"'. Several must all be true",
                    ),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Events {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        /// What an argument is about.
        enum Given<'a> {
            Event(&'a str),
            Filter(&'a str),
            Function,
        }
        let of = |id| {
            let places = matches.indices_of(id).into_iter().flatten();
            let words = matches.get_many::<String>(id).into_iter().flatten();
            places.zip(words.map(String::as_str))
        };
        let events = of(EVENT).map(|(place, word)| (place, Given::Event(word)));
        let filters = of(FILTER).map(|(place, text)| (place, Given::Filter(text)));
        let functions = matches.indices_of(FUNCTION).into_iter().flatten();
        let functions = functions.map(|place| (place, Given::Function));
        let mut given: Vec<_> = events.chain(filters).chain(functions).collect();
        given.sort_by_key(|(place, _)| *place);

        let mut selected: Vec<Selected> = Vec::new();
        // The index of the first event that a filter is about.
        let mut first = None;
        for (_, given) in given {
            match (given, first) {
                (Given::Event(words), _) => {
                    first = Some(selected.len());
                    selected.extend(words.split(',').map(|word| Selected {
                        event: word.to_owned(),
                        filter: None,
                    }));
                }
                (Given::Function, _) => first = None,
                (Given::Filter(text), Some(first)) => {
                    for event in &mut selected[first..] {
                        add(event, text)?;
                    }
                }
                (Given::Filter(text), None) => {
                    return Err(Error::raw(
                        ErrorKind::MissingRequiredArgument,
                        format!(
                            "--filter '{text}' has no event before it: -e EVENT --filter EXPR\n  \
                             hint: calls of functions (-f) have no fields to filter by\n"
                        ),
                    ))
                }
            }
        }
        Ok(Self(selected))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// One more filter of a selected event.
fn add(selected: &mut Selected, text: &str) -> Result<(), Error> {
    // The kernel would show it on several lines.
    let text = text.replace('\n', " ");
    let text = text.trim();
    // "0" removes a filter.
    if ["", "0"].contains(&text) {
        return Err(Error::raw(
            ErrorKind::InvalidValue,
            format!("--filter '{text}' is not a filter, such as 'bytes_req > 100'\n"),
        ));
    }
    selected.filter = Some(match selected.filter.take() {
        Some(before) => format!("({before}) && ({text})"),
        None => text.to_owned(),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Vec<(String, Option<String>)>, String> {
        let function = Arg::new(FUNCTION).short('f').action(ArgAction::Append);
        let command = Events::augment_args(Command::new("x")).arg(function);
        let arguments = ["x"].iter().chain(arguments);
        let matches = command.try_get_matches_from(arguments);
        let events = matches.and_then(|matches| Events::from_arg_matches(&matches));
        let events = events.map_err(|error| error.to_string())?.0;
        let pairs = events.into_iter().map(|it| (it.event, it.filter));
        Ok(pairs.collect())
    }

    #[test]
    fn a_filter_is_about_the_event_before_it() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            parse(&["-e", "a", "-e", "b", "--filter", " x > 1\n", "-e", "c", "-f", "d"]).unwrap(),
            [
                ("a".to_owned(), None),
                ("b".to_owned(), some("x > 1")),
                ("c".to_owned(), None)
            ]
        );
        assert_eq!(
            parse(&["-f", "d", "-e", "a", "--filter=x", "--filter", "y || z"]).unwrap(),
            [("a".to_owned(), some("(x) && (y || z)"))]
        );
        assert_eq!(
            parse(&["-e", "a", "-e", "b,c", "--filter=x"]).unwrap(),
            [
                ("a".to_owned(), None),
                ("b".to_owned(), some("x")),
                ("c".to_owned(), some("x"))
            ]
        );
    }

    #[test]
    fn a_filter_without_an_event_is_refused() {
        for arguments in [
            &["--filter", "x"][..],
            &["--filter", "x", "-e", "a"],
            &["-e", "a", "-f", "d", "--filter", "x"],
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(
                error.contains("--filter 'x' has no event before it"),
                "{error}"
            );
        }
        for none in ["", " ", "0"] {
            let error = parse(&["-e", "a", "--filter", none]).unwrap_err();
            assert!(error.contains("is not a filter"), "{error}");
        }
    }
}
