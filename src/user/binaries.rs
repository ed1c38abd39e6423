// SPDX-License-Identifier: GPL-2.0

//! The files that user stacks have frames in.
//!
//! A *binary* is what words name: all files on one file system with the same build-id, owner and size; a file
//! without a build-id is one of its own. It keeps its index until the next reset. Anybody can give a file the
//! build-id of another one. So rules belong to a *file*, never to a binary: each file has an index of its own
//! for its rules. Files come and go: there is room for some, and the one that came first is forgotten for a new one.

use super::{
    rule::Rule,
    rules::{Rules, Site, INDICES},
    shares::Shares,
    words::INDEX_MAX,
};
use crate::shim::{self, stackmap_binary, stackmap_file_key};
use kernel::{prelude::*, rbtree::RBTree};

/// The index of the 64-bit vDSO, which is in no file; that of 32-bit tasks follows.
pub(crate) const VDSO: u32 = 0;
pub(crate) const VDSO32: u32 = 1;

/// The first index of a binary, and of a file.
pub(crate) const FIRST: u32 = 2;

/// The most binaries that get an index. Frames in files of others are addresses.
const MAX: usize = 8192;

/// The most files that are known at once.
pub(crate) const FILES_MAX: usize = 8192;
const _: () = assert!(FILES_MAX < INDICES as usize / 8);

/// The longest build-id, in bytes.
const BUILD_ID_MAX: usize = 20;

/// A file, as long as it is not written to: a file that is overwritten in place is another one.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    dev: u64,
    medium: u64,
    inode: u64,
    ino: u64,
    ctime: (i64, u32),
    generation: u32,
    size: u64,
    owner: u64,
    r#type: u64,
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
    /// That of its binary, used in words.
    pub(crate) binary: u32,
    /// Its own, used in the sites of rules.
    pub(crate) file: u32,
}

impl Indices {
    /// Those of a vDSO.
    pub(crate) fn vdso(index: u32) -> Self {
        Self {
            binary: index,
            file: index,
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
}

/// What files have in common that are one binary. Anybody can forge a build-id, and a file system in user
/// space the owner: so also the device, and what is there now, as another file system can get the device
/// when the first is unmounted. What changes a program after it was linked keeps its build-id, and moves
/// its content: so also the size.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Identity {
    BuildId {
        dev: u64,
        medium: u64,
        r#type: u64,
        owner: u64,
        size: u64,
        build_id: [u8; BUILD_ID_MAX],
        len: usize,
    },
    /// A file without a build-id, or the first one of a binary.
    File(Key),
}

/// The files that came last.
struct Files {
    by_key: RBTree<Key, Indices>,
    by_index: RBTree<u32, Key>,
    len: usize,
    /// The index of the next one, below [`INDICES`].
    next: u32,
}

impl Files {
    /// None yet; they get indices from `next` on.
    fn new(next: u32) -> Self {
        Self {
            by_key: RBTree::new(),
            by_index: RBTree::new(),
            len: 0,
            next,
        }
    }

    /// Gives a new file of a binary an index that none of `rules` has.
    fn add(&mut self, key: Key, binary: u32, rules: &Rules) -> Result<Indices> {
        if self.next == INDICES {
            // A stack that is just being recorded may have one of the last indices, not of the first.
            *self = Self::new(FIRST);
            rules.forget();
        }
        if self.len == FILES_MAX {
            self.forget_first();
        }
        let indices = Indices {
            binary,
            file: self.next,
        };
        self.by_index
            .try_create_and_insert(indices.file, key, GFP_NOWAIT)?;
        self.len += 1;
        self.next += 1;
        self.by_key
            .try_create_and_insert(key, indices, GFP_NOWAIT)?;
        Ok(indices)
    }

    /// Forgets the file that came first. Stacks that are recorded from now on do not look for its rules; others take
    /// their place.
    fn forget_first(&mut self) {
        let Some(first) = self.by_index.cursor_front_mut() else {
            return;
        };
        let (_, node) = first.remove_current();
        let (_, key) = node.to_key_value();
        self.by_key.remove(&key);
        self.len -= 1;
    }
}

/// The index of the first binary after a reset that forgets so many from an index on: in the end those that were
/// used first, which no stack that is just being recorded has any more.
pub(crate) fn index_after(first: u32, forgotten: usize) -> u32 {
    match first as usize + forgotten {
        next if next + MAX <= INDEX_MAX as usize => next as u32,
        _ => FIRST,
    }
}

/// All of them.
pub(crate) struct Binaries {
    files: Files,
    by_identity: RBTree<Identity, u32>,
    list: KVVec<Binary>,
    shares: Shares,
    /// The index of the first binary. A stack that is just being recorded may have an index of those before.
    first: u32,
}

impl Binaries {
    /// None yet. The indices of files are from `first_file` on.
    pub(crate) fn new(first_file: u32) -> Self {
        Self {
            files: Files::new(first_file),
            by_identity: RBTree::new(),
            list: KVVec::new(),
            shares: Shares::new(MAX as u64),
            first: FIRST,
        }
    }

    /// Forgets all of them.
    pub(crate) fn forget(&mut self) {
        self.files = Files::new(self.files.next);
        self.by_identity = RBTree::new();
        self.shares.forget();
        self.first = index_after(self.first, self.list.len());
        self.list = KVVec::new();
    }

    /// The number of them.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The indices of a file that has some.
    pub(crate) fn indices(&self, key: &stackmap_file_key) -> Option<Indices> {
        self.files.by_key.get(&Key::from(key)).copied()
    }

    /// The number of files that are known.
    pub(crate) fn files(&self) -> usize {
        self.files.len
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
        if let Some(known) = self.indices(key) {
            return Ok(known);
        }
        let binary = self.binary(user, key, found)?;
        self.files.add(Key::from(key), binary, rules)
    }

    /// Keeps a rule of a file, unless that was forgotten meanwhile: one day its index is that of another file.
    pub(crate) fn keep(&self, key: &stackmap_file_key, site: Site, rule: Rule, rules: &Rules) {
        if self
            .indices(key)
            .is_some_and(|known| site.is_in(known.file))
        {
            rules.put(site, rule);
        }
    }

    /// The index of the binary that a file is, if need be a new one.
    fn binary(
        &mut self,
        user: u32,
        file: &stackmap_file_key,
        found: &stackmap_binary,
    ) -> Result<u32> {
        let build_id = &found.build_id[..(found.build_id_len as usize).min(BUILD_ID_MAX)];
        let identity = match build_id.is_empty() {
            true => Identity::File(Key::from(file)),
            false => Identity::BuildId {
                dev: file.dev,
                medium: file.medium,
                r#type: file.type_,
                owner: file.owner,
                size: file.size,
                build_id: found.build_id,
                len: build_id.len(),
            },
        };
        // Its build-id may not be at hand this time, or may not have been at first.
        let itself = Identity::File(Key::from(file));
        let known = self.by_identity.get(&itself);
        if let Some(known) = known.or_else(|| self.by_identity.get(&identity)) {
            return Ok(*known);
        }
        if self.list.len() == MAX || self.shares.is_exhausted(user) {
            return Err(shim::errno(kernel::bindings::ENOSPC));
        }
        let index = self.first + self.list.len() as u32;
        let mut binary = Binary {
            build_id: KVec::new(),
            path: KVec::new(),
            dev: file.dev,
            ino: file.ino,
            size: file.size,
        };
        binary.build_id.extend_from_slice(build_id, GFP_NOWAIT)?;
        let path = &found.path[..(found.path_len as usize).min(found.path.len())];
        binary.path.extend_from_slice(path, GFP_NOWAIT)?;
        self.list.push(binary, GFP_NOWAIT)?;
        // What cannot be counted is kept all the same.
        let _ = self.shares.add(user, 1);
        // Without these, another file of this binary gets an index of its own, or this one when it is met again.
        for identity in [itself, identity] {
            let _ = self
                .by_identity
                .try_create_and_insert(identity, index, GFP_NOWAIT);
        }
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
