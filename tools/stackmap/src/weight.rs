// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is added up of events: how many there are, or what a field of them says.

use crate::{address::may_be_address, notes::count_of, output::safe, trace::Event};
use std::collections::BTreeMap;

/// The most events whose fields are named.
const MAX_LISTED: usize = 12;

/// What each event adds to a sum.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Weight {
    /// 1.
    #[default]
    One,
    /// The number in the field of this name.
    Field(String),
}

/// Why an event has no weight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Weightless {
    /// It has no such field, or no number in it.
    NoNumber,
    /// The number is negative.
    Negative,
    /// The number may be an address of the kernel: a sum of these says nothing, and part of it where the
    /// kernel is.
    Address,
}

impl Weight {
    /// What an event adds.
    pub fn of(&self, event: &Event) -> Result<u64, Weightless> {
        match self {
            Weight::One => Ok(1),
            Weight::Field(name) => match event.fields.signed(name) {
                Some(number) => match u64::try_from(number) {
                    Ok(number) if may_be_address(number) => Err(Weightless::Address),
                    Ok(number) => Ok(number),
                    Err(_) => Err(Weightless::Negative),
                },
                None => Err(Weightless::NoNumber),
            },
        }
    }

    /// What sums are in.
    pub fn unit(&self) -> Unit {
        match self {
            Weight::One => Unit::Events,
            Weight::Field(name) => Unit::Field(name.clone()),
        }
    }
}

/// What a sum is in.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Unit {
    /// Events.
    #[default]
    Events,
    /// What this field is in, which the kernel does not say.
    Field(String),
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanos,
}

impl Unit {
    /// What a column of such sums is called.
    pub fn title(&self) -> &str {
        match self {
            Unit::Events => "events",
            Unit::Field(name) => name,
            Unit::Bytes => "bytes",
            Unit::Nanos => "time",
        }
    }

    /// A sum in a column of its own.
    pub fn cell(&self, sum: u64) -> String {
        match self {
            Unit::Nanos => duration(sum),
            _ => sum.to_string(),
        }
    }

    /// What folded stacks are counted in: times in microseconds.
    pub fn of_folded(&self) -> &str {
        match self {
            Unit::Nanos => "us",
            _ => self.title(),
        }
    }

    /// A sum in a folded stack.
    pub fn folded(&self, sum: u64) -> u64 {
        match self {
            Unit::Nanos => sum / 1_000,
            _ => sum,
        }
    }

    /// A sum in a sentence.
    pub fn text(&self, sum: u64) -> String {
        match self {
            Unit::Events => count_of(sum, "event"),
            Unit::Field(name) => format!("{sum} {}", safe(name)),
            Unit::Bytes => count_of(sum, "byte"),
            Unit::Nanos => duration(sum),
        }
    }
}

/// A time for people.
pub fn duration(nanos: u64) -> String {
    match nanos {
        0 => "0".to_owned(),
        1..1_000 => format!("{nanos} ns"),
        // From here on, 1000.0 would be shown.
        1_000..999_950 => format!("{:.1} us", nanos as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.3} s", nanos as f64 / 1e9),
    }
}

/// Events that are not added up, as they have no weight.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Unweighed {
    /// Those that have no such field, or no number in it.
    pub no_number: u64,
    /// Those with a negative number.
    pub negative: u64,
    /// Those with a number that may be an address of the kernel.
    pub address: u64,
    /// Those that are added up.
    weighed: u64,
    /// Of events, as long as none is added up, the fields with a number.
    seen: BTreeMap<String, String>,
}

impl Unweighed {
    /// Counts an event, and says whether it is added up.
    pub fn count(&mut self, weight: &Weight, event: &Event) -> bool {
        let why = match weight.of(event) {
            Ok(_) => {
                self.weighed += 1;
                return true;
            }
            Err(why) => why,
        };
        match why {
            Weightless::NoNumber => self.no_number += 1,
            Weightless::Negative => self.negative += 1,
            Weightless::Address => self.address += 1,
        }
        if self.weighed == 0
            && self.seen.len() <= MAX_LISTED
            && !self.seen.contains_key(&*event.name)
        {
            let fields = event.fields.numbers().join(", ");
            self.seen.insert(event.name.to_string(), fields);
        }
        false
    }

    /// Whether there were events, and none is added up.
    pub fn is_all(&self) -> bool {
        self.weighed == 0 && self.no_number + self.negative + self.address > 0
    }

    /// What there is to say.
    pub fn lines(&self, weight: &Weight) -> Vec<String> {
        let Weight::Field(name) = weight else {
            return Vec::new();
        };
        let name = safe(name);
        let mut lines = Vec::new();
        let mut say = |count: u64, have: &str, has: &str| {
            let verb = if count == 1 { has } else { have };
            if count > 0 {
                let events = count_of(count, "event");
                lines.push(format!("not counted: {events} that {verb} {name}"));
            }
        };
        say(self.no_number, "have no number", "has no number");
        say(self.negative, "have a negative", "has a negative");
        let what = "an address of the kernel as";
        say(
            self.address,
            &format!("have {what}"),
            &format!("has {what}"),
        );
        if self.is_all() {
            let seen = self.seen.iter().take(MAX_LISTED);
            let of = |(event, fields): (&String, &String)| match &fields[..] {
                "" => format!("{} has none", safe(event)),
                fields => format!("{} has {}", safe(event), safe(fields)),
            };
            let seen: Vec<_> = seen.map(of).collect();
            lines.push(format!("of fields with a number, {}", seen.join("; ")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (nanos, text) in [
            (0, "0"),
            (999, "999 ns"),
            (1_500, "1.5 us"),
            (999_949, "999.9 us"),
            (999_950, "1.0 ms"),
            (1_500_000, "1.5 ms"),
            (999_949_999, "999.9 ms"),
            (999_999_999, "1.000 s"),
            (1_234_567_890, "1.235 s"),
        ] {
            assert_eq!(duration(nanos), text);
        }
    }

    #[test]
    fn sums_have_their_unit() {
        let field = Unit::Field("len\n".to_owned());
        for (unit, cell, text) in [
            (&Unit::Events, "1500", "1500 events"),
            (&field, "1500", "1500 len\u{fffd}"),
            (&Unit::Bytes, "1500", "1500 bytes"),
            (&Unit::Nanos, "1.5 us", "1.5 us"),
        ] {
            assert_eq!((&unit.cell(1500)[..], &unit.text(1500)[..]), (cell, text));
        }
        assert_eq!(Unit::Bytes.text(1), "1 byte");
    }

    #[test]
    fn fields_of_some_events_are_listed() {
        use crate::ring::fields::tests::fields;
        let description = "\tfield:s64 x;\toffset:8;\tsize:8;\tsigned:1;\n";
        let event = |name: String, number: i64| {
            Event::example(&name, fields(description, "\"\"", &number.to_le_bytes()))
        };
        let mut unweighed = Unweighed::default();
        assert!(!unweighed.is_all());
        let weight = Weight::Field("x".to_owned());
        for number in 0..20 {
            assert!(!unweighed.count(&weight, &event(format!("e{number:02}\n"), -1)));
        }
        assert!(!unweighed.count(&Weight::Field("y".to_owned()), &event("e".to_owned(), 5)));
        assert!(unweighed.is_all());
        let lines = unweighed.lines(&weight);
        assert_eq!(lines[0], "not counted: 1 event that has no number x");
        assert_eq!(lines[1], "not counted: 20 events that have a negative x");
        let listed = lines[2].strip_prefix("of fields with a number, ").unwrap();
        let listed: Vec<_> = listed.split("; ").collect();
        assert_eq!(listed.len(), MAX_LISTED);
        assert_eq!(listed[0], "e00\u{fffd} has x");
        assert_eq!(
            weight.of(&event("e".to_owned(), i64::MAX)),
            Ok(i64::MAX as u64)
        );
        assert!(unweighed.count(&weight, &event("e".to_owned(), 0)));
        assert!(!unweighed.is_all());
        assert_eq!(unweighed.lines(&weight).len(), 2);
    }
}
