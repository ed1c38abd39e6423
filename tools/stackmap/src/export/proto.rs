// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages of `profile.proto`, as far as they are written; the numbers are those of
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.
//!
//! Numbers of texts are indices into [`Profile::string_table`].

use prost::Message;

/// A profile.
#[derive(Clone, Message, PartialEq)]
pub struct Profile {
    /// What the values of each sample are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// What was seen.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// The kernel and its modules.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Addresses.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All texts; the first one is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When, in nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long, in nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What lies between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Texts for people.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The name of the value that is shown first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// What a value is.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct ValueType {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack, and how often it was seen.
#[derive(Clone, Message, PartialEq)]
pub struct Sample {
    /// The frames, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// The values.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known of it.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// Something that is known of a sample.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Label {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// The text.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// Or the number.
    #[prost(int64, tag = "3")]
    pub num: i64,
}

/// Something that code is loaded from.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Mapping {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Where it begins.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// Where it ends.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Its name.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Its build id.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether functions are known.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Whether files of source code are known.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Whether lines of source code are known.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Whether inlined functions are known.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// An address.
#[derive(Clone, Message, PartialEq)]
pub struct Location {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The number of the mapping that it is in.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The address.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// What is there; inlined functions first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A line of a function.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Line {
    /// The number of the function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// The line of source code.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Function {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name, as the linker has it.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// The file of source code.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
