// SPDX-License-Identifier: GPL-2.0

//! `stack_map_bin`, `stack_map_user_bin`: the stacks in the binary format of `include/uapi/stackmap.h`.

use crate::{
    control,
    map::{Epoch, ExportedStack, Map, MapError, MAX_FRAMES},
    shim,
    store::{self, Store},
    tracefs::{File, Output, Reader},
};
use kernel::{bindings::umode_t, prelude::*, sync::Arc};

/// One walk over the stacks that were there when the file was opened, in constant memory.
pub(super) struct Walk {
    /// [`None`]: there was no map yet.
    map: Option<(Arc<Map>, Epoch)>,
    stack: Option<ExportedStack>,
    frames: KBox<[u64; MAX_FRAMES]>,
}

impl Walk {
    pub(super) fn begin(store: &Store) -> Result<Self> {
        let map = match store.map() {
            Some(map) => {
                let snapshot = map.snapshot()?;
                Some((map, snapshot))
            }
            None => None,
        };
        Ok(Self {
            map,
            stack: None,
            frames: KBox::zeroed(GFP_KERNEL)?,
        })
    }

    /// Goes to the first stack at or after slot `from` and returns its slot.
    pub(super) fn seek(&mut self, from: u64) -> Result<Option<u64>, MapError> {
        self.stack = None;
        let Some((map, snapshot)) = &self.map else {
            return Ok(None);
        };
        let Ok(from) = u32::try_from(from) else {
            return Ok(None);
        };
        self.stack = map.next(snapshot, from, &mut self.frames)?;
        Ok(self.stack.map(|stack| u64::from(stack.next()) - 1))
    }

    /// Counts all stacks of the walk.
    fn count(&self) -> Result<u32, MapError> {
        self.map
            .as_ref()
            .map_or(Ok(0), |(map, snapshot)| map.count(snapshot))
    }

    /// Returns the stack that was sought last, and its frames.
    pub(super) fn stack(&self) -> Option<(&ExportedStack, &[u64])> {
        let stack = self.stack.as_ref()?;
        Some((stack, &self.frames[..stack.nr]))
    }
}

/// The stacks of one map: that of user stacks, or that of kernel stacks.
pub(super) struct StackMapBin<const USER: bool>;

impl<const USER: bool> File for StackMapBin<USER> {
    const NAME: &'static CStr = match USER {
        true => c"stack_map_user_bin",
        false => c"stack_map_bin",
    };
    const MODE: umode_t = 0o440;
    type Reader = BinReader<USER>;
}

/// The header at position 0, then the stack of slot `n` at position `n + 1`. After a reset reading
/// fails with ESTALE, since the header has promised what is gone.
pub(super) struct BinReader<const USER: bool> {
    walk: Walk,
    nr_stacks: u32,
    at_header: bool,
}

impl<const USER: bool> Reader for BinReader<USER> {
    fn open() -> Result<Self> {
        let walk = Walk::begin(match USER {
            true => &store::USER,
            false => &store::KERNEL,
        })?;
        let nr_stacks = walk.count()?;
        Ok(Self {
            walk,
            nr_stacks,
            at_header: false,
        })
    }

    fn seek(&mut self, position: u64) -> Result<Option<u64>> {
        self.at_header = position == 0;
        let Some(slot) = position.checked_sub(1) else {
            return Ok(Some(0));
        };
        let found = self.walk.seek(slot)?;
        Ok(found.map(|slot| slot + 1))
    }

    fn show(&self, out: &Output<'_>) {
        if self.at_header {
            let magic = match USER {
                true => shim::STACKMAP_BIN_MAGIC_USER,
                false => shim::STACKMAP_BIN_MAGIC,
            };
            let version = shim::STACKMAP_BIN_VERSION;
            words(out, [magic, version, self.nr_stacks, control::load_id()]);
            return;
        }
        let Some((stack, frames)) = self.walk.stack() else {
            return;
        };
        words(out, [stack.id.get(), stack.nr as u32, stack.ref_count, 0]);
        for frame in frames {
            out.bytes(&frame.to_ne_bytes());
        }
    }
}

fn words(out: &Output<'_>, words: [u32; 4]) {
    for word in words {
        out.bytes(&word.to_ne_bytes());
    }
}
