// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ids of stacks that are the same on every machine and after every boot.
//!
//! An id is a hash of what the frames are called: of functions of the kernel and offsets in them, of
//! build-ids and offsets in files. So it does not depend on where anything was loaded. The bytes that
//! are hashed are those of `Documentation/abi/stable_ids.rst`; another choice of bytes needs another
//! [`TAG`].

use crate::{
    kernel,
    source::Loaded,
    stack_map_bin::{LoadId, Stack},
    symbols::{canonical::reproducible, texts::ByNumber, At as KernelAt, Place},
    tally::{Kernel, Key},
    trace::UserRef,
    user::{
        binaries::{VDSO, VDSO32},
        words::At,
        User, WhichFrame,
    },
};
use blake2::{digest::consts::U16, Blake2b, Digest};
use serde::{Serialize, Serializer};
use std::{collections::HashMap, fmt, ops::Range};

/// What is hashed first: which bytes follow.
const TAG: &[u8] = b"stackmap stack 1\n";
/// Full stacks that are remembered, at most.
const MAX_FULL: usize = 1 << 14;
/// Bytes of encoded frames that are remembered, at most.
const MAX_KEPT: usize = 16 << 20;

/// The id of a stack, the same wherever its frames are called the same.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StableId(pub [u8; 16]);

/// 32 hexadecimal digits.
impl fmt::Display for StableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Serialize for StableId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The beginning of a stable id: at least as many digits that it is not met by accident.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prefix<'a>(&'a str);

impl<'a> Prefix<'a> {
    /// The fewest digits.
    const LEAST: usize = 8;

    /// What a word is as one; [`None`]: it is none.
    pub fn new(word: &'a str) -> Option<Self> {
        let is_digits = word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_prefix = (Self::LEAST..=32).contains(&word.len()) && is_digits;
        is_prefix.then_some(Self(word))
    }

    /// Whether an id begins so.
    pub fn fits(self, id: StableId) -> bool {
        let digits = id.to_string();
        digits[..self.0.len()].eq_ignore_ascii_case(self.0)
    }
}

/// What a stack is called.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
pub struct Identity {
    /// Its id.
    pub stable_id: StableId,
    /// Whether the id is the same elsewhere. It is not if a frame has no name: then the id is that of
    /// this stack in this boot, and no other stack's elsewhere.
    pub stable: bool,
}

/// `stable` or `local`, and the id.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.stable {
            true => "stable",
            false => "local",
        };
        write!(f, "{kind} {}", self.stable_id)
    }
}

/// The ids of the stacks of one source, each computed once.
pub struct StableIds<'a> {
    loaded: &'a Loaded,
    boot_id: String,
    kernel: ByNumber<u32, Identity>,
    user: ByNumber<u32, Identity>,
    full: HashMap<Vec<u64>, Identity>,
    frames: Frames,
}

impl<'a> StableIds<'a> {
    /// Those of what was read. What names frames is to be known by now:
    /// [`User::prime`](crate::user::User::prime).
    pub fn new(loaded: &'a Loaded) -> Self {
        let boot_id = match &loaded.manifest {
            Some(manifest) => manifest.boot_id.clone(),
            // Only a running kernel has counters and no manifest.
            None => loaded.stat.as_ref().and_then(|_| kernel::boot_id()),
        };
        Self {
            loaded,
            boot_id: boot_id.unwrap_or_default(),
            kernel: ByNumber::default(),
            user: ByNumber::default(),
            full: HashMap::new(),
            frames: Frames::default(),
        }
    }

    /// That of the kernel's stack with this id in the map; [`None`]: there is no such stack.
    pub fn kernel(&mut self, id: u32) -> Option<Identity> {
        if let Some(identity) = self.kernel.get(&id) {
            return Some(*identity);
        }
        let stacks = &self.loaded.stacks;
        let origin = Origin {
            load_id: stacks.load_id(),
            stack_id: id,
        };
        let identity = self.kernel_stack(stacks.get(id)?.ips, origin);
        self.kernel.insert(id, identity);
        Some(identity)
    }

    /// That of the user stack with this id in the map; [`None`]: there is no such stack, or it was not
    /// read.
    pub fn user(&mut self, id: u32) -> Option<Identity> {
        if let Some(identity) = self.user.get(&id) {
            return Some(*identity);
        }
        let user = &self.loaded.user;
        let identity = self.user_stack(&user.stacks.get(id)?, user);
        self.user.insert(id, identity);
        Some(identity)
    }

    /// That of what a key of the map stands for.
    pub fn of(&mut self, key: Key) -> Option<Identity> {
        match (key.kernel, key.user) {
            (Kernel::Id(id), _) => self.kernel(id),
            (Kernel::None, UserRef::Id(id)) => self.user(id),
            _ => None,
        }
    }

    /// That of a full stack of the kernel, with all its frames.
    pub fn full(&mut self, ips: &[u64]) -> Identity {
        if let Some(identity) = self.full.get(ips) {
            return *identity;
        }
        let identity = self.kernel_stack(ips, Origin::default());
        if self.full.len() == MAX_FULL {
            self.full.clear();
        }
        self.full.insert(ips.to_vec(), identity);
        identity
    }

    fn kernel_stack(&mut self, ips: &[u64], origin: Origin) -> Identity {
        let mut bytes = Bytes::new(b'k');
        for at in self.loaded.symbols.all(ips) {
            self.frames.add(self.loaded, at, &mut bytes);
        }
        self.finish(bytes, origin)
    }

    fn user_stack(&self, stack: &Stack<'_>, user: &User) -> Identity {
        let mut bytes = Bytes::new(b'u');
        for which in user.stack(stack.ips) {
            bytes.user_frame(which, user);
        }
        bytes.kind(b'e').text(user.end(stack.ips).to_string());
        let origin = Origin {
            load_id: user.load_id(),
            stack_id: stack.id,
        };
        self.finish(bytes, origin)
    }

    /// The hash, and whether it says which stack it is; else it also has which one it is here.
    fn finish(&self, mut bytes: Bytes, origin: Origin) -> Identity {
        let stable = bytes.all_named;
        if !stable {
            let load_id = origin.load_id.map_or(0, LoadId::get);
            bytes
                .kind(b'l')
                .text(&self.boot_id)
                .word(load_id)
                .word(origin.stack_id);
        }
        Identity {
            stable_id: StableId(Blake2b::<U16>::digest(&bytes.bytes).into()),
            stable,
        }
    }
}

/// Which stack it is, in one boot. A full stack has neither.
#[derive(Clone, Copy, Default)]
struct Origin {
    load_id: Option<LoadId>,
    stack_id: u32,
}

/// The bytes of frames of the kernel, kept for the next time: the same few are on most stacks.
#[derive(Default)]
struct Frames {
    /// For frames that are return addresses, and for those that are exact: where the bytes are, and
    /// whether there is a name.
    kept: [ByNumber<u64, (Range<usize>, bool)>; 2],
    bytes: Vec<u8>,
}

impl Frames {
    fn add(&mut self, loaded: &Loaded, at: KernelAt, to: &mut Bytes) {
        let kept = &mut self.kept[usize::from(at.exact)];
        if let Some((range, named)) = kept.get(&at.ip) {
            to.all_named &= named;
            return to.bytes.extend_from_slice(&self.bytes[range.clone()]);
        }
        let start = to.bytes.len();
        let place = loaded.symbols.raw_place(at.ip, at.exact);
        to.kernel_frame(place);
        if self.bytes.len() > MAX_KEPT {
            self.kept.iter_mut().for_each(HashMap::clear);
            self.bytes.clear();
        }
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&to.bytes[start..]);
        let range = begin..self.bytes.len();
        let named = place != Place::Unknown;
        self.kept[usize::from(at.exact)].insert(at.ip, (range, named));
    }
}

/// What is hashed of a stack.
struct Bytes {
    bytes: Vec<u8>,
    /// Whether each frame so far has a name.
    all_named: bool,
}

impl Bytes {
    fn new(side: u8) -> Self {
        let mut bytes = TAG.to_vec();
        bytes.push(side);
        Self {
            bytes,
            all_named: true,
        }
    }

    /// What follows.
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.bytes.push(kind);
        self
    }

    /// The length, and then the text.
    fn text(&mut self, text: impl AsRef<[u8]>) -> &mut Self {
        let text = text.as_ref();
        self.word(text.len() as u32);
        self.bytes.extend_from_slice(text);
        self
    }

    fn word(&mut self, word: u32) -> &mut Self {
        self.bytes.extend_from_slice(&word.to_le_bytes());
        self
    }

    fn long(&mut self, long: u64) -> &mut Self {
        self.bytes.extend_from_slice(&long.to_le_bytes());
        self
    }

    fn function(&mut self, module: Option<&str>, name: &str, offset: u64) {
        let module = module.unwrap_or_default();
        let name = reproducible(name);
        self.kind(b'f').text(module).text(name).long(offset);
    }

    fn unknown(&mut self) -> &mut Self {
        self.all_named = false;
        self.kind(b'?')
    }

    fn kernel_frame(&mut self, place: Place<'_>) {
        match place {
            Place::Symbol(symbol) => self.function(symbol.module, symbol.name, symbol.offset),
            Place::Trampoline => drop(self.kind(b't')),
            // Not even a hash of its address: who knows the other frames could try all addresses.
            Place::Unknown => drop(self.unknown()),
        }
    }

    fn user_frame(&mut self, which: WhichFrame, user: &User) {
        match which.at {
            At::File { index, offset } => {
                if let Some(build_id) = user.build_id(index) {
                    self.kind(b'b').text(build_id).long(offset);
                } else if let Some(binary) = user.binaries.get(index) {
                    let name = binary.name_bytes();
                    self.kind(b'n').text(name).long(binary.size).long(offset);
                } else if [VDSO, VDSO32].contains(&index) {
                    let name = user.binaries.name(index);
                    self.kind(b'n').text(name).long(0).long(offset);
                } else {
                    self.unknown().long(offset).word(index).word(0);
                }
            }
            At::Address { address, process } => {
                match user.frames(which).last().and_then(|frame| frame.named) {
                    Some(named) => {
                        let name = named.function.as_deref().unwrap_or_default();
                        self.kind(b'g').text(name);
                    }
                    None => {
                        let (tgid, start) = process.map_or((0, 0), |of| (of.tgid, of.start));
                        self.unknown().long(address).word(tgid).word(start);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
