// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the program: what it prints, writes and refuses.

mod corpus;
mod diff;
mod filters;
mod hostile;
mod inputs;
mod made;
mod packets;
mod pairs;
mod parquet;
mod perfetto;
mod record;
mod sessions;
mod shown;
mod stable;
mod tool;
mod totals;
mod trace_dat;
mod truth;
mod user;
mod view;
