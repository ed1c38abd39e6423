// SPDX-License-Identifier: GPL-2.0

//! The files that user stacks have frames in, each with an index for as long as the module has stacks.

use super::words::INDEX_MAX;
use crate::shim::{self, stackmap_binary, stackmap_file_key};
use kernel::{prelude::*, rbtree::RBTree};

/// The index of the 64-bit vDSO, which is in no file; that of 32-bit tasks follows.
pub(crate) const VDSO: u32 = 0;
pub(crate) const VDSO32: u32 = 1;

/// The most binaries that get an index. Frames in others are addresses.
const MAX: usize = 8192;

/// The most files that an index is found by: several can have the same build-id.
const KEYS_MAX: usize = 4 * MAX;

/// A file, as long as it is not written to: a file that is overwritten in place is another one.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    dev: u64,
    ino: u64,
    ctime: (i64, u32),
    generation: u32,
    size: u64,
    owner: u64,
}

impl From<&stackmap_file_key> for Key {
    fn from(key: &stackmap_file_key) -> Self {
        Self {
            dev: key.dev,
            ino: key.ino,
            ctime: (key.ctime_sec, key.ctime_nsec),
            generation: key.generation,
            size: key.size,
            owner: key.owner,
        }
    }
}

/// What is shown of a binary.
pub(crate) struct Binary {
    /// The build-id; empty if the file has none.
    pub(crate) build_id: KVec<u8>,
    /// The path when the file was first seen, in the mount namespace of the task that ran it.
    pub(crate) path: KVec<u8>,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    owner: u64,
}

/// All of them.
pub(crate) struct Binaries {
    by_key: RBTree<Key, u32>,
    keys: usize,
    list: KVVec<Binary>,
    /// The index of the first one. No index is ever used again: a stack that is just being recorded may
    /// have it.
    first: u32,
}

impl Binaries {
    pub(crate) fn new() -> Self {
        Self {
            by_key: RBTree::new(),
            keys: 0,
            list: KVVec::new(),
            first: VDSO32 + 1,
        }
    }

    /// Forgets all of them.
    pub(crate) fn forget(&mut self) {
        *self = Self {
            first: self.first + self.list.len() as u32,
            ..Self::new()
        };
    }

    /// The number of them.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The index of a file that has one.
    pub(crate) fn index(&self, key: &stackmap_file_key) -> Option<u32> {
        self.by_key.get(&Key::from(key)).copied()
    }

    /// Gives a file an index: that of another file with the same build-id, or a new one. ENOSPC: there
    /// are too many.
    pub(crate) fn add(&mut self, key: &stackmap_file_key, found: &stackmap_binary) -> Result<u32> {
        let (key, file) = (Key::from(key), key);
        if let Some(index) = self.by_key.get(&key) {
            return Ok(*index);
        }
        if self.keys == KEYS_MAX {
            // They only save the search by build-id.
            self.by_key = RBTree::new();
            self.keys = 0;
        }
        if self.first as usize + self.list.len() > INDEX_MAX as usize {
            return Err(shim::errno(kernel::bindings::ENOSPC));
        }
        let build_id = &found.build_id[..(found.build_id_len as usize).min(found.build_id.len())];
        // Anybody can forge a build-id: it joins files of one owner only.
        let same = |other: &Binary| {
            !build_id.is_empty() && *other.build_id == *build_id && other.owner == file.owner
        };
        let index = match self.list.iter().position(same) {
            Some(index) => index,
            None => {
                if self.list.len() == MAX {
                    return Err(shim::errno(kernel::bindings::ENOSPC));
                }
                let mut binary = Binary {
                    build_id: KVec::new(),
                    path: KVec::new(),
                    dev: file.dev,
                    ino: file.ino,
                    size: file.size,
                    owner: file.owner,
                };
                binary.build_id.extend_from_slice(build_id, GFP_NOWAIT)?;
                let path = &found.path[..(found.path_len as usize).min(found.path.len())];
                binary.path.extend_from_slice(path, GFP_NOWAIT)?;
                self.list.push(binary, GFP_NOWAIT)?;
                self.list.len() - 1
            }
        };
        let index = index as u32 + self.first;
        self.by_key.try_create_and_insert(key, index, GFP_NOWAIT)?;
        self.keys += 1;
        Ok(index)
    }

    /// The binary of an index; none of the vDSOs.
    pub(crate) fn get(&self, index: u32) -> Option<&Binary> {
        self.list.get(index.checked_sub(self.first)? as usize)
    }

    /// The first index from `from` on that a binary has.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let index = from.max(self.first);
        self.get(index).map(|_| index)
    }
}
