// SPDX-License-Identifier: MIT OR Apache-2.0

//! The library behind the `stackmap` command.

pub mod address;
pub mod capture;
pub mod cli;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod events;
pub mod export;
pub mod files;
pub mod filter;
pub mod flame;
pub mod folded;
pub mod gaps;
pub mod kernel;
pub mod notes;
pub mod output;
pub mod pairs;
pub mod record;
pub mod report;
pub mod resolve;
pub mod ring;
pub mod source;
pub mod stable;
pub mod stack_map_bin;
pub mod stacks;
pub mod stat;
pub mod symbols;
pub mod table;
pub mod tally;
pub mod top;
pub mod trace;
pub mod tracefs;
pub mod tree;
pub mod user;
pub mod view;
pub mod weight;

pub use error::{Error, Result};
