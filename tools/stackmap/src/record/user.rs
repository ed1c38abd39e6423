// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a capture has of user stacks, and what names their frames when the processes are gone.

use crate::{
    capture::member,
    error::Result,
    stack_map_bin::{self, Order},
    stacks::Stacks,
    tracefs::Tracefs,
    user::{
        binaries::Binaries,
        live,
        segments::{segments_of, Recorded},
        words,
    },
};
use std::{collections::BTreeSet, time::Duration};

/// The user side of a recording.
pub(super) struct UserSide {
    stacks: Stacks,
    members: Vec<(String, Vec<u8>)>,
}

impl UserSide {
    /// Reads it, if the module has user stacks. `stat_before`: the counters before the recording; `begun`:
    /// when that was, since the system was started.
    pub(super) fn read(
        tracefs: &Tracefs,
        stat_before: &str,
        begun: Duration,
    ) -> Result<Option<Self>> {
        let Some(stacks) = tracefs.user_stacks()? else {
            return Ok(None);
        };
        // A file that is seen later has no frame in the stacks.
        let binaries = tracefs.read_bytes("stack_map_binaries")?;
        let mut bin = Vec::new();
        stack_map_bin::write_user(&mut bin, Order::NATIVE, stacks.load_id(), stacks.iter())?;
        let mut members = vec![
            (member::STACK_MAP_USER_BIN.to_owned(), bin),
            (member::BINARIES.to_owned(), binaries.clone()),
            (
                member::USER_STAT.to_owned(),
                tracefs.read("stack_map_user_stat")?.into_bytes(),
            ),
            (
                member::USER_STAT_BEFORE.to_owned(),
                stat_before.as_bytes().to_vec(),
            ),
        ];
        let segments = segments(&stacks, &Binaries::parse(&binaries));
        let segments = serde_json::to_vec(&segments).map_err(std::io::Error::from)?;
        members.push((member::SEGMENTS.to_owned(), segments));
        let processes = stacks.iter().flat_map(words::processes).collect();
        let maps = live::perf_maps(&processes, Some(begun));
        members.extend(maps.map(|(process, map)| (member::perf_map(process), map)));
        members.extend(live::vdso().map(|image| (member::VDSO.to_owned(), image)));
        Ok(Some(Self { stacks, members }))
    }

    /// How many stacks there are.
    pub(super) fn nr_stacks(&self) -> usize {
        self.stacks.len()
    }

    /// How many bytes all of it has.
    pub(super) fn len(&self) -> u64 {
        let lens = self.members.iter().map(|(_, content)| content.len() as u64);
        lens.sum()
    }

    /// What is written of it.
    pub(super) fn into_members(self) -> Vec<(String, Vec<u8>)> {
        self.members
    }
}

/// Where the files that stacks have frames in are loaded: what a file of debug information alone does not
/// tell.
fn segments(stacks: &Stacks, binaries: &Binaries) -> Recorded {
    let frames = stacks.iter().flat_map(|stack| words::frames(stack.ips).0);
    let indices: BTreeSet<_> = frames
        .filter_map(|at| match at {
            words::At::File { index, .. } => Some(index),
            words::At::Address { .. } => None,
        })
        .collect();
    let segments = indices
        .into_iter()
        .filter_map(|index| Some((index, segments_of(binaries.get(index)?)?)));
    Recorded::ByIndex(segments.collect())
}
