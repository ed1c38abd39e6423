// SPDX-License-Identifier: GPL-2.0

//! Symbol names of recorded frames, also of modules that were unloaded after recording.
//!
//! The kernel's kallsyms names the function that is at an address now. If the recorded module was
//! unloaded and its memory reused, that is a function of another module. So each time module text
//! is added or removed, this file looks for recorded stacks with an address in that text. If there
//! are any, it remembers the text range and a snapshot of the stacks; kallsyms does not name
//! the frames of that snapshot any more. When text is removed, its symbol names are saved. They are
//! dropped when new text uses the same range: then a stack with the same addresses has the same id,
//! and its frames can be of either module.
//!
//! C header: [`include/linux/kallsyms.h`](srctree/include/linux/kallsyms.h)

use crate::{
    map::{Epoch, Map, ReadSide, MAX_FRAMES},
    published::Published,
    record,
    shim::{self, stackmap_text},
    store, unwind,
};
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};
use kernel::{error::to_result, global_lock, pr_warn_once, prelude::*, sync::Arc};

/// The symbol name of a frame.
pub(crate) enum Symbol<'a> {
    /// The frame is the marker of an ftrace trampoline.
    Trampoline,
    /// The kernel's current name is right.
    Current,
    /// The name saved when the text was removed: `name+0x48/0xc0 [module]`.
    Saved(&'a [u8]),
    /// No name; the frame is shown as an address.
    Unknown,
}

/// An address and its saved symbol name.
type Name = (u64, KVec<u8>);

/// Names, sorted by address.
type Names = Arc<KVVec<Name>>;

/// A text range in which the kernel's current symbols are wrong for the stacks of a snapshot.
#[derive(Clone)]
struct ChangedText {
    text: Range<u64>,
    snapshot: Epoch,
    names: Option<Names>,
}

/// All changed text ranges, the oldest first. Replaced under `CHANGE_LOCK`.
static CHANGED_TEXT: Published<KVVec<ChangedText>> = Published::nothing();

/// Module text whose change was not remembered, out of memory: its frames have no name until reset.
static UNNAMED_TEXT: UnnamedText = UnnamedText {
    start: AtomicU64::new(u64::MAX),
    end: AtomicU64::new(0),
};

/// The smallest range that contains all added text, initially empty. Changed under `CHANGE_LOCK`.
struct UnnamedText {
    start: AtomicU64,
    end: AtomicU64,
}

impl UnnamedText {
    fn contains(&self, address: u64) -> bool {
        self.start.load(Ordering::Relaxed) <= address && address < self.end.load(Ordering::Relaxed)
    }

    fn add(&self, text: &stackmap_text) {
        self.start.fetch_min(text.start, Ordering::Relaxed);
        self.end.fetch_max(text.end, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.end.store(0, Ordering::Relaxed);
        self.start.store(u64::MAX, Ordering::Relaxed);
    }
}

global_lock! {
    // SAFETY: Initialised in `Watch::begin`, before the lock is first taken.
    unsafe(uninit) static CHANGE_LOCK: Mutex<()> = ();
}

/// The saved symbol names, readable during a read-side section.
pub(crate) struct Symbols<'a>(&'a [ChangedText]);

impl<'a> Symbols<'a> {
    /// Loads the changed text ranges. Context: any.
    pub(crate) fn read(section: &'a ReadSide) -> Self {
        Self(CHANGED_TEXT.read(section).map_or(&[], |changed| changed))
    }

    /// Returns the symbol name of `address` in a stack that was inserted in epoch `inserted`.
    pub(crate) fn of(&self, inserted: Epoch, address: u64) -> Symbol<'a> {
        if address == u64::from(shim::STACKMAP_TRAMPOLINE_MARKER) {
            return Symbol::Trampoline;
        }
        if UNNAMED_TEXT.contains(address) {
            return Symbol::Unknown;
        }
        let names = match self.changed_text(inserted, address) {
            Some(part) => &part.names,
            None => return Symbol::Current,
        };
        let Some(names) = names else {
            return Symbol::Unknown;
        };
        match names.binary_search_by_key(&address, |name| name.0) {
            Ok(index) => Symbol::Saved(&names[index].1),
            Err(_) => Symbol::Unknown,
        }
    }

    /// Returns the first change of the text at `address` after the stack was inserted.
    fn changed_text(&self, inserted: Epoch, address: u64) -> Option<&'a ChangedText> {
        let mut changed = self.0.iter();
        changed.find(|part| part.text.contains(&address) && part.snapshot.includes(inserted))
    }
}

/// Watches the text of modules until it is dropped.
pub(crate) struct Watch(());

impl Watch {
    /// Registers the module notifier. Context: process, once.
    pub(crate) fn begin() -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CHANGE_LOCK.init() };
        // SAFETY: Process context; dropping the result ends it.
        to_result(unsafe { shim::stackmap_modules_watch() })?;
        Ok(Self(()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        shim::stackmap_modules_unwatch();
        let _lock = CHANGE_LOCK.lock();
        CHANGED_TEXT.replace(None);
    }
}

/// Calls `reset`, which removes all stacks, then forgets all changed text. A module load or unload
/// meanwhile waits for the lock, and then looks only at stacks after the reset. Context: process.
pub(crate) fn reset(reset: impl FnOnce()) {
    let _lock = CHANGE_LOCK.lock();
    reset();
    CHANGED_TEXT.replace(None);
    UNNAMED_TEXT.clear();
}

/// Handles that text of a module is added, before any of it runs; or removed, after all of it has
/// run and while kallsyms still knows its symbols. Context: process, may sleep.
///
/// # Safety
///
/// `text` points to `nr` elements.
#[no_mangle]
unsafe extern "C" fn stackmap_text_changes(text: *const stackmap_text, nr: c_uint, removed: bool) {
    // SAFETY: By the requirement.
    let text = unsafe { core::slice::from_raw_parts(text, nr as usize) };
    if removed {
        text_removed(text);
    } else {
        text_added(text);
    }
}

fn text_added(text: &[stackmap_text]) {
    remember_change(text, |map| {
        // No CPU records an address in the new text yet, so the current stacks are complete.
        let old = addresses(map, &map.snapshot_now()?, text)?;
        if old.is_empty() {
            return Ok(None);
        }
        Ok(Some((map.snapshot()?, old, None)))
    });
}

fn text_removed(text: &[stackmap_text]) {
    let recording = record::is_on();
    let replaced = unwind::nr_replaced();
    if recording {
        unwind::forget(text);
    }
    let is_in = |part: &stackmap_text, ip| part.start < ip && ip <= part.end;
    let is_gone = |ip| text.iter().any(|part| is_in(part, ip));
    remember_change(text, |map| {
        if !recording {
            map.remove_cached_rules(is_gone);
        }
        // A CPU that has walked a stack in this text may not have inserted it yet. `snapshot` waits
        // for such a CPU.
        let mut snapshot = map.snapshot_now()?;
        if recording || !addresses(map, &snapshot, text)?.is_empty() {
            snapshot = map.snapshot()?;
        }
        if recording {
            // Before the grace period, such a CPU may also have stored a rule for this text. If so, or if
            // another rule may have replaced it, it may have been cached with stacks since.
            if unwind::forget(text) || unwind::nr_replaced() != replaced {
                map.snapshot()?;
            }
            map.remove_cached_rules(is_gone);
        }
        let old = addresses(map, &snapshot, text)?;
        if old.is_empty() {
            return Ok(None);
        }
        let names = names(&old)?;
        Ok(Some((snapshot, old, Some(names))))
    });
}

/// Remembers a change of `text`, if `look` finds addresses in it in the stacks of a snapshot.
fn remember_change(
    text: &[stackmap_text],
    look: impl FnOnce(&Map) -> Result<Option<(Epoch, KVVec<u64>, Option<Names>)>>,
) {
    let Some(map) = store::KERNEL.map() else {
        return;
    };
    let _lock = CHANGE_LOCK.lock();
    let change = || -> Result {
        let Some((snapshot, addresses, names)) = look(&map)? else {
            return Ok(());
        };
        let mut changed = KVVec::new();
        if let Some(now) = CHANGED_TEXT.get() {
            for part in now.iter() {
                changed.push(part.clone(), GFP_KERNEL)?;
            }
        }
        for part in text {
            let part = part.start..part.end;
            if names.is_none() {
                drop_names(&mut changed, &part);
            }
            if addresses.iter().any(|address| part.contains(address)) {
                let entry = ChangedText {
                    text: part,
                    snapshot,
                    names: names.clone(),
                };
                changed.push(entry, GFP_KERNEL)?;
            }
        }
        CHANGED_TEXT.replace(Some(Arc::new(changed, GFP_KERNEL)?));
        Ok(())
    };
    if change().is_err() {
        text.iter().for_each(|part| UNNAMED_TEXT.add(part));
        pr_warn_once!(
            "out of memory saving module symbols; frames are shown as addresses until reset\n"
        );
    }
}

/// Drops saved names in `text`: a frame recorded from now on may be of the new text.
fn drop_names(changed: &mut KVVec<ChangedText>, text: &Range<u64>) {
    for part in changed.iter_mut() {
        if part.text.start < text.end && text.start < part.text.end {
            part.names = None;
        }
    }
    // The snapshot that the caller is about to add includes all stacks of these ranges.
    changed.retain(|part| {
        part.names.is_some() || part.text.start < text.start || part.text.end > text.end
    });
}

/// Returns the kernel's current symbol names of these addresses.
fn names(addresses: &[u64]) -> Result<Names> {
    let mut names = KVVec::with_capacity(addresses.len(), GFP_KERNEL)?;
    let mut text = KBox::new([0; shim::STACKMAP_SYMBOL_LEN as usize], GFP_KERNEL)?;
    for address in addresses {
        // SAFETY: The buffer has the length that the function expects.
        let len = unsafe { shim::stackmap_symbol(text.as_mut_ptr().cast(), *address as usize) };
        let mut name = KVec::new();
        name.extend_from_slice(&text[..len as usize], GFP_KERNEL)?;
        names.push((*address, name), GFP_KERNEL)?;
    }
    Ok(Arc::new(names, GFP_KERNEL)?)
}

/// Returns the addresses in `text` that occur in the stacks of a snapshot, sorted. It is not stale: `CHANGE_LOCK`
/// excludes resets.
fn addresses(map: &Map, snapshot: &Epoch, text: &[stackmap_text]) -> Result<KVVec<u64>> {
    let mut addresses = KVVec::new();
    if map.entries() == 0 {
        return Ok(addresses);
    }
    let mut frames: KBox<[u64; MAX_FRAMES]> = KBox::zeroed(GFP_KERNEL)?;
    let mut from = 0;
    while let Some(stack) = map.next(snapshot, from, &mut frames)? {
        from = stack.next();
        for address in &frames[..stack.nr] {
            if !text
                .iter()
                .any(|part| (part.start..part.end).contains(address))
            {
                continue;
            }
            if let Err(index) = addresses.binary_search(address) {
                addresses.reserve(1, GFP_KERNEL)?;
                addresses
                    .insert_within_capacity(index, *address)
                    .map_err(|_| ENOMEM)?;
            }
        }
    }
    Ok(addresses)
}
