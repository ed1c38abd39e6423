// SPDX-License-Identifier: MIT OR Apache-2.0

//! The steps of a recording.

/// What was done last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "fault", derive(clap::ValueEnum))]
pub enum Step {
    /// The process that guards tracefs is running.
    Guarded,
    /// Tracing is off.
    Stopped,
    /// The buffer is empty.
    Emptied,
    /// Options are set.
    Options,
    /// Functions are set.
    Functions,
    /// Events are set.
    Events,
    /// Tracing is on.
    Running,
    /// Tracing is off again.
    Ended,
    /// Room for the capture is about to be taken; once more if that has failed.
    Saving,
    /// The buffer was read, and the capture is about to be written; once more if that has failed.
    Taken,
    /// The capture is at its path.
    Written,
    /// Tracefs is as it was.
    Restored,
}
