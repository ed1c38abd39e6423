// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages of OpenTelemetry's `profiles.proto`, as far as they are written; the numbers are those
//! of <https://github.com/open-telemetry/opentelemetry-proto/tree/v1.10.0>, where they are alpha: later
//! versions may change them.
//!
//! Numbers of entries are indices into the tables of [`Dictionary`], whose first entries are empty.

use prost::{Message, Oneof};

/// Profiles, and what they are made of. The request that a collector takes has the same form.
#[derive(Clone, Message, PartialEq)]
pub struct ProfilesData {
    /// Profiles by where they were recorded.
    #[prost(message, repeated, tag = "1")]
    pub resource_profiles: Vec<ResourceProfiles>,
    /// What they are made of.
    #[prost(message, optional, tag = "2")]
    pub dictionary: Option<Dictionary>,
}

/// What profiles are made of.
#[derive(Clone, Message, PartialEq)]
pub struct Dictionary {
    /// Files, the kernel and its modules.
    #[prost(message, repeated, tag = "1")]
    pub mapping_table: Vec<Mapping>,
    /// Addresses.
    #[prost(message, repeated, tag = "2")]
    pub location_table: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "3")]
    pub function_table: Vec<Function>,
    /// Links to spans: none.
    #[prost(message, repeated, tag = "4")]
    pub link_table: Vec<Link>,
    /// All texts.
    #[prost(string, repeated, tag = "5")]
    pub string_table: Vec<String>,
    /// What else is known of samples, mappings and locations.
    #[prost(message, repeated, tag = "6")]
    pub attribute_table: Vec<Attribute>,
    /// Stacks.
    #[prost(message, repeated, tag = "7")]
    pub stack_table: Vec<Stack>,
}

/// Profiles of one machine.
#[derive(Clone, Message, PartialEq)]
pub struct ResourceProfiles {
    /// The machine.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Profiles by what recorded them.
    #[prost(message, repeated, tag = "2")]
    pub scope_profiles: Vec<ScopeProfiles>,
}

/// A machine.
#[derive(Clone, Message, PartialEq)]
pub struct Resource {
    /// What is known of it.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Something that is known.
#[derive(Clone, Message, PartialEq)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What it is.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value.
#[derive(Clone, Message, PartialEq)]
pub struct AnyValue {
    /// What it is.
    #[prost(oneof = "Value", tags = "1")]
    pub value: Option<Value>,
}

/// What a value is.
#[derive(Clone, Oneof, PartialEq)]
pub enum Value {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
}

/// Profiles of one program.
#[derive(Clone, Message, PartialEq)]
pub struct ScopeProfiles {
    /// The program that recorded them.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// The profiles.
    #[prost(message, repeated, tag = "2")]
    pub profiles: Vec<Profile>,
}

/// A program that records.
#[derive(Clone, Message, PartialEq)]
pub struct Scope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A profile.
#[derive(Clone, Message, PartialEq)]
pub struct Profile {
    /// What its values are.
    #[prost(message, optional, tag = "1")]
    pub sample_type: Option<ValueType>,
    /// What was seen.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<Sample>,
    /// When, in nanoseconds since 1970.
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    /// How long, in nanoseconds.
    #[prost(uint64, tag = "4")]
    pub duration_nano: u64,
    /// What lies between two samples.
    #[prost(message, optional, tag = "5")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "6")]
    pub period: i64,
    /// What else is known of it.
    #[prost(int32, repeated, tag = "11")]
    pub attribute_indices: Vec<i32>,
}

/// What a value is.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct ValueType {
    /// Its name.
    #[prost(int32, tag = "1")]
    pub type_strindex: i32,
    /// Its unit.
    #[prost(int32, tag = "2")]
    pub unit_strindex: i32,
}

/// A stack, and how often it was seen.
#[derive(Clone, Message, PartialEq)]
pub struct Sample {
    /// The stack.
    #[prost(int32, tag = "1")]
    pub stack_index: i32,
    /// What else is known of it.
    #[prost(int32, repeated, tag = "2")]
    pub attribute_indices: Vec<i32>,
    /// The value.
    #[prost(int64, repeated, tag = "4")]
    pub values: Vec<i64>,
}

/// Something that code is loaded from.
#[derive(Clone, Message, PartialEq)]
pub struct Mapping {
    /// Where it begins.
    #[prost(uint64, tag = "1")]
    pub memory_start: u64,
    /// Where it ends.
    #[prost(uint64, tag = "2")]
    pub memory_limit: u64,
    /// Its name.
    #[prost(int32, tag = "4")]
    pub filename_strindex: i32,
    /// What else is known of it: its build id.
    #[prost(int32, repeated, tag = "5")]
    pub attribute_indices: Vec<i32>,
}

/// A stack.
#[derive(Clone, Message, PartialEq)]
pub struct Stack {
    /// The frames, innermost first.
    #[prost(int32, repeated, tag = "1")]
    pub location_indices: Vec<i32>,
}

/// An address.
#[derive(Clone, Message, PartialEq)]
pub struct Location {
    /// The mapping that it is in.
    #[prost(int32, tag = "1")]
    pub mapping_index: i32,
    /// The address.
    #[prost(uint64, tag = "2")]
    pub address: u64,
    /// What is there; inlined functions first.
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<Line>,
    /// What else is known of it: whose code it is.
    #[prost(int32, repeated, tag = "4")]
    pub attribute_indices: Vec<i32>,
}

/// A line of a function.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Line {
    /// The function.
    #[prost(int32, tag = "1")]
    pub function_index: i32,
    /// The line of source code.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Function {
    /// Its name.
    #[prost(int32, tag = "1")]
    pub name_strindex: i32,
    /// The file of source code.
    #[prost(int32, tag = "3")]
    pub filename_strindex: i32,
}

/// A link to a span.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Link {}

/// Something that is known, by the table of texts.
#[derive(Clone, Message, PartialEq)]
pub struct Attribute {
    /// Its name.
    #[prost(int32, tag = "1")]
    pub key_strindex: i32,
    /// What it is.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}
