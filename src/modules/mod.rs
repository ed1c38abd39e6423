// SPDX-License-Identifier: GPL-2.0

//! What the addresses in recorded stacks are called, also when the module that was there has gone.
//!
//! The kernel names what is at an address now. That is another module's function, if the one that
//! was recorded has been unloaded since and the place is used again. So each time that the text of a
//! module comes or goes, the stacks that have an address there are looked for; if there are any, the
//! place is remembered, together with the [`Snapshot`] of these stacks, and what is there later does not
//! name them. What goes leaves its names, for as long as nothing new comes to the same place: from
//! then on a stack with the same addresses, hence the same id, can be either's.
//!
//! C header: [`include/linux/kallsyms.h`](srctree/include/linux/kallsyms.h)

use crate::{
    map::{InsertEpoch, Map, ReadSide, Snapshot, Stale, MAX_FRAMES},
    published::Published,
    record,
    shim::{self, stackmap_text},
    unwind,
};
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};
use kernel::{error::to_result, global_lock, pr_warn_once, prelude::*, sync::Arc};

/// What an address in a stack is called.
pub(crate) enum Symbol<'a> {
    /// It stands for an ftrace trampoline.
    Trampoline,
    /// As the kernel says now.
    Current,
    /// As the kernel said before that went: `name+0x48/0xc0 [module]`.
    Saved(&'a [u8]),
    /// By nothing but its number: what was there has gone.
    Unknown,
}

/// An address, and what it was called.
type Name = (u64, KVec<u8>);

/// Names, sorted by address.
type Names = Arc<KVVec<Name>>;

/// A part of memory in which the kernel's symbols are not those of the stacks of a cut.
#[derive(Clone)]
struct ChangedText {
    text: Range<u64>,
    snapshot: Snapshot,
    names: Option<Names>,
}

/// The places, the oldest first. Replaced under `CHANGE_LOCK`.
static CHANGED_TEXT: Published<KVVec<ChangedText>> = Published::nothing();

/// Module text that there was no memory to remember: nothing in it is named until the next reset.
static UNNAMED_TEXT: UnnamedText = UnnamedText {
    start: AtomicU64::new(u64::MAX),
    end: AtomicU64::new(0),
};

/// One range around all text that was added, empty at first. Changed under `CHANGE_LOCK`.
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
    // SAFETY: Initialised in `Watch::begin`, before anything takes it.
    unsafe(uninit) static CHANGE_LOCK: Mutex<()> = ();
}

/// The names, while a read-side section lasts.
pub(crate) struct Symbols<'a>(&'a [ChangedText]);

impl<'a> Symbols<'a> {
    /// Gets at the names. Context: any.
    pub(crate) fn read(section: &'a ReadSide) -> Self {
        Self(CHANGED_TEXT.read(section).map_or(&[], |changed| changed))
    }

    /// What `address` is called in a stack that was inserted at `inserted`.
    pub(crate) fn of(&self, inserted: InsertEpoch, address: u64) -> Symbol<'a> {
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

    /// The first place since the stack was inserted.
    fn changed_text(&self, inserted: InsertEpoch, address: u64) -> Option<&'a ChangedText> {
        let mut changed = self.0.iter();
        changed.find(|part| part.text.contains(&address) && part.snapshot.includes(inserted))
    }
}

/// Watches the text of modules until it is dropped.
pub(crate) struct Watch(());

impl Watch {
    /// Begins. Context: process, once.
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
        // SAFETY: `begin` began it; process context.
        unsafe { shim::stackmap_modules_unwatch() };
        let _lock = CHANGE_LOCK.lock();
        CHANGED_TEXT.replace(None);
    }
}

/// Has `reset` remove all stacks, and forgets all changed. Text that comes or goes meanwhile waits: what
/// is remembered of it is of the stacks after the reset. Context: process.
pub(crate) fn reset(reset: impl FnOnce()) {
    let _lock = CHANGE_LOCK.lock();
    reset();
    CHANGED_TEXT.replace(None);
    UNNAMED_TEXT.clear();
}

/// Text of a module comes, and nothing of it has run yet; or goes: nothing of it will run any more,
/// and its symbols are still known. Context: process.
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
        // Nobody records an address in it yet. So those that are there now are all.
        let old = addresses(map, &map.current().map_err(stale)?, text)?;
        if old.is_empty() {
            return Ok(None);
        }
        Ok(Some((map.snapshot().map_err(stale)?, old, None)))
    });
}

fn text_removed(text: &[stackmap_text]) {
    let recording = record::is_on();
    if recording {
        unwind::forget(text);
    }
    remember_change(text, |map| {
        // Who has walked a stack in it may not have inserted it yet, if anybody records at all.
        let mut snapshot = map.current().map_err(stale)?;
        if recording || !addresses(map, &snapshot, text)?.is_empty() {
            snapshot = map.snapshot().map_err(stale)?;
        }
        if recording {
            // Nor have kept a rule of what was alive then.
            unwind::forget(text);
        }
        let old = addresses(map, &snapshot, text)?;
        if old.is_empty() {
            return Ok(None);
        }
        let names = names(&old)?;
        Ok(Some((snapshot, old, Some(names))))
    });
}

/// Remembers that what is at `text` changes, if `look` finds addresses there in the stacks of a cut.
fn remember_change(
    text: &[stackmap_text],
    look: impl FnOnce(&Map) -> Result<Option<(Snapshot, KVVec<u64>, Option<Names>)>>,
) {
    let Some(map) = record::map() else {
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
                let place = ChangedText {
                    text: part,
                    snapshot,
                    names: names.clone(),
                };
                changed.push(place, GFP_KERNEL)?;
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

/// What is called by old names from now on may be the new text: they are forgotten.
fn drop_names(changed: &mut KVVec<ChangedText>, text: &Range<u64>) {
    for part in changed.iter_mut() {
        if part.text.start < text.end && text.start < part.text.end {
            part.names = None;
        }
    }
    // The cut of the place that is about to be remembered holds all stacks of these.
    changed.retain(|part| {
        part.names.is_some() || part.text.start < text.start || part.text.end > text.end
    });
}

/// What the kernel calls these addresses now.
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

/// A reset removes all stacks, but none runs while we hold `CHANGE_LOCK`.
fn stale(Stale: Stale) -> Error {
    EBUSY
}

/// The addresses in `text` that the kernel's symbols name in a stack of the cut, sorted.
fn addresses(map: &Map, snapshot: &Snapshot, text: &[stackmap_text]) -> Result<KVVec<u64>> {
    let mut addresses = KVVec::new();
    if map.entries() == 0 {
        return Ok(addresses);
    }
    let mut frames: KBox<[u64; MAX_FRAMES]> = KBox::zeroed(GFP_KERNEL)?;
    let mut from = 0;
    while let Some(stack) = map.next(snapshot, from, &mut frames).map_err(stale)? {
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
