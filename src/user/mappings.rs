// SPDX-License-Identifier: GPL-2.0

//! What the addresses of one stack lie in, and the rules of the code there.

use super::{
    calls::{Calls, Mapping},
    cfi::{self, Elf, File, Machine, Tracked, Unknown, NATIVE},
    encoded::{EncodedFrame, EncodedStack, End},
    file_table::{Indices, VDSO, VDSO32},
    frame::{Caller, Code, Frame, Memory},
    process::{CachedFile, Process},
    rule::Rule,
    rules::Site,
    State,
};
use crate::shim::{self, stackmap_binary, stackmap_mapping, STACKMAP_MAPPINGS};
use core::cell::Cell;
use kernel::prelude::*;

/// The mappings that addresses of one stack lie in.
pub(super) struct Mappings {
    /// As the kernel has them.
    shims: [stackmap_mapping; STACKMAP_MAPPINGS as usize],
    /// As a walk needs them.
    known: [Mapping; STACKMAP_MAPPINGS as usize],
    found: usize,
    /// The index of the mapping of the last address, and what is needed of it: callers are often in the
    /// same file as their callees.
    last: usize,
    recent: Mapping,
}

// SAFETY: Its fields are integers and structures of integers, and arrays of them.
unsafe impl Zeroable for Mappings {}

impl Mappings {
    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        (self.found, self.recent) = (0, Mapping::default());
    }

    /// Returns the word of an address that lies in a binary.
    pub(super) fn word(
        &mut self,
        state: &State,
        process: &Process<'_>,
        address: u64,
    ) -> Option<u64> {
        if !self.recent.has(address) {
            self.find(state, process, address)?;
        }
        let Mapping { start, word, .. } = self.recent;
        (word != 0).then_some(word.wrapping_add(address.wrapping_sub(start)))
    }

    /// Returns the mapping of the last address that has one.
    fn mapping(&self) -> Option<&stackmap_mapping> {
        self.shims.get(self.last)
    }

    /// Returns the rule of code that has no word, if it is in the last mapping. `Err`: how the stack ends.
    #[cold]
    pub(super) fn without_file(&self, address: u64) -> Result<Rule, End> {
        let mapping = self.mapping().filter(|_| self.recent.has(address));
        match mapping.map(|mapping| mapping.kind) {
            Some(shim::STACKMAP_MAPPING_OTHER) => Ok(Rule::GENERATED),
            Some(shim::STACKMAP_MAPPING_SPECIAL) => Ok(Rule::UNKNOWN),
            // It has no index.
            Some(shim::STACKMAP_MAPPING_FILE) => Err(End::NoRule),
            _ => Err(End::BadAddress),
        }
    }

    /// Looks for the mapping of an address.
    #[inline(never)]
    fn find(&mut self, state: &State, process: &Process<'_>, address: u64) -> Option<()> {
        if self.find_known(address).is_none() {
            self.last = self.add(state, process, address)?;
            self.recent = *self.known.get(self.last)?;
        }
        Some(())
    }

    /// Looks for the mapping of an address among those that were found.
    fn find_known(&mut self, address: u64) -> Option<()> {
        let mut known = self.known.iter().take(self.found);
        self.last = known.position(|mapping| mapping.has(address))?;
        self.recent = *self.known.get(self.last)?;
        Some(())
    }

    fn add(&mut self, state: &State, process: &Process<'_>, address: u64) -> Option<usize> {
        let new = self.found;
        let (mapping, known) = (self.shims.get_mut(new)?, self.known.get_mut(new)?);
        if !process.mapping(address as usize, mapping) {
            return None;
        }
        let size = mapping.end - mapping.start;
        let indices = state.indices(process, mapping, address);
        *known = Mapping {
            start: mapping.start,
            size,
            changes: mapping.changes,
            ..Mapping::default()
        };
        let offset = mapping.offset;
        // Of a mapping that reaches too far into its file there are only addresses.
        let site = |file| {
            Site::new(file, offset.checked_add(size - 1)?)?;
            Site::new(file, offset)
        };
        if let Some((Indices { binary: index, .. }, site)) =
            indices.and_then(|indices| Some((indices, site(indices.file)?)))
        {
            known.word = EncodedFrame::Binary { index, offset }.bits().unwrap_or(0);
            known.site = site;
        }
        self.found += 1;
        Some(new)
    }
}

/// The code of a process, as a walk needs it.
pub(super) struct ProcessCode<'a, M> {
    pub(super) state: &'a State,
    pub(super) process: &'a Process<'a>,
    pub(super) mappings: &'a mut Mappings,
    pub(super) memory: &'a M,
    pub(super) words: &'a mut EncodedStack,
    /// Whether a part of a file can be read ahead for this stack: one is.
    pub(super) may_wait: bool,
    /// Whether the stack is that of the current task.
    pub(super) is_own: bool,
    /// The rules that were learnt for this stack.
    pub(super) learnt: u32,
    /// How often files may still be read for this stack.
    pub(super) reads: &'a Cell<u32>,
    /// The file that the last rule was learnt from.
    pub(super) open: Option<OpenFile<'a>>,
}

/// A file that rules are learnt from.
pub(super) struct OpenFile<'r> {
    /// The index of its mapping.
    mapping: usize,
    file: CachedFile<'r>,
    /// Its headers, when they were read.
    elf: Option<Elf>,
}

impl OpenFile<'_> {
    /// Returns its headers and the file.
    fn elf(&mut self) -> Result<(&Elf, &CachedFile<'_>), Unknown> {
        let Self { file, elf, .. } = self;
        match elf {
            Some(elf) => Ok((elf, file)),
            None => Ok((elf.insert(Elf::read(file, &NATIVE)?), file)),
        }
    }
}

/// The most rules that are learnt for one stack, as other tracers wait meanwhile. The next stack learns more.
const LEARNT_MAX: u32 = 64;
/// The same for reads of files: more than any rule needs, as the first is learnt in any case.
pub(super) const READS_MAX: u32 = 32_768;

impl<M: Memory> Code for ProcessCode<'_, M> {
    fn frames(&self) -> usize {
        self.words.frames()
    }

    #[inline(always)]
    fn follow(&mut self, machine: &Machine, memory: &impl Memory, frame: Frame) -> Frame {
        let calls = Calls {
            mapping: self.mappings.recent,
            rules: &self.state.rules,
            words: self.words,
        };
        calls.follow(machine, memory, frame)
    }

    fn frame(&mut self, ip: u64, address: u64, interrupted: bool) -> Result<Rule, End> {
        let known = self.find(address);
        let mapping = &self.mappings.recent;
        if !known || mapping.word == 0 {
            let found = self.mappings.without_file(address);
            if interrupted || found != Err(End::BadAddress) {
                self.words.keep_raw(ip);
            }
            return found;
        }
        let offset = ip.wrapping_sub(mapping.start);
        self.words.keep(mapping.word.wrapping_add(offset));
        self.rule_here(address, interrupted).ok_or(End::NoRule)
    }

    #[cold]
    fn rule(&mut self, address: u64) -> Option<Rule> {
        match self.find(address) && self.mappings.recent.word != 0 {
            true => self.rule_here(address, true),
            false => self.mappings.without_file(address).ok(),
        }
    }

    #[inline(always)]
    fn original(&mut self, frame: &Frame, slot: Option<u64>) -> Option<Frame> {
        match self.find(frame.ip) && self.mappings.recent.word != 0 {
            true => None,
            false => self.original_of_no_file(*frame, slot),
        }
    }

    fn register(&self, register: u64) -> u64 {
        self.process.register(register as u32)
    }

    #[cold]
    fn track(&mut self, address: u64, register: u64) -> Option<Tracked> {
        if !self.find(address) || self.learnt >= LEARNT_MAX {
            return None;
        }
        self.learnt += 1;
        shim::stackmap_user_count(shim::STACKMAP_USER_TRACKED);
        self.read(address, |elf, file, offset| {
            elf.track(file, &NATIVE, offset, register)
        })?
        .ok()
    }

    fn stack(&self) -> u64 {
        self.process.stack()
    }

    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let low = address.checked_sub(8)? & !7;
        let both = |memory: &M| {
            let mut both = u128::from(memory.code(low).ok()?);
            if address % 8 != 0 {
                both |= u128::from(memory.code(low + 8).ok()?) << 64;
            }
            Some(both)
        };
        match both(self.memory) {
            Some(both) => Some(((both >> (8 * (address % 8))) as u64).to_le_bytes()),
            None => {
                let bytes = self.bytes_of_file(address - 8);
                if bytes.is_none() && !self.is_own && self.is_code(address - 8) {
                    self.memory.miss();
                }
                bytes
            }
        }
    }

    fn is_code(&mut self, address: u64) -> bool {
        self.find(address)
            && self
                .mappings
                .mapping()
                .is_some_and(|mapping| mapping.kind != shim::STACKMAP_MAPPING_DATA)
    }

    fn instruction(&mut self, address: u64) -> Option<([u8; 16], usize)> {
        let first = self.bytes_before(address.wrapping_add(8))?;
        // It may end before memory that cannot be read.
        let second = self
            .bytes_before(address.wrapping_add(16))
            .unwrap_or_default();
        let both =
            u128::from(u64::from_le_bytes(second)) << 64 | u128::from(u64::from_le_bytes(first));
        let bytes = both.to_le_bytes();
        match shim::stackmap_instruction_length(&shim::stackmap_code { bytes }) {
            0 => None,
            length => Some((bytes, length as usize)),
        }
    }

    #[inline(always)]
    fn changes(&self) -> bool {
        self.mappings.recent.changes
    }

    fn guess(&mut self) {
        self.words.guess();
    }

    fn decoded(&mut self, frame: &Frame, interrupted: bool) -> Option<Option<Caller>> {
        let key = self.decoded_key(frame, interrupted)?;
        self.state.decoded.get(key, frame, self.memory)
    }

    fn set_decoded(&mut self, frame: &Frame, interrupted: bool, caller: Option<Caller>) {
        // Another task may change its memory meanwhile.
        if !self.is_own {
            return;
        }
        if let Some(key) = self.decoded_key(frame, interrupted) {
            self.state.decoded.put(key, frame, caller, self.memory);
        }
    }
}

impl<M: Memory> ProcessCode<'_, M> {
    /// Returns eight bytes of a file that was found mapped, where the process has not used the page yet. [`None`]: they are
    /// not in one mapping, or not in the page cache.
    #[cold]
    fn bytes_of_file(&mut self, address: u64) -> Option<[u8; 8]> {
        self.mappings.find_known(address)?;
        if !self.has_code_of_file() || !self.mappings.recent.has(address.wrapping_add(7)) {
            return None;
        }
        let (open, offset) = self.open(address)?;
        let mut bytes = [0; 8];
        open.file.read(offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns what identifies a frame that is decoded: the process, the code in its file, and the frame. [`None`]: the code
    /// may change without the file.
    fn decoded_key(&mut self, frame: &Frame, interrupted: bool) -> Option<[u64; 7]> {
        let process = self.process.word().bits()?;
        if !self.find(frame.ip) || !self.has_code_of_file() {
            return None;
        }
        let Mapping { start, site, .. } = self.mappings.recent;
        let site = site.after(frame.ip - start).number();
        let era = self.state.rules.era().into();
        let Frame { ip, sp, fp } = *frame;
        Some([process, era, site, ip, sp, fp, interrupted.into()])
    }

    /// Returns whether the code in the last mapping is that of its file: no process has changed it.
    fn has_code_of_file(&self) -> bool {
        let Mapping { word, changes, .. } = self.mappings.recent;
        word != 0 && !changes
    }

    /// Returns the same for a frame in no file.
    #[cold]
    fn original_of_no_file(&mut self, frame: Frame, slot: Option<u64>) -> Option<Frame> {
        let is_special = self.find(frame.ip)
            && self.mappings.mapping().map(|at| at.kind) == Some(shim::STACKMAP_MAPPING_SPECIAL);
        if !is_special {
            return None;
        }
        match self.process.original(frame.ip, slot) {
            Some(ip) => Some(Frame { ip, ..frame }),
            None if slot.is_none() => frame.probed(self.memory, self),
            None => None,
        }
    }

    /// Makes the mapping of an address the last one. Returns whether there is one.
    #[inline(always)]
    fn find(&mut self, address: u64) -> bool {
        let Self {
            mappings, state, ..
        } = self;
        mappings.recent.has(address) || mappings.find(state, self.process, address).is_some()
    }

    /// Returns the rule of an address in the last mapping, which has a word, if it is known now. It is that of a call
    /// unless the frame was `interrupted`.
    #[inline(always)]
    fn rule_here(&mut self, address: u64, interrupted: bool) -> Option<Rule> {
        let mapping = &self.mappings.recent;
        let site = mapping.site.after(address.wrapping_sub(mapping.start));
        match self.state.rules.get(site) {
            Some(rule) => Some(rule),
            None => self.learn(site, address, interrupted),
        }
    }

    /// Learns the rule of an address in the last mapping, if its file is in memory.
    #[cold]
    fn learn(&mut self, site: Site, address: u64, interrupted: bool) -> Option<Rule> {
        if self.learnt >= LEARNT_MAX {
            return None;
        }
        self.learnt += 1;
        let found = self.described(address, interrupted)?;
        shim::stackmap_user_count(match found {
            Ok(_) => shim::STACKMAP_USER_RULES_LEARNT,
            Err(Unknown::Absent | Unknown::Later) => shim::STACKMAP_USER_RULES_ABSENT,
            Err(_) => shim::STACKMAP_USER_RULES_NONE,
        });
        let rule = cfi::rule_of(found)?;
        let mapping = self.mappings.mapping()?;
        match mapping.kind {
            shim::STACKMAP_MAPPING_FILE => {
                let State {
                    binaries, rules, ..
                } = self.state;
                binaries.lock().keep(&mapping.file, site, rule, rules);
            }
            _ => self.state.rules.put(site, rule),
        }
        Some(rule)
    }
}

impl<'a, M> ProcessCode<'a, M> {
    /// Returns the file in the last mapping, and the offset of an address in it. [`None`]: there is none, or it is not
    /// mapped there any more.
    fn open(&mut self, address: u64) -> Option<(&mut OpenFile<'a>, u64)> {
        let mapping = self.mappings.mapping()?;
        let offset = (address - mapping.start).wrapping_add(mapping.offset);
        let last = self.mappings.last;
        let open = match self.open.take().filter(|open| open.mapping == last) {
            Some(open) => open,
            None => OpenFile {
                mapping: last,
                file: self.process.file(address, &mapping.file, self.reads)?,
                elf: None,
            },
        };
        Some((self.open.insert(open), offset))
    }

    /// Reads what the file in the last mapping says of an address, at its offset; has a part that is missing read
    /// ahead, if this stack may wait. [`None`]: it is not mapped there any more.
    fn read<T>(
        &mut self,
        address: u64,
        read: impl FnOnce(&Elf, &CachedFile<'_>, u64) -> Result<T, Unknown>,
    ) -> Option<Result<T, Unknown>> {
        let may_wait = self.may_wait;
        let (open, offset) = self.open(address)?;
        let found = open.elf().and_then(|(elf, file)| read(elf, file, offset));
        if may_wait && matches!(found, Err(Unknown::Absent)) {
            open.file.want();
            self.may_wait = false;
        }
        Some(found)
    }

    /// Returns what the file in the last mapping says of an address. [`None`]: it is not mapped there any more.
    fn described(&mut self, address: u64, interrupted: bool) -> Option<Result<Rule, Unknown>> {
        let mapping = self.mappings.mapping()?;
        let found = match mapping.kind {
            shim::STACKMAP_MAPPING_FILE => {
                self.read(address, |elf, file, offset| match interrupted {
                    true => elf.learn(file, &NATIVE, offset),
                    false => elf.learn_call(file, &NATIVE, offset),
                })?
            }
            shim::STACKMAP_MAPPING_VDSO => {
                let offset = address - mapping.start + mapping.offset;
                cfi::learn(&self.process.vdso(), &NATIVE, offset)
            }
            // Rules are those of 64 bits.
            _ => Err(Unknown::NoTable),
        };
        Some(found)
    }
}

impl State {
    /// Returns the indices of the file that is mapped at an address.
    fn indices(
        &self,
        process: &Process<'_>,
        mapping: &stackmap_mapping,
        address: u64,
    ) -> Option<Indices> {
        match mapping.kind {
            shim::STACKMAP_MAPPING_VDSO => return Some(Indices::vdso(VDSO)),
            shim::STACKMAP_MAPPING_VDSO32 => return Some(Indices::vdso(VDSO32)),
            shim::STACKMAP_MAPPING_FILE => {}
            _ => return None,
        }
        let known = self.binaries.lock().meet(&mapping.file);
        if known.is_some() {
            return known;
        }
        let mut binary: KBox<stackmap_binary> = KBox::zeroed(GFP_NOWAIT).ok()?;
        if !process.binary(address as usize, &mapping.file, &mut binary) {
            return None;
        }
        let user = process.user();
        let mut binaries = self.binaries.lock();
        let added = binaries.add(user, &mapping.file, &binary, &self.rules);
        drop(binaries);
        if added.is_err() {
            shim::stackmap_user_count(shim::STACKMAP_USER_BINARIES_FULL);
        }
        added.ok()
    }
}
