// SPDX-License-Identifier: MIT OR Apache-2.0

//! The hottest stacks of a running kernel: the model of the screen, without the drawing.

mod keys;
mod sample;
mod view;

pub use keys::Reaction;
pub use sample::{Sample, Sampler};
pub use view::draw;

use crate::symbols::frames;
use std::{cmp::Reverse, collections::HashMap, fmt, sync::Arc};

/// What stacks are sorted by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Sort {
    /// Events a second
    #[default]
    Rate,
    /// Events in all
    Total,
    /// Frames
    Depth,
    /// Ids
    Id,
}

impl Sort {
    /// The next one, round and round.
    pub fn next(self) -> Self {
        match self {
            Sort::Rate => Sort::Total,
            Sort::Total => Sort::Depth,
            Sort::Depth => Sort::Id,
            Sort::Id => Sort::Rate,
        }
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sort::Rate => "rate",
            Sort::Total => "total",
            Sort::Depth => "depth",
            Sort::Id => "id",
        })
    }
}

/// A stack, as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: u32,
    /// How many events carry it.
    pub total: u32,
    /// How many more in a second.
    pub rate: f64,
    /// Its frames, innermost first.
    pub frames: Arc<[String]>,
}

impl Row {
    /// Whether one of the frames has `filter`, which is in lower case, in its name.
    fn matches(&self, filter: &str) -> bool {
        let mut frames = self.frames.iter();
        filter.is_empty() || frames.any(|frame| frame.to_lowercase().contains(filter))
    }

    /// The frames, each with its number, without those of tracing itself unless `plumbing` is
    /// wanted.
    pub fn visible(&self, plumbing: bool) -> impl Iterator<Item = (usize, &str)> {
        let parts = self.frames.iter().map(|frame| Some(frames::parts(frame)));
        let hidden = match plumbing {
            true => 0,
            false => frames::nr_plumbing(parts),
        };
        let frames = self.frames.iter().enumerate().skip(hidden);
        frames.map(|(depth, frame)| (depth, &frame[..]))
    }
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct Model {
    /// The last sample.
    pub sample: Sample,
    /// The order.
    pub sort: Sort,
    /// What stacks must have in a name.
    pub filter: String,
    /// Whether the filter is being typed.
    pub typing: bool,
    /// Whether nothing new is shown.
    pub paused: bool,
    /// Whether frames of tracing itself are shown.
    pub plumbing: bool,
    /// The stack that is pointed at.
    pub selected: Option<u32>,
    /// How far the frames of that are scrolled.
    pub scroll: u16,
}

impl Model {
    /// The stacks that pass the filter, in order.
    pub fn rows(&self) -> Vec<&Row> {
        let filter = self.filter.to_lowercase();
        let rows = self.sample.rows.iter().filter(|row| row.matches(&filter));
        let mut rows: Vec<_> = rows.collect();
        match self.sort {
            Sort::Rate => rows.sort_by(|a, b| {
                let rate = b.rate.total_cmp(&a.rate);
                rate.then(b.total.cmp(&a.total)).then(a.id.cmp(&b.id))
            }),
            Sort::Total => rows.sort_by_key(|row| (Reverse(row.total), row.id)),
            Sort::Depth => rows.sort_by_key(|row| (Reverse(row.frames.len()), row.id)),
            Sort::Id => rows.sort_by_key(|row| row.id),
        }
        rows
    }

    /// Takes a new sample.
    pub fn update(&mut self, sample: Sample) {
        if !self.paused {
            self.sample = sample;
        }
    }

    /// Where the stack that is pointed at is among `rows`; the first one if it is not.
    pub fn selected_index(&self, rows: &[&Row]) -> usize {
        let index = rows.iter().position(|row| Some(row.id) == self.selected);
        index.unwrap_or(0)
    }

    /// Points `by` rows further down, or up.
    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let index = self.selected_index(&rows).saturating_add_signed(by);
        let row = rows.get(index).or(rows.last());
        self.selected = row.map(|row| row.id);
        self.scroll = 0;
    }
}

/// Names of stacks that were seen before.
type Names = HashMap<u32, Arc<[String]>>;

#[cfg(test)]
mod tests;
