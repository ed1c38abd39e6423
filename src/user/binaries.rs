// SPDX-License-Identifier: GPL-2.0

//! The files that user stacks have frames in.
//!
//! A *binary* is what encoded frames name: all files on one file system with the same build-id, owner and size; a file
//! without a build-id is one of its own. It keeps its index until the next reset. Anybody can give a file the
//! build-id of another one. So rules belong to a *file*, never to a binary: each file has an index of its own
//! for its rules.

use super::{
    encoded::INDEX_MAX,
    file_table::{FileTable, Indices, Key, FIRST},
    rule::Rule,
    rules::{Rules, Site},
    shares::Shares,
};
use crate::shim::{self, stackmap_binary, stackmap_file_key};
use kernel::prelude::*;

/// The most binaries that get an index. Frames in files of others are addresses.
const MAX: usize = 8192;

/// The longest build-id, in bytes.
const BUILD_ID_MAX: usize = 20;

/// What is shown of a binary.
pub(crate) struct Binary {
    /// The build-id; empty if the file has none.
    pub(crate) build_id: KVec<u8>,
    /// The path when the file was first seen, in the mount namespace of the task that ran it.
    pub(crate) path: KVec<u8>,
    /// The first file of the binary.
    pub(crate) file: Key,
}

impl Binary {
    /// Returns whether a file with this build-id is of this binary.
    ///
    /// Anybody can forge a build-id, and a file system in user space the owner. So the device is compared
    /// too, and the file system on it, as another one can get the device when the first is unmounted. A tool
    /// that changes a program after it was linked keeps its build-id and moves its content, so the size is
    /// compared as well. The build-id can be unreadable when the file is first seen, or later.
    fn is_of(&self, file: &Key, build_id: &[u8]) -> bool {
        self.file == *file
            || !build_id.is_empty()
                && *self.build_id == *build_id
                && self.file.origin() == file.origin()
    }
}

/// Returns the index of the first binary after a reset that forgets this number of binaries from an index on. When indices
/// run out, the first ones are used again, which no stack that is just being recorded has any more.
pub(crate) fn index_after(first: u32, forgotten: usize) -> u32 {
    match first as usize + forgotten {
        next if next + MAX <= INDEX_MAX as usize => next as u32,
        _ => FIRST,
    }
}

/// All binaries and their files.
pub(crate) struct Binaries {
    files: FileTable,
    list: KVVec<Binary>,
    shares: Shares,
    /// The index of the first binary. A stack that is just being recorded may have a smaller one.
    first: u32,
}

impl Binaries {
    /// Returns an empty list. The indices of files are from `first_file` on. Context: process, may sleep.
    pub(crate) fn new(first_file: u32) -> Result<Self> {
        Ok(Self {
            files: FileTable::new(first_file)?,
            list: KVVec::new(),
            shares: Shares::new(MAX as u64),
            first: FIRST,
        })
    }

    /// Forgets all binaries and files.
    pub(crate) fn forget(&mut self) {
        self.files.forget();
        self.shares.forget();
        self.first = index_after(self.first, self.list.len());
        self.list = KVVec::new();
    }

    /// Returns the number of binaries.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the indices of a file that is known.
    pub(crate) fn indices(&self, key: &stackmap_file_key) -> Option<Indices> {
        self.files.get(&Key::from(key))
    }

    /// Returns the indices of a file in which a stack has a frame, if it is known.
    pub(crate) fn meet(&mut self, key: &stackmap_file_key) -> Option<Indices> {
        self.files.meet(&Key::from(key))
    }

    /// Returns the number of files that are known.
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    /// Gives a file indices; that of the binary is that of another file with the same build-id, or a new
    /// one. ENOSPC: there are too many binaries, or this user has run too many.
    pub(crate) fn add(
        &mut self,
        user: u32,
        key: &stackmap_file_key,
        found: &stackmap_binary,
        rules: &Rules,
    ) -> Result<Indices> {
        if let Some(known) = self.meet(key) {
            return Ok(known);
        }
        let key = Key::from(key);
        let binary = self.binary(user, key, found)?;
        self.files.add(user, key, binary, rules)
    }

    /// Keeps a rule of a file, unless that was forgotten meanwhile: one day its index is that of another file.
    pub(crate) fn keep(&self, key: &stackmap_file_key, site: Site, rule: Rule, rules: &Rules) {
        let known = self.indices(key);
        if known.is_some_and(|known| site.is_in(known.file)) {
            rules.put(site, rule);
        }
    }

    /// Returns the index of the binary that a file is, if need be a new one.
    fn binary(&mut self, user: u32, file: Key, found: &stackmap_binary) -> Result<u32> {
        let build_id = &found.build_id[..(found.build_id_len as usize).min(BUILD_ID_MAX)];
        let known = self
            .list
            .iter()
            .position(|known| known.is_of(&file, build_id));
        if let Some(position) = known {
            return Ok(self.first + position as u32);
        }
        if self.list.len() == MAX || self.shares.is_exhausted(user) {
            return Err(shim::errno(kernel::bindings::ENOSPC));
        }
        let index = self.first + self.list.len() as u32;
        let mut binary = Binary {
            build_id: KVec::new(),
            path: KVec::new(),
            file,
        };
        binary.build_id.extend_from_slice(build_id, GFP_NOWAIT)?;
        let path = &found.path[..(found.path_len as usize).min(found.path.len())];
        binary.path.extend_from_slice(path, GFP_NOWAIT)?;
        self.list.push(binary, GFP_NOWAIT)?;
        // What cannot be counted is kept all the same.
        let _ = self.shares.add(user, 1);
        Ok(index)
    }

    /// Returns the binary of an index; none of the vDSOs.
    pub(crate) fn get(&self, index: u32) -> Option<&Binary> {
        self.list.get(index.checked_sub(self.first)? as usize)
    }

    /// Returns the first index from `from` on that a binary has.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let index = from.max(self.first);
        self.get(index).map(|_| index)
    }
}
