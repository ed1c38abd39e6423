// SPDX-License-Identifier: GPL-2.0

//! User stacks: which user stack led to an event, as an id of a second map.
//!
//! In a trace array that has user stacks, a kernel stack that is recorded for a user task also asks for
//! the user stack, and carries the cookie of the kernel entry. The kernel unwinds the user stack once,
//! when the task returns to user space; then the id of that stack is bound to the cookie by an event of
//! its own. `Documentation/design.rst` has the order of all that.

pub(crate) mod binaries;
pub mod calls;
pub mod cfi;
pub mod cookie;
pub mod decode;
mod decoded;
mod deliver;
pub mod encoded;
pub(crate) mod file_table;
pub mod frame;
mod mappings;
mod process;
pub mod rule;
pub mod rules;
pub(crate) mod settle;
mod shares;
mod step;
pub mod walk;

pub(crate) use self::binaries::Binary;

use self::{
    binaries::Binaries,
    cookie::{exec_id, Cookie, Known, Remembered, REMEMBERED},
    decoded::DecodedFrames,
    deliver::Buffer,
    file_table::FIRST,
    rules::{Rules, Set, SETS},
    shares::PoolShares,
};
use crate::{
    map,
    published::Published,
    shim::{self, Recording, Watched},
};
use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{new_mutex, Arc, Mutex},
};

/// What deliveries need. It is made when user stacks are first enabled, and goes with the module.
struct State {
    remembered: Remembered<KVVec<AtomicU64>>,
    buffers: Buffers,
    binaries: Pin<KBox<Mutex<Binaries>>>,
    rules: Rules,
    decoded: DecodedFrames,
    /// What users use of the map, in bytes of its pool.
    stacks: PoolShares,
}

static STATE: Published<State> = Published::nothing();

fn state() -> Option<Arc<State>> {
    STATE.get()
}

impl State {
    fn new(cpus: usize, map_bytes: u64) -> Result<Arc<Self>> {
        let mut words = KVVec::with_capacity(cpus * REMEMBERED, GFP_KERNEL)?;
        for _ in 0..cpus * REMEMBERED {
            words.push(AtomicU64::new(0), GFP_KERNEL)?;
        }
        let mut sets = KVVec::with_capacity(SETS, GFP_KERNEL)?;
        for _ in 0..SETS {
            sets.push(Set::default(), GFP_KERNEL)?;
        }
        let state = Self {
            remembered: Remembered::new(words),
            buffers: Buffers::new(cpus)?,
            binaries: KBox::pin_init(new_mutex!(Binaries::new(FIRST)?), GFP_KERNEL)?,
            rules: Rules::new(sets).ok_or(EINVAL)?,
            decoded: DecodedFrames::new()?,
            stacks: PoolShares::new(map_bytes)?,
        };
        Ok(Arc::new(state, GFP_KERNEL)?)
    }
}

/// A buffer for each CPU; null while it is in use.
struct Buffers(KVVec<AtomicPtr<Buffer>>);

impl Buffers {
    fn new(cpus: usize) -> Result<Self> {
        let mut buffers = Self(KVVec::with_capacity(cpus, GFP_KERNEL)?);
        for _ in 0..cpus {
            let buffer: KBox<Buffer> = KBox::zeroed(GFP_KERNEL)?;
            let buffer = AtomicPtr::new(KBox::into_raw(buffer));
            buffers.0.push(buffer, GFP_KERNEL)?;
        }
        Ok(buffers)
    }

    /// Takes the buffer of this CPU, or allocates one. Context: process, may sleep.
    fn take(&self) -> Option<KBox<Buffer>> {
        let kept = self.0.get(shim::stackmap_this_cpu() as usize)?;
        exchange(kept, None).or_else(|| KBox::zeroed(GFP_NOWAIT).ok())
    }

    fn put_back(&self, buffer: KBox<Buffer>) {
        if let Some(kept) = self.0.get(shim::stackmap_this_cpu() as usize) {
            drop(exchange(kept, Some(buffer)));
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for kept in &self.0 {
            drop(exchange(kept, None));
        }
    }
}

/// Swaps the buffer in `kept` for `new`, and returns it. Context: process.
fn exchange(kept: &AtomicPtr<Buffer>, new: Option<KBox<Buffer>>) -> Option<KBox<Buffer>> {
    let new = new.map_or(null_mut(), KBox::into_raw);
    // ORDERING: AcqRel; who takes a buffer sees that its last user is done with it.
    let old = kept.swap(new, Ordering::AcqRel);
    // SAFETY: A pointer that is not null was put there by this function or `new()`, and was just taken.
    (!old.is_null()).then(|| unsafe { KBox::from_raw(old) })
}

/// Allocates what deliveries into a map of `2^bits` stacks need, if that was not done. EOPNOTSUPP: the kernel
/// lacks what user stacks need. Context: process; callers serialise.
pub(crate) fn allocate(bits: u32) -> Result {
    if STATE.get().is_some() {
        return Ok(());
    }
    let state = State::new(
        shim::stackmap_cpus() as usize,
        (map::POOL_BYTES_PER_STACK as u64) << bits,
    )?;
    to_result(shim::stackmap_user_resolve())?;
    STATE.replace(Some(state));
    Ok(())
}

/// Frees it. No delivery runs any more. Context: process; callers serialise.
pub(crate) fn free() {
    STATE.replace(None);
}

/// Forgets which binaries there are and what cookies were bound to. Context: process; callers serialise.
pub(crate) fn reset() {
    if let Some(state) = state() {
        state.remembered.forget();
        state.binaries.lock().forget();
        state.stacks.forget();
        state.decoded.forget();
        // Rules of files that are gone.
        state.rules.forget();
    }
}

/// Calls `show` with the path of a binary, if it is known. Context: process.
pub(crate) fn path(index: u32, show: impl FnOnce(Option<&[u8]>)) {
    if matches!(index, file_table::VDSO | file_table::VDSO32) {
        return show(Some(b"[vdso]"));
    }
    match state() {
        Some(state) => show(state.binaries.lock().get(index).map(|binary| &*binary.path)),
        None => show(None),
    }
}

/// Returns the first index from `from` on that a binary has. Context: process.
pub(crate) fn next_binary(from: u32) -> Option<u32> {
    state()?.binaries.lock().next(from)
}

/// Returns the number of binaries, and of files whose rules are known. Context: process.
pub(crate) fn known() -> (usize, usize) {
    state().map_or((0, 0), |state| {
        let binaries = state.binaries.lock();
        (binaries.len(), binaries.files())
    })
}

/// Requests the user stack of the current task for a kernel stack that is being recorded. Returns the
/// cookie that it will be bound to. Context: any, preemption off.
#[inline(always)]
pub(crate) fn request(recording: &Recording<'_>, section: &Watched<'_>) -> Option<u64> {
    let request = recording.request_user()?;
    if let Some(count) = request.first {
        if let Some(state) = STATE.read(section) {
            state
                .remembered
                .request(Cookie(request.cookie), exec_id(count));
        }
    }
    Some(request.cookie)
}

/// Returns the id that a cookie was bound to, if it is known still. Context: any.
pub(crate) fn bound(section: &map::ReadSide, cookie: u64) -> Option<u32> {
    match STATE.read(section)?.remembered.get(Cookie(cookie))? {
        Known::Bound(id) if id != 0 => Some(id),
        Known::Bound(_) | Known::Pending(_) => None,
    }
}

/// Calls `show` with the binary of an index. Context: process.
pub(crate) fn binary(index: u32, show: impl FnOnce(&Binary)) {
    if let Some(state) = state() {
        state.binaries.lock().get(index).map(show);
    }
}
