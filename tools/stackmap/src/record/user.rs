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
    /// Reads it, if the module has user stacks. `begun`: when the recording began, since the system was started.
    pub(super) fn read(tracefs: &Tracefs, begun: Duration) -> Result<Option<Self>> {
        let Some(stacks) = tracefs.user_stacks()? else {
            return Ok(None);
        };
        // A file that is seen later has no frame in the stacks.
        let binaries = tracefs.read_bytes("stack_map_binaries")?;
        let mut bin = Vec::new();
        stack_map_bin::write_user(&mut bin, Order::Little, stacks.load_id(), stacks.iter())?;
        let mut members = vec![
            (member::STACK_MAP_USER_BIN.to_owned(), bin),
            (member::BINARIES.to_owned(), binaries.clone()),
            (
                member::USER_STAT.to_owned(),
                tracefs.read("stack_map_user_stat")?.into_bytes(),
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

    /// The same without what may tell whose files these are: directories that are not the system's, and
    /// names of generated code, which have paths of scripts in them.
    pub(super) fn without_paths(mut self) -> Self {
        self.members.retain(|(name, _)| !member::is_perf_map(name));
        for (name, content) in &mut self.members {
            if name == member::BINARIES {
                *content = names_only(content);
            }
        }
        self
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
    pub(super) fn members(&self) -> &[(String, Vec<u8>)] {
        &self.members
    }
}

/// Directories of the system: what is in them is the same on other machines.
const SYSTEM: [&[u8]; 5] = [b"/usr/", b"/bin/", b"/sbin/", b"/lib/", b"/lib64/"];
/// What the system has for what is the user's own.
const OWN: [&[u8]; 2] = [b"/usr/local/", b"/usr/home/"];

/// The lines of `stack_map_binaries`, where paths that are not the system's are `/` and the name of the
/// file.
fn names_only(binaries: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(binaries.len());
    for line in binaries.split_inclusive(|byte| *byte == b'\n') {
        // The path is the sixth word; a blank in it is escaped.
        let is_blank = |(_, byte): &(usize, &u8)| **byte == b' ';
        let blank = line.iter().enumerate().filter(is_blank).nth(4);
        let (head, path) = line.split_at(blank.map_or(0, |(at, _)| at + 1));
        let begins = |with: &&[u8]| path.starts_with(with);
        kept.extend_from_slice(head);
        match memchr::memrchr(b'/', path) {
            Some(last) if !SYSTEM.iter().any(begins) || OWN.iter().any(begins) => {
                kept.extend_from_slice(&path[last..]);
            }
            _ => kept.extend_from_slice(path),
        }
    }
    kept
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
    Recorded::new(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_system_keeps_its_directories() {
        for (path, want) in [
            ("/usr/bin/perl", "/usr/bin/perl"),
            ("/lib64/ld.so (deleted)", "/lib64/ld.so (deleted)"),
            ("/home/ann/bin/x", "/x"),
            ("/home/ann\\040b/a\\012b (deleted)", "/a\\012b (deleted)"),
            ("/usr/local/ann/x", "/x"),
            ("/usr/home/ann/x", "/x"),
            ("/opt/ann/usr/bin/x", "/x"),
            ("/usrann/x", "/x"),
            ("/memfd:x", "/memfd:x"),
            ("x", "x"),
            ("", ""),
        ] {
            let head = "2 00ab 0:1 5 20 ";
            let lines = format!("{head}{path}\n{head}/usr/bin/y\n");
            let kept = String::from_utf8(names_only(lines.as_bytes())).unwrap();
            assert_eq!(kept, format!("{head}{want}\n{head}/usr/bin/y\n"));
        }
        // What is no line stays none.
        for odd in ["", "\n", "a b\n", "1 2 3 4 /home/ann"] {
            assert!(Binaries::parse(names_only(odd.as_bytes()))
                .iter()
                .next()
                .is_none());
        }
    }

    #[test]
    fn perf_maps_are_left_out() {
        let process = words::Process { tgid: 12, start: 3 };
        let member = |name: &str| (name.to_owned(), b"2 - 0:1 5 20 /home/ann/x\n".to_vec());
        let side = UserSide {
            stacks: Stacks::default(),
            members: vec![
                member(&member::perf_map(process)),
                member(member::BINARIES),
                member(member::SEGMENTS),
            ],
        };
        let side = side.without_paths();
        let members = side.members();
        let names: Vec<_> = members.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, [member::BINARIES, member::SEGMENTS]);
        assert_eq!(members[0].1, b"2 - 0:1 5 20 /x\n");
    }
}
