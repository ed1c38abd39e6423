// SPDX-License-Identifier: MIT OR Apache-2.0

//! A page that shows a recording in a browser: a heat map of its events over time, and flame graphs of the
//! range that is selected there.
//!
//! The page is one file that asks for nothing else: neither of another host nor of this one. What is in it
//! of the recording is one block of base64 (see [`encode`]), so no name of a task or a function is ever
//! markup. A policy in the page forbids every request, and every script but its own.

pub mod encode;
mod tree;

use crate::{
    error::{Error, Result},
    export::unnamed,
    notes::{count_of, Note},
    output::JsonText,
    source::Loaded,
    symbols::{Frame, Place},
    tally::{Key, Keys},
    trace::{Event, Sides, Time},
    weight::Unit,
};
use base64::{prelude::BASE64_STANDARD, write::EncoderWriter};
use encode::{Columns, Row};
use flate2::{write::GzEncoder, Compression};
use indexmap::IndexSet;
use serde_json::json;
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read, Write},
    rc::Rc,
};
use tree::Tree;

/// More events are refused: the browser needs some 30 bytes for each.
pub const MAX_EVENTS: usize = 1 << 23;
/// More frames of different stacks are refused.
pub const MAX_NODES: usize = 1 << 22;

/// The page around the data: what stands for `{csp}`, `{nonce}`, `{style}`, `{script}` and `{data}` is put in.
const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// The scripts, in the order in which they need each other.
const SCRIPTS: [&str; 4] = [
    include_str!("page/data.js"),
    include_str!("page/heat.js"),
    include_str!("page/flame.js"),
    include_str!("page/page.js"),
];

/// Returns a word that nobody can guess.
fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Returns what a page may do: run its own script and style, and nothing else.
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
         base-uri 'none'; form-action 'none'"
    )
}

/// Returns whether a file is a page of `stackmap view`, by how it begins.
pub fn is_page(file: &mut impl Read) -> io::Result<bool> {
    let head = PAGE.split('{').next().unwrap_or_default();
    let mut begin = Vec::new();
    file.take(head.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == head.as_bytes())
}

/// What is shown above the events.
pub struct Look {
    /// The title.
    pub title: String,
    /// After the title: where the events are from.
    pub about: String,
    /// What the events are counted in.
    pub unit: Unit,
}

/// A page that grows event by event.
pub struct Builder<'a> {
    loaded: &'a Loaded,
    addresses: bool,
    rows: Vec<Row>,
    keys: Keys,
    stacks: IndexSet<Key>,
    events: IndexSet<Rc<str>>,
    tasks: IndexSet<(u32, Rc<str>)>,
    /// Whether times are those of a clock that does not count time.
    ticks: bool,
    max_events: usize,
    max_nodes: usize,
}

impl<'a> Builder<'a> {
    /// One without events. `addresses`: whether it shows kernel addresses.
    pub fn new(loaded: &'a Loaded, addresses: bool) -> Self {
        Self {
            loaded,
            addresses,
            rows: Vec::new(),
            keys: Keys::default(),
            stacks: IndexSet::new(),
            events: IndexSet::new(),
            tasks: IndexSet::new(),
            ticks: false,
            max_events: MAX_EVENTS,
            max_nodes: MAX_NODES,
        }
    }

    /// Adds an event, unless it has no weight.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) -> Result {
        let Ok(weight) = self.loaded.weight.of(event) else {
            return Ok(());
        };
        if self.rows.len() == self.max_events {
            return Err(Error::Refused(format!(
                "a page shows {} events at most\n  hint: choose some, as by --time, --event or --cpu",
                self.max_events
            )));
        }
        // As `--time` has it, so that what the page counts is what other commands count.
        let time = match event.time {
            Time::Nanos(_) => u64::try_from(event.time.micros()).unwrap_or(u64::MAX),
            Time::Ticks(ticks) => {
                self.ticks = true;
                ticks
            }
        };
        self.rows.push(Row {
            time,
            weight,
            cpu: event.cpu,
            event: self.events.insert_full(event.name.clone()).0 as u32,
            task: self.tasks.insert_full((event.pid, event.comm.clone())).0 as u32,
            stack: self.stacks.insert_full(self.keys.key(sides)).0 as u32,
        });
        Ok(())
    }

    /// Writes the page.
    pub fn write(mut self, look: &Look, notes: &[Note], out: &mut impl Write) -> Result {
        let nonce = nonce();
        // Events of several CPUs can be a little out of order; the page searches for times.
        self.rows.sort_by_key(|row| row.time);
        let mut data = GzEncoder::new(Vec::new(), Compression::default());
        self.encode(look, notes)?.write(&mut data)?;
        let data = data.finish()?;
        let mut rest = PAGE;
        while let Some((before, (name, behind))) = rest
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            out.write_all(before.as_bytes())?;
            match name {
                "csp" => out.write_all(policy(&nonce).as_bytes())?,
                "nonce" => out.write_all(nonce.as_bytes())?,
                "style" => out.write_all(STYLE.as_bytes())?,
                "script" => {
                    for script in SCRIPTS {
                        out.write_all(script.as_bytes())?;
                    }
                }
                _ => {
                    let mut encoder = EncoderWriter::new(&mut *out, &BASE64_STANDARD);
                    encoder.write_all(&data)?;
                    encoder.finish()?;
                }
            }
            rest = behind;
        }
        Ok(out.write_all(rest.as_bytes())?)
    }

    /// The data of the page.
    fn encode(&self, look: &Look, notes: &[Note]) -> Result<Columns> {
        let name = |frame: &Frame<'_>| match frame.place {
            Place::Unknown => unnamed(frame.ip, self.addresses),
            _ => frame.plain().to_string(),
        };
        let tree = Tree::new(self.stacks.iter(), &self.keys, self.loaded, name);
        if tree.nodes.len() > self.max_nodes {
            return Err(Error::Refused(format!(
                "the stacks have {}, and a page shows {} at most\n  \
                 hint: choose some events, as by --time or --event, or one side, by --kernel or --user",
                count_of(tree.nodes.len() as u64, "different frame"),
                self.max_nodes
            )));
        }
        let begin = self.rows.first().map_or(0, |row| row.time);
        let meta = json!({
            "title": look.title,
            "about": look.about,
            "unit": look.unit.title(),
            "begin": begin.to_string(),
            "ticks": self.ticks,
            "weighted": look.unit != Unit::Events,
            "notes": notes.iter().map(|note| &note.text[..]).collect::<Vec<_>>(),
        });
        let mut text = Vec::new();
        serde_json::to_writer(JsonText(&mut text), &meta).map_err(io::Error::from)?;
        let mut columns = Columns::default();
        columns.text(&text);
        columns.names(tree.names.iter());
        columns.tree(&tree.nodes);
        columns.strings(self.events.iter());
        columns.tasks(self.tasks.iter());
        let leaf = |stack: u32| tree.leaves[stack as usize];
        columns.rows(&self.rows, leaf, look.unit != Unit::Events);
        Ok(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ring::fields::Fields,
        trace::{StackRef, UserRef},
    };
    use base64::Engine;
    use flate2::read::GzDecoder;

    #[test]
    fn the_page_has_a_place_for_each_part() {
        let mut names: Vec<_> = PAGE
            .split('{')
            .skip(1)
            .filter_map(|rest| rest.split_once('}'))
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["csp", "data", "nonce", "nonce", "script", "style"]);
    }

    #[test]
    fn nonces_differ() {
        let (one, other) = (nonce(), nonce());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    fn add(builder: &mut Builder<'_>, time: Time, kernel: StackRef<'_>) -> Result {
        let event = Event {
            time,
            ..Event::example("event", Fields::default())
        };
        let user = UserRef::None;
        builder.event(&event, Sides { kernel, user })
    }

    fn write(builder: Builder<'_>) -> Result<Vec<u8>> {
        let look = Look {
            title: "title".to_owned(),
            about: String::new(),
            unit: Unit::Events,
        };
        let mut page = Vec::new();
        builder.write(&look, &[], &mut page)?;
        Ok(page)
    }

    /// The data of events at these times, as a text.
    fn data(times: &[Time]) -> String {
        let loaded = Loaded::default();
        let mut builder = Builder::new(&loaded, false);
        for time in times {
            add(&mut builder, *time, StackRef::None).unwrap();
        }
        let page = String::from_utf8(write(builder).unwrap()).unwrap();
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let data = BASE64_STANDARD.decode(data.split('<').next().unwrap());
        let mut bytes = Vec::new();
        let data = data.unwrap();
        GzDecoder::new(&data[..]).read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn events_are_in_the_order_of_time() {
        let nanos = data(&[Time::Nanos(2_000_000), Time::Nanos(1_234_567)]);
        assert!(nanos.contains(r#""begin":"1235""#), "{nanos}");
        assert!(nanos.contains(r#""ticks":false"#), "{nanos}");
        let ticks = data(&[Time::Ticks(7), Time::Ticks(8)]);
        assert!(ticks.contains(r#""begin":"7""#), "{ticks}");
        assert!(ticks.contains(r#""ticks":true"#), "{ticks}");
    }

    #[test]
    fn what_a_browser_cannot_hold_is_refused() {
        let table =
            "ffffffff81000000 t inner\nffffffff81000100 t other\nffffffff81000200 t outer\n\
                     ffffffff81000300 t end\n";
        let loaded = Loaded::named(table);
        let builder = Builder::new(&loaded, false);
        let limits = (builder.max_events, builder.max_nodes);
        assert_eq!(limits, (8_388_608, 4_194_304));
        // Two stacks with three frames, one of which they share.
        let [inner, other, outer] =
            [0x10, 0x110, 0x210].map(|offset| 0xffff_ffff_8100_0000 + offset);
        let stacks = [[inner, outer], [other, outer]];
        let filled = |max_events, max_nodes| {
            let mut builder = Builder {
                max_events,
                max_nodes,
                ..Builder::new(&loaded, false)
            };
            for stack in &stacks {
                add(&mut builder, Time::Nanos(1), StackRef::Whole(stack))?;
            }
            write(builder)
        };
        assert!(filled(2, 3).is_ok());
        let error = filled(1, 3).unwrap_err().to_string();
        assert!(error.contains("a page shows 1 events at most"), "{error}");
        let error = filled(2, 2).unwrap_err().to_string();
        let want = "the stacks have 3 different frames, and a page shows 2 at most";
        assert!(error.contains(want), "{error}");
    }

    #[test]
    fn the_policy_forbids_all_but_its_own() {
        let want =
            "default-src 'none'; script-src 'nonce-word'; style-src 'nonce-word'; img-src data:; \
                    base-uri 'none'; form-action 'none'";
        assert_eq!(policy("word"), want);
    }
}
