// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fault injection at a step, for tests; only with the feature `fault`, which is never shipped.

use super::{wait::Signals, Step};
use crate::{
    error::{Error, Result},
    output::say,
};
use clap::ValueEnum;
use std::{str::FromStr, thread::sleep, time::Duration};

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Kind {
    /// It fails.
    Fail,
    /// The step waits for a signal.
    Hold,
}

/// A fault: `step:kind`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    step: Step,
    kind: Kind,
}

impl Fault {
    /// Triggers the fault if this is its step.
    pub(super) fn at(self, step: Step, signals: &Signals) -> Result {
        if self.step != step {
            return Ok(());
        }
        let name = step.to_possible_value();
        let name = name.as_ref().map_or("?", |value| value.get_name());
        if self.kind == Kind::Fail {
            return Err(Error::Refused(format!("failed at {name}, as was asked")));
        }
        // A reader of this message may send its signal at once.
        let before = signals.count();
        say(format_args!("held at {name}"));
        while signals.count() == before {
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (step, kind) = text.split_once(':').ok_or("not STEP:KIND")?;
        Ok(Self {
            step: Step::from_str(step, false)?,
            kind: Kind::from_str(kind, false)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let fault = Fault {
            step: Step::Events,
            kind: Kind::Fail,
        };
        assert_eq!("events:fail".parse(), Ok(fault));
        assert!("events".parse::<Fault>().is_err());
        assert!("events:sing".parse::<Fault>().is_err());
        assert!("nowhere:fail".parse::<Fault>().is_err());
    }
}
