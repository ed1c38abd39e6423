// SPDX-License-Identifier: GPL-2.0

//! The files whose rules are known, at most [`FILES_MAX`].
//!
//! When the table is full, a new file evicts one of the user who has most files, by second chance (CLOCK). So a user
//! who runs many new programs evicts own ones, and the libraries of all programs stay.

use super::rules::{Rules, INDICES};
use crate::shim::stackmap_file_key;
use core::mem::take;
use kernel::prelude::*;

/// The maximum number of files in the table.
pub(crate) const FILES_MAX: usize = 8192;
const _: () = assert!(FILES_MAX < INDICES as usize / 8);

/// Users are distinguished by a hash below this.
const CLASSES: usize = 64;

/// Root's files are not evicted while they are at most this many: a container of root may have any number of users.
const ROOTS: usize = FILES_MAX / 8;

/// The index of the 64-bit vDSO, which is in no file; that of 32-bit tasks follows.
pub(crate) const VDSO: u32 = 0;
pub(crate) const VDSO32: u32 = 1;

/// The first index of a binary, and of a file.
pub(crate) const FIRST: u32 = 2;

/// A file, as long as it is not written to: a file that is overwritten in place is another one.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Key {
    pub(crate) dev: u64,
    medium: u64,
    inode: u64,
    pub(crate) ino: u64,
    ctime: (i64, u32),
    generation: u32,
    pub(crate) size: u64,
    owner: u64,
    r#type: u64,
}

impl Key {
    /// Returns what all files of one binary share besides the build-id: device, file system, owner, size.
    pub(super) fn origin(&self) -> [u64; 5] {
        [self.dev, self.medium, self.r#type, self.owner, self.size]
    }
}

impl From<&stackmap_file_key> for Key {
    fn from(key: &stackmap_file_key) -> Self {
        Self {
            dev: key.dev,
            medium: key.medium,
            inode: key.inode,
            ino: key.ino,
            ctime: (key.ctime_sec, key.ctime_nsec),
            generation: key.generation,
            size: key.size,
            owner: key.owner,
            r#type: key.type_,
        }
    }
}

/// The indices of a file.
#[derive(Clone, Copy)]
pub(crate) struct Indices {
    /// The index of its binary, used in encoded frames.
    pub(crate) binary: u32,
    /// Its own index, used in the sites of rules.
    pub(crate) file: u32,
}

impl Indices {
    /// Returns the indices of a vDSO.
    pub(crate) fn vdso(index: u32) -> Self {
        Self {
            binary: index,
            file: index,
        }
    }
}

struct File {
    key: Key,
    indices: Indices,
    /// The class of the user who ran it first.
    class: u8,
    /// Whether it was met since it was last considered for eviction.
    met: bool,
}

/// The files that are known.
pub(super) struct FileTable {
    list: KVVec<File>,
    /// The positions in `list`, sorted by the key of the file.
    by_key: KVVec<u16>,
    /// The number of files of each class of users.
    counts: [usize; CLASSES],
    /// The position that is considered next in each class.
    turns: [usize; CLASSES],
    /// The index of the next one, at most [`INDICES`].
    next: u32,
}

/// Returns the class of a user: root is alone in its class.
fn class(user: u32) -> u8 {
    // The golden ratio of 32 bits, as in the kernel's hashes.
    let hash = user.wrapping_mul(0x61c8_8647) >> 16;
    match user {
        0 => 0,
        _ => 1 + (hash % (CLASSES as u32 - 1)) as u8,
    }
}

impl FileTable {
    /// Returns an empty table with memory for all files. They get indices from `next` on. Context: process, may sleep.
    pub(super) fn new(next: u32) -> Result<Self> {
        Ok(Self {
            list: KVVec::with_capacity(FILES_MAX, GFP_KERNEL)?,
            by_key: KVVec::with_capacity(FILES_MAX, GFP_KERNEL)?,
            counts: [0; CLASSES],
            turns: [0; CLASSES],
            next,
        })
    }

    /// Forgets all files. Their indices stay used.
    pub(super) fn forget(&mut self) {
        self.list.clear();
        self.by_key.clear();
        self.counts = [0; CLASSES];
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the indices of a file that is known.
    pub(super) fn get(&self, key: &Key) -> Option<Indices> {
        Some(self.list.get(self.position(key)?)?.indices)
    }

    /// Returns the index in `by_key` of a key: `Err` with the index to insert it at if it is not there.
    fn search(&self, key: &Key) -> core::result::Result<usize, usize> {
        let key_at = |at: &u16| self.list.get(usize::from(*at)).map(|file| &file.key);
        self.by_key
            .binary_search_by(|at| key_at(at).cmp(&Some(key)))
    }

    /// Returns the position in `list` of a file, if it is known.
    fn position(&self, key: &Key) -> Option<usize> {
        let index = self.search(key).ok()?;
        self.by_key.get(index).copied().map(usize::from)
    }

    /// Returns the indices of a file in which a stack has a frame, if it is known.
    pub(super) fn meet(&mut self, key: &Key) -> Option<Indices> {
        let position = self.position(key)?;
        let file = self.list.get_mut(position)?;
        file.met = true;
        Some(file.indices)
    }

    /// Gives a new file of a binary, which this user runs, an index that none of `rules` has. ENOMEM: it is not
    /// known.
    pub(super) fn add(
        &mut self,
        user: u32,
        key: Key,
        binary: u32,
        rules: &Rules,
    ) -> Result<Indices> {
        if self.next == INDICES {
            self.begin_era(rules);
        }
        let class = class(user);
        let indices = Indices {
            binary,
            file: self.next,
        };
        let file = File {
            key,
            indices,
            class,
            met: false,
        };
        let position = match self.turn() {
            Some(position) => {
                let old = self.list.get(position).ok_or(EINVAL)?;
                let (old_key, old_class) = (old.key, old.class);
                let index = self.search(&old_key).map_err(|_| EINVAL)?;
                self.by_key.remove(index).map_err(|_| EINVAL)?;
                self.counts[usize::from(old_class)] -= 1;
                position
            }
            None => self.list.len(),
        };
        // Both have the capacity for all files.
        let index = self.search(&key).unwrap_or_else(|index| index);
        self.by_key
            .insert_within_capacity(index, position as u16)
            .map_err(|_| EINVAL)?;
        match self.list.get_mut(position) {
            Some(slot) => *slot = file,
            None => self.list.push(file, GFP_NOWAIT)?,
        }
        self.counts[usize::from(class)] += 1;
        self.next += 1;
        Ok(indices)
    }

    /// Gives all files the first indices, as none is left. All rules are forgotten.
    fn begin_era(&mut self, rules: &Rules) {
        rules.begin_era();
        for (index, file) in (FIRST..).zip(&mut self.list) {
            file.indices.file = index;
        }
        self.next = FIRST + self.list.len() as u32;
    }

    /// Returns the position of the file that a new one evicts. [`None`]: the table is not full.
    fn turn(&mut self) -> Option<usize> {
        if self.list.len() < FILES_MAX {
            return None;
        }
        let [roots, others @ ..] = self.counts;
        let most = (1..).zip(others).max_by_key(|(_, count)| *count);
        let (class, _) = most
            .filter(|(_, most)| roots <= (*most).max(ROOTS))
            .unwrap_or((0, 0));
        let turn = self.turns.get_mut(usize::from(class))?;
        // The second time round, none was met.
        for _ in 0..2 * FILES_MAX {
            let position = *turn % FILES_MAX;
            *turn = position + 1;
            let file = self.list.get_mut(position)?;
            if file.class == class && !take(&mut file.met) {
                return Some(position);
            }
        }
        // Never.
        Some(0)
    }
}
