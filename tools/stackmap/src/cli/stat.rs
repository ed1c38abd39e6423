// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap stat` and `stackmap reset`: the counters of the map, and a fresh start for them.

use super::args::Global;
use crate::{
    error::{Error, Result},
    filter::number,
    notes::count_of,
    output::{say, JsonText, Out, TITLE, WARNING},
    record::parse_seconds,
    report,
    source::Source,
    stat::Stat,
    table::{table, Column},
    tracefs::Tracefs,
};
use clap::Args;
use serde_json::{json, Map, Value};
use std::{
    io::{self, Write},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

const STAT_EXAMPLES: &str = "\
examples:
  stackmap stat                   the counters, and how they grow in a second
  stackmap stat --interval 5 --count 12
  stackmap stat --interval 0      the counters, without rates
  stackmap stat a.data            the counters of the map after a recording";

/// Show the counters of the map, with rates
#[derive(Args, Debug)]
#[command(before_help = STAT_EXAMPLES)]
pub(super) struct StatArgs {
    /// Capture to show the counters of [default: the running kernel's]
    file: Option<PathBuf>,
    /// Seconds between two readings, for the rates; 0 shows no rates
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// Number of times to show the counters
    #[arg(short, long, value_name = "N", value_parser = number::<u64>, default_value_t = 1)]
    count: u64,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

impl StatArgs {
    pub(super) fn run(self, global: &Global) -> Result {
        let mut source = Source::open(self.file.as_deref(), global.tracefs())?;
        match &mut source {
            Source::Raw { name, .. } => Err(Error::input(
                name.as_str(),
                "a stack_map_bin has no counters\n  hint: give a capture",
            )),
            Source::Capture(capture) => {
                let both = Both(capture.stat()?, capture.user_stat()?);
                let origin: Vec<_> = report::origin(capture.manifest()).collect();
                self.show(&both, None, &origin.join("; "))
            }
            Source::Live(tracefs) => self.live(tracefs),
        }
    }

    fn live(&self, tracefs: &Tracefs) -> Result {
        let mut before = Both::read(tracefs)?;
        if self.interval.is_zero() {
            return self.show(&before, None, "");
        }
        for _ in 0..self.count {
            let begun = Instant::now();
            sleep(self.interval);
            let after = Both::read(tracefs)?;
            self.show(&after, Some((&before, begun.elapsed())), "")?;
            before = after;
        }
        Ok(())
    }

    /// Shows `stat`, and the change `since` an earlier one, with the time between them. `origin`: what a
    /// text says before it.
    fn show(&self, stat: &Both, since: Option<(&Both, Duration)>, origin: &str) -> Result {
        let since = since.map(|(before, duration)| {
            let Both(kernel, user) = before;
            (Both(stat.0.since(kernel), stat.1.since(user)), duration)
        });
        let mut out = Out::stdout();
        match self.json {
            true => write_json(&mut out, stat, since.as_ref())?,
            false => {
                if !origin.is_empty() {
                    writeln!(out, "{origin}\n")?;
                }
                write_text(&mut out, stat, since.as_ref())?;
            }
        }
        out.finish()
    }
}

/// The counters of stacks of the kernel, and of user stacks: none of these if the module is older.
struct Both(Stat, Stat);

impl Both {
    fn read(tracefs: &Tracefs) -> Result<Self> {
        Ok(Self(tracefs.stat()?, tracefs.user_stat()?))
    }
}

/// Keys whose value is a level, not a count that grows.
const LEVELS: [&str; 8] = [
    "table_size",
    "success_rate",
    "pool_bytes",
    "table_bytes",
    "bits",
    "entries",
    "binaries",
    "files",
];

fn write_text(out: &mut Out, stat: &Both, since: Option<&(Both, Duration)>) -> Result {
    let Both(stat, user) = stat;
    let of = |side: fn(&Both) -> &Stat| since.map(|(delta, duration)| (side(delta), *duration));
    write_table(out, stat, "counter", of(|both| &both.0))?;
    if let Some(saved) = saved(stat) {
        let saved = out.style(TITLE, saved);
        writeln!(out, "\n {saved}")?;
    }
    if !user.is_empty() {
        writeln!(out)?;
        write_table(out, user, "user stacks", of(|both| &both.1))?;
    }
    let drops = stat
        .drops()
        .into_iter()
        .map(|drop| (drop, "recorded", "full stack"));
    let user_drops = user
        .user_drops()
        .into_iter()
        .map(|drop| (drop, "not kept", "user stack"));
    for ((count, reason), what, stack) in drops.chain(user_drops) {
        let label = out.style(WARNING, "WARNING:");
        writeln!(out, " {label} {} {what}: {reason}", count_of(count, stack))?;
    }
    Ok(writeln!(out)?)
}

fn write_table(
    out: &mut Out,
    stat: &Stat,
    title: &'static str,
    since: Option<(&Stat, Duration)>,
) -> Result {
    let rows = stat.iter().map(|(key, value)| {
        let mut row = vec![key.to_owned(), value.to_owned()];
        if let Some((delta, duration)) = since {
            let delta = delta.number(key).filter(|_| !LEVELS.contains(&key));
            row.push(delta.map_or(String::new(), |delta| delta.to_string()));
            let rate = delta.and_then(|delta| rate(delta, duration));
            row.push(rate.map_or(String::new(), |rate| format!("{rate:.0}")));
        }
        row
    });
    let mut columns = vec![Column::Text(title), Column::Number("value")];
    if since.is_some() {
        columns.extend([Column::Number("new"), Column::Number("per second")]);
    }
    Ok(write!(out, "{}", table(&columns, rows))?)
}

/// The bytes that ids save, in words.
fn saved(stat: &Stat) -> Option<String> {
    /// What an id takes in the ring buffer.
    const ID_BYTES: u64 = 16;
    let bytes = stat.number("bytes_saved")?;
    let ids = stat.number("successes").filter(|ids| *ids > 0)?;
    let whole = bytes.checked_add(ids.checked_mul(ID_BYTES)?)?;
    let factor = whole as f64 / (ids * ID_BYTES) as f64;
    Some(format!(
        "{ids} stacks took {} in place of {}: {factor:.1} times less",
        bytes_of(ids * ID_BYTES),
        bytes_of(whole),
    ))
}

fn bytes_of(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / (1024 * 1024)),
    }
}

fn rate(delta: u64, duration: Duration) -> Option<f64> {
    let seconds = duration.as_secs_f64();
    (seconds > 0.0).then(|| delta as f64 / seconds)
}

fn write_json(out: &mut Out, stat: &Both, since: Option<&(Both, Duration)>) -> Result {
    let value = |text: &str| match text.parse::<u64>() {
        Ok(number) => json!(number),
        Err(_) => json!(text),
    };
    let all = |stat: &Stat| -> Map<String, Value> {
        let pairs = stat.iter().map(|(key, text)| (key.to_owned(), value(text)));
        pairs.collect()
    };
    let mut object = Map::new();
    object.insert("counters".to_owned(), all(&stat.0).into());
    if !stat.1.is_empty() {
        object.insert("user_counters".to_owned(), all(&stat.1).into());
    }
    if let Some((delta, duration)) = since {
        object.insert("new".to_owned(), all(&delta.0).into());
        if !stat.1.is_empty() {
            object.insert("user_new".to_owned(), all(&delta.1).into());
        }
        object.insert("seconds".to_owned(), json!(duration.as_secs_f64()));
    }
    serde_json::to_writer(JsonText(&mut *out), &object).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

const RESET_EXAMPLES: &str = "\
examples:
  stackmap reset            reset the map; nothing may record ids
  stackmap reset --stop     turn tracing off at the top level first, and leave it off";

/// Reset the map of the running kernel: remove its stacks and clear its counters
#[derive(Args, Debug)]
#[command(before_help = RESET_EXAMPLES)]
pub(super) struct Reset {
    /// Turn tracing off at the top level first, and leave it off
    #[arg(long)]
    stop: bool,
}

impl Reset {
    pub(super) fn run(self, global: &Global) -> Result {
        let tracefs = Tracefs::find(global.tracefs())?;
        tracefs.require_stackmap()?;
        if self.stop {
            tracefs.write("tracing_on", "0")?;
        }
        let entries = tracefs.stat()?.number("entries").unwrap_or(0);
        match tracefs.write("stack_map", "reset") {
            Ok(()) => {
                say(format_args!(
                    "the map was reset; {} removed",
                    count_of(entries, "stack")
                ));
                Ok(())
            }
            Err(Error::Io { error, .. }) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(Error::Refused(REFUSED.to_owned()))
            }
            Err(error) => Err(error),
        }
    }
}

/// Why the kernel refused a reset.
const REFUSED: &str = "\
the map cannot be reset: a trace array that records ids has tracing on, or another reset runs
  hint: --stop ends tracing at the top level; stack_map_instances in tracefs lists the instances";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_saved() {
        let stat = Stat::parse("successes: 28204\nbytes_saved: 7204664\n");
        assert_eq!(
            saved(&stat).as_deref(),
            Some("28204 stacks took 440 KiB in place of 7476 KiB: 17.0 times less")
        );
        assert_eq!(saved(&Stat::parse("successes: 0\nbytes_saved: 0\n")), None);
        assert_eq!(
            saved(&Stat::parse(
                "successes: 18446744073709551615\nbytes_saved: 1\n"
            )),
            None
        );
    }

    #[test]
    fn a_duration_of_zero_has_no_rate() {
        assert_eq!(rate(5, Duration::ZERO), None);
        assert_eq!(rate(5, Duration::from_millis(500)), Some(10.0));
    }
}
