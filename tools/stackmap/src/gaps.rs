// SPDX-License-Identifier: MIT OR Apache-2.0

//! The times of which records are missing.

use crate::{
    error::Result,
    ring::{page::Missed, stream::Pages},
};
use std::{collections::HashMap, io::Read};

/// Times from which records are missing on a CPU.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Gaps {
    /// From the last record before to the first one after, in the order of their ends. Each begins no later than
    /// those after it.
    gaps: Vec<(u64, u64)>,
}

impl Gaps {
    /// Finds them in the pages of a ring buffer.
    pub fn of(mut pages: Pages<impl Read>) -> Result<Self> {
        let mut gaps = Vec::new();
        let mut last = HashMap::new();
        while let Some((cpu, mut cursor)) = pages.next_page()? {
            let seen = last.entry(cpu).or_insert(0);
            if cursor.missed != Missed::None {
                gaps.push((*seen, cursor.time()));
            }
            *seen = cursor.time();
            // What is damaged is found again, and counted, when the events are read.
            while let Ok(Some(record)) = cursor.next_record() {
                *seen = record.time;
            }
        }
        Ok(Self::new(gaps))
    }

    pub(crate) fn new(mut gaps: Vec<(u64, u64)>) -> Self {
        gaps.sort_unstable_by_key(|(_, until)| *until);
        let mut first = u64::MAX;
        for (from, _) in gaps.iter_mut().rev() {
            first = first.min(*from);
            *from = first;
        }
        Self { gaps }
    }

    /// Whether records are missing between two times.
    pub fn overlap(&self, since: u64, end: u64) -> bool {
        let behind = self.gaps.partition_point(|(_, until)| *until <= since);
        self.gaps.get(behind).is_some_and(|(from, _)| *from < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{
        page::tests::{layout, page, record},
        stream::write_page,
    };

    #[test]
    fn gaps_are_before_the_pages_that_say_so() {
        const MISSED: u32 = 1 << 31;
        let mut bytes = Vec::new();
        for (cpu, time, flags) in [
            (0, 10, MISSED),
            (1, 12, 0),
            (0, 40, 0),
            (1, 60, MISSED),
            (0, 70, MISSED),
        ] {
            let data = [record(0, &[0; 4]), record(5, &[0; 4])].concat();
            let page = page(time, flags, &data);
            write_page(&mut bytes, cpu, &page).unwrap();
        }
        let pages = Pages::new(&bytes[..], layout(), "input");
        let want = vec![(0, 10), (17, 60), (45, 70)];
        assert_eq!(Gaps::of(pages).unwrap(), Gaps::new(want));
    }

    #[test]
    fn gaps_of_cpus_overlap_with_waits() {
        let gaps = Gaps::new(vec![(50, 60), (0, 10), (20, 30), (5, 55)]);
        for (since, end, overlaps) in [
            (0, 1, true),
            (9, 11, true),
            (10, 12, true),
            (55, 58, true),
            (59, 90, true),
            (60, 90, false),
        ] {
            assert_eq!(gaps.overlap(since, end), overlaps, "{since} to {end}");
        }
        let gaps = Gaps::new(vec![(0, 10), (20, 30)]);
        for (since, end, overlaps) in [
            (10, 20, false),
            (10, 21, true),
            (29, 31, true),
            (30, 99, false),
        ] {
            assert_eq!(gaps.overlap(since, end), overlaps, "{since} to {end}");
        }
        assert!(!Gaps::default().overlap(0, u64::MAX));
    }
}
