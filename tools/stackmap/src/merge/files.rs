// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files and processes that user stacks of all captures have frames in.

use crate::user::{
    binaries::{Binaries, Binary, MAX_FILES, VDSO, VDSO32},
    segments::{Recorded, Segment},
    words::{Process, Word, MAX_INDEX},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
};

/// What tells one file from another.
#[derive(Debug, Eq, Hash, PartialEq)]
enum Key {
    /// A build, whatever the host: its build-id, size and path.
    Build(String, u64, PathBuf),
    /// A file without a build-id, or of which nothing is known: the number of the capture, and of the
    /// file in it.
    Of(u32, u32),
    /// A vDSO, by its image.
    Vdso(Vec<u8>),
}

/// All files and processes.
#[derive(Debug, Default)]
pub(super) struct Files {
    indices: HashMap<Key, u32>,
    next: u32,
    lines: Vec<u8>,
    segments: BTreeMap<u32, Vec<Segment>>,
    processes: HashSet<Process>,
    /// By thread group, the one that last got another number.
    renamed: HashMap<u32, Process>,
    /// How many files there was no room for: their frames have no names.
    pub(super) nr_left_out: u64,
    /// The images of vDSOs that have not been written yet.
    pub(super) vdsos: Vec<(u32, Vec<u8>)>,
}

/// Those of one capture.
pub(super) struct FilesOf<'a> {
    pub(super) capture: u32,
    pub(super) binaries: &'a Binaries,
    pub(super) segments: &'a Recorded,
    /// The images of vDSOs, by index.
    pub(super) vdsos: HashMap<u32, Vec<u8>>,
    /// What files and processes of it have become.
    pub(super) indices: HashMap<u32, u32>,
    pub(super) processes: HashMap<Process, Process>,
}

impl Files {
    /// The words of a stack, with the files and processes of all captures.
    pub(super) fn words(&mut self, of: &mut FilesOf<'_>, words: &[u64]) -> Vec<u64> {
        let words = words.iter().map(|word| match Word::new(*word) {
            Word::File { index, offset } => Word::file(self.index(of, index), offset),
            Word::Process(process) => Word::process(self.process(of, process)),
            Word::Address(_) | Word::End(_) => *word,
        });
        words.collect()
    }

    fn index(&mut self, of: &mut FilesOf<'_>, old: u32) -> u32 {
        if let Some(index) = of.indices.get(&old) {
            return *index;
        }
        let binary = of.binaries.get(old);
        let key = match (binary, of.vdsos.get(&old)) {
            (_, Some(image)) => Key::Vdso(image.clone()),
            (
                Some(Binary {
                    build_id: Some(id),
                    size,
                    path,
                    ..
                }),
                _,
            ) => Key::Build(id.clone(), *size, path.clone()),
            _ => Key::Of(of.capture, old),
        };
        let new = match self.indices.get(&key) {
            Some(index) => *index,
            None => self.add(of, old, key),
        };
        of.indices.insert(old, new);
        new
    }

    fn add(&mut self, of: &FilesOf<'_>, old: u32, key: Key) -> u32 {
        // The first two are vDSOs everywhere.
        self.next = self.next.max(VDSO32 + 1);
        let image = of.vdsos.get(&old);
        let index = match old {
            // One without an image has no names, whichever it is.
            VDSO | VDSO32 if image.is_none() => old,
            _ => {
                let index = self.next;
                // Of those without names, many may share the last one.
                self.next = MAX_INDEX.min(index + 1);
                index
            }
        };
        let build_id = of
            .binaries
            .get(old)
            .and_then(|binary| binary.build_id.as_deref());
        let line = match (image, of.binaries.get(old)) {
            (Some(_), _) => Some(Binary::vdso().line(index)),
            (None, binary) => binary.map(|binary| binary.line(index)),
        };
        if index as usize >= MAX_FILES {
            self.nr_left_out += 1;
        } else {
            self.lines.extend(line.unwrap_or_default());
            if let Some(segments) = of.segments.get(old, build_id) {
                self.segments.insert(index, segments.clone());
            }
            self.vdsos.extend(image.map(|image| (index, image.clone())));
        }
        self.indices.insert(key, index);
        index
    }

    /// A process of one host may have the number of one of another.
    fn process(&mut self, of: &mut FilesOf<'_>, old: Process) -> Process {
        let (processes, renamed) = (&mut self.processes, &mut self.renamed);
        *of.processes.entry(old).or_insert_with(|| {
            if processes.insert(old) {
                return old;
            }
            // Not from the old one on: there may be many in a row, and many such rows.
            let new = renamed.entry(old.tgid).or_insert(old);
            while !processes.insert(*new) {
                *new = new.next();
            }
            *new
        })
    }

    /// The files, as `stack_map_binaries` has them.
    pub(super) fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Where they are loaded.
    pub(super) fn segments(self) -> Recorded {
        Recorded::ByIndex(self.segments.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(capture: u32, binaries: &'a Binaries, segments: &'a Recorded) -> FilesOf<'a> {
        FilesOf {
            capture,
            binaries,
            segments,
            vdsos: HashMap::new(),
            indices: HashMap::new(),
            processes: HashMap::new(),
        }
    }

    #[test]
    fn processes_of_two_captures_differ_however_many_there_are() {
        let (binaries, segments) = Default::default();
        let mut files = Files::default();
        let mut all = HashSet::new();
        // A step for each one that was there before would take minutes.
        let number = 200_000;
        for capture in 0..2 {
            let mut of = of(capture, &binaries, &segments);
            for start in 0..number {
                let word = Word::process(Process { tgid: 1, start });
                let words = files.words(&mut of, &[word, word]);
                assert_eq!(words[0], words[1]);
                all.insert(words[0]);
            }
        }
        assert_eq!(all.len(), 2 * number as usize);
    }

    #[test]
    fn files_of_two_captures_are_one_if_they_are_of_one_build() {
        let (empty, segments) = Default::default();
        let mut files = Files::default();
        let mut index = |text: &str| {
            let binaries = Binaries::parse(text);
            let mut of = of(files.next, &binaries, &segments);
            let words = files.words(&mut of, &[Word::file(2, 8)]);
            Word::new(words[0])
        };
        let lines = [
            "2 abcd 8:1 7 100 /bin/a\n",
            "2 abcd 9:2 8 100 /bin/a\n",
            "2 abcd 8:1 7 101 /bin/a\n",
            "2 abcd 8:1 7 100 /bin/b\n",
            "2 abce 8:1 7 100 /bin/a\n",
            "2 - 8:1 7 100 /bin/a\n",
            "2 - 8:1 7 100 /bin/a\n",
        ];
        let want = [2, 2, 3, 4, 5, 6, 7].map(|index| Word::File { index, offset: 8 });
        assert_eq!(lines.map(&mut index), want);
        // One of which nothing is known.
        let words = files.words(&mut of(9, &empty, &segments), &[Word::file(2, 8)]);
        assert_eq!(words, [Word::file(8, 8)]);
        assert_eq!(
            Binaries::parse(files.lines()).get(4).unwrap().path,
            PathBuf::from("/bin/b")
        );
    }

    #[test]
    fn files_without_room_are_no_others() {
        let (binaries, segments) = Default::default();
        let mut files = Files::default();
        let mut of = of(0, &binaries, &segments);
        let mut index = |files: &mut Files, old| {
            let words = files.words(&mut of, &[Word::file(old, 8)]);
            match Word::new(words[0]) {
                Word::File { index, offset: 8 } => index,
                word => panic!("{word:?}"),
            }
        };
        assert_eq!([2, 3].map(|old| index(&mut files, old)), [2, 3]);
        files.next = MAX_INDEX - 1;
        let found = [4, 5, 6, 5].map(|old| index(&mut files, old));
        assert_eq!(found, [MAX_INDEX - 1, MAX_INDEX, MAX_INDEX, MAX_INDEX]);
        assert_eq!(files.nr_left_out, 3);
    }
}
