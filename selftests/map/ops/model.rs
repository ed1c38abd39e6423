// SPDX-License-Identifier: GPL-2.0

//! What a map must do, in a few plain collections.

use super::CONTEXTS;
use stackmap_map::{
    ExportedStack, Fallback, Id, Lookup, Map, MapCounter, Seed, MAX_FRAMES, PROBE_LIMIT,
};
use std::collections::{BTreeMap, HashMap};

/// Words in a chunk of the pool.
const CHUNK_WORDS: u64 = 32 * 1024;

/// Bytes that the pool of the smallest map may have.
const POOL_MAX: u64 = 2048 << 10;

/// A stack that has an id.
struct Known {
    frames: Vec<u64>,
    refs: u32,
}

pub(super) struct Model {
    seed: Seed,
    slots: u32,
    capacity: usize,
    generation: u32,
    /// The stacks of this generation by their slots.
    by_slot: BTreeMap<u32, Known>,
    slot_of: HashMap<Vec<u64>, u32>,
    /// Words of their records.
    words: u64,
    /// The first word of the pool that nobody has reserved.
    cursor: u64,
    /// Words of the leftover of each context.
    leftovers: [u64; CONTEXTS],
    /// All ids that were ever given out, the first time each.
    given: Vec<Id>,
    /// By counter.
    counts: [u64; MapCounter::ALL.len()],
    /// The slots of the export's stacks; none after a reset.
    snapshot: Option<Vec<u32>>,
}

impl Model {
    pub(super) fn new(map: &Map, seed: Seed) -> Self {
        let slots = map.table_size() as u32;
        Self {
            seed,
            slots,
            capacity: map.capacity() as usize,
            generation: 1 + seed.draw((1 << 31) / slots - 1),
            by_slot: BTreeMap::new(),
            slot_of: HashMap::new(),
            words: 0,
            cursor: 1,
            leftovers: [0; CONTEXTS],
            given: Vec::new(),
            counts: [0; MapCounter::ALL.len()],
            snapshot: None,
        }
    }

    /// The slot that a new stack must take, if one of those that it may take is empty.
    fn free_slot(&self, frames: &[u64]) -> Option<u32> {
        let home = self.seed.hash(frames) as u32;
        (0..PROBE_LIMIT)
            .map(|probe| home.wrapping_add(probe) % self.slots)
            .find(|slot| !self.by_slot.contains_key(slot))
    }

    fn id(&self, slot: u32) -> Id {
        Id::from_raw(self.generation * self.slots + slot)
    }

    /// Returns where a record of this number of words begins that is not in a leftover.
    fn next_record(&self, words: u64) -> u64 {
        let left = CHUNK_WORDS - self.cursor % CHUNK_WORDS;
        self.cursor + if left < words { left } else { 0 }
    }

    /// Takes the words of a record from the leftover of a context, or from the pool.
    fn take(&mut self, context: usize, words: u64) {
        let start = self.next_record(words);
        let leftover = &mut self.leftovers[context];
        if *leftover >= words {
            *leftover -= words;
        } else {
            *leftover = (*leftover).max(start - self.cursor);
            self.cursor = start + words;
        }
    }

    /// Checks what became of a stack in a context.
    pub(super) fn recorded(
        &mut self,
        map: &Map,
        context: usize,
        frames: &[u64],
        result: Result<Lookup, Fallback>,
    ) {
        let counter = match result {
            Ok(found) if found.inserted => MapCounter::Inserts,
            Ok(_) => MapCounter::Hits,
            Err(reason) => reason.counter(),
        };
        self.counts[counter as usize] += 1;
        if let Some(slot) = self.slot_of.get(frames) {
            let expected = Lookup {
                id: self.id(*slot),
                inserted: false,
            };
            assert_eq!(result, Ok(expected), "a known stack");
            let known = self.by_slot.get_mut(slot).expect("it has a slot");
            known.refs += 1;
            return;
        }
        let slot = self.free_slot(frames);
        match (result, slot) {
            (result, None) => assert_eq!(result, Err(Fallback::ProbeLimit)),
            (result, Some(_)) if self.by_slot.len() == self.capacity => {
                assert_eq!(result, Err(Fallback::Full));
            }
            (Err(reason), Some(_)) => {
                // The reservation would have to go beyond the existing chunks.
                let words = 1 + frames.len() as u64;
                let end = self.next_record(words) + words;
                assert!(
                    end > map.pool_bytes() / 8 && self.leftovers[context] < words,
                    "{reason:?} without need"
                );
                let expected = if map.pool_bytes() < POOL_MAX {
                    Fallback::Growing
                } else {
                    Fallback::PoolFull
                };
                assert_eq!(reason, expected);
            }
            (Ok(found), Some(slot)) => {
                let id = self.id(slot);
                assert_eq!(found, Lookup { id, inserted: true }, "a new stack");
                assert!(i32::try_from(id.get()).is_ok_and(|id| id > 0));
                self.given.push(id);
                self.words += 1 + frames.len() as u64;
                self.take(context, 1 + frames.len() as u64);
                self.slot_of.insert(frames.to_vec(), slot);
                let frames = frames.to_vec();
                self.by_slot.insert(slot, Known { frames, refs: 1 });
            }
        }
    }

    /// An id that was given out, `ago` ids ago.
    pub(super) fn id_given(&self, ago: usize) -> Option<Id> {
        let len = self.given.len().max(1);
        self.given.iter().rev().nth(ago % len).copied()
    }

    /// Checks what was read of an id.
    pub(super) fn check_read(
        &self,
        id: Id,
        found: Option<&ExportedStack>,
        frames: &[u64; MAX_FRAMES],
    ) {
        let current = id.get() / self.slots == self.generation;
        let known = self.by_slot.get(&(id.get() % self.slots));
        let Some(known) = known.filter(|_| current) else {
            assert_eq!(found, None, "{id:?} has no stack");
            return;
        };
        let found = found.expect("the id has a stack");
        assert_eq!(found.id, id);
        assert_eq!(&frames[..found.nr], known.frames);
        assert_eq!(found.ref_count, known.refs);
    }

    pub(super) fn reset(&mut self) {
        self.counts = [0; MapCounter::ALL.len()];
        if self.by_slot.is_empty() {
            // The generation goes on, and with it an export, which is empty.
            return;
        }
        self.by_slot.clear();
        self.slot_of.clear();
        self.words = 0;
        self.cursor = 1;
        self.leftovers = [0; CONTEXTS];
        self.snapshot = None;
        // The last generation of an id of 31 bits is followed by the first.
        let generations = (1 << 31) / self.slots;
        self.generation = self.generation % (generations - 1) + 1;
    }

    pub(super) fn snapshot(&mut self) {
        self.snapshot = Some(self.by_slot.keys().copied().collect());
    }

    /// The number of stacks of the export, if there was no reset.
    pub(super) fn snapshot_len(&self) -> Option<u32> {
        self.snapshot.as_ref().map(|snapshot| snapshot.len() as u32)
    }

    /// The first stack of the export from a slot on, if there was no reset.
    pub(super) fn next_of_cut(&self, from: u32) -> Option<Option<Id>> {
        let snapshot = self.snapshot.as_ref()?;
        let slot = snapshot.iter().find(|slot| **slot >= from);
        Some(slot.map(|slot| self.id(*slot)))
    }

    /// Checks what can be checked quickly.
    pub(super) fn check_counts(&self, map: &Map) {
        for counter in MapCounter::ALL {
            let expected = self.counts[counter as usize];
            assert_eq!(map.total(counter), expected, "{counter:?}");
        }
        assert_eq!(map.entries() as usize, self.by_slot.len());
        assert_eq!(map.reserved_bytes(), 8 * (self.cursor - 1));
        assert_eq!(map.leftover_bytes(), 8 * self.leftovers.iter().sum::<u64>());
        // P6: no race has lost anything.
        let stored = 8 * self.words;
        assert!(map.pool_bytes() <= stored + stored / 30 + (1 << 20));
    }

    /// Reads everything back.
    pub(super) fn check_stacks(&self, map: &Map) {
        let mut frames = [0; MAX_FRAMES];
        for slot in 0..self.slots {
            let id = self.id(slot);
            let found = map.lookup(id, &mut frames);
            self.check_read(id, found.as_ref(), &frames);
        }
    }
}
