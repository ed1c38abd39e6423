// SPDX-License-Identifier: GPL-2.0

//! What the addresses in recorded stacks are called, also when the module that was there has gone.
//!
//! The kernel names what is at an address now. That is another module's function, if the one that
//! was recorded has been unloaded since and the place is used again. So each time that the text of a
//! module comes or goes, the stacks that have an address there are looked for; if there are any, the
//! place is remembered, together with the [`Cut`] of these stacks, and what is there later does not
//! name them. What goes leaves its names, for as long as nothing new comes to the same place: from
//! then on a stack with the same addresses, hence the same id, can be either's.
//!
//! C header: [`include/linux/kallsyms.h`](srctree/include/linux/kallsyms.h)

use crate::{
    map::{Cut, Map, Moment, ReadSide, Stale, MAX_FRAMES},
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
    Now,
    /// As the kernel said before that went: `name+0x48/0xc0 [module]`.
    Then(&'a [u8]),
    /// By nothing but its number: what was there has gone.
    Gone,
}

/// An address, and what it was called.
type Name = (u64, KVec<u8>);

/// Names, sorted by address.
type Names = Arc<KVVec<Name>>;

/// A part of memory in which the kernel's symbols are not those of the stacks of a cut.
#[derive(Clone)]
struct Place {
    text: Range<u64>,
    cut: Cut,
    names: Option<Names>,
}

/// The places, the oldest first. Replaced under `CHANGE`.
static PLACES: Published<KVVec<Place>> = Published::nothing();

/// Module text that there was no memory to remember: nothing in it is named until the next reset.
static BLIND: Blind = Blind {
    start: AtomicU64::new(u64::MAX),
    end: AtomicU64::new(0),
};

/// One range around all text that was added, empty at first. Changed under `CHANGE`.
struct Blind {
    start: AtomicU64,
    end: AtomicU64,
}

impl Blind {
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
    unsafe(uninit) static CHANGE: Mutex<()> = ();
}

/// The names, while a read-side section lasts.
pub(crate) struct Symbols<'a>(&'a [Place]);

impl<'a> Symbols<'a> {
    /// Gets at the names. Context: any.
    pub(crate) fn read(section: &'a ReadSide) -> Self {
        Self(PLACES.read(section).map_or(&[], |places| places))
    }

    /// What `address` is called in a stack that was inserted at `inserted`.
    pub(crate) fn of(&self, inserted: Moment, address: u64) -> Symbol<'a> {
        if address == u64::from(shim::STACKMAP_TRAMPOLINE_MARKER) {
            return Symbol::Trampoline;
        }
        if BLIND.contains(address) {
            return Symbol::Gone;
        }
        let names = match self.place(inserted, address) {
            Some(place) => &place.names,
            None => return Symbol::Now,
        };
        let Some(names) = names else {
            return Symbol::Gone;
        };
        match names.binary_search_by_key(&address, |name| name.0) {
            Ok(index) => Symbol::Then(&names[index].1),
            Err(_) => Symbol::Gone,
        }
    }

    /// The first place since the stack was inserted.
    fn place(&self, inserted: Moment, address: u64) -> Option<&'a Place> {
        let mut places = self.0.iter();
        places.find(|place| place.text.contains(&address) && place.cut.holds(inserted))
    }
}

/// Watches the text of modules until it is dropped.
pub(crate) struct Watch(());

impl Watch {
    /// Begins. Context: process, once.
    pub(crate) fn begin() -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CHANGE.init() };
        // SAFETY: Process context; dropping the result ends it.
        to_result(unsafe { shim::stackmap_modules_watch() })?;
        Ok(Self(()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: `begin` began it; process context.
        unsafe { shim::stackmap_modules_unwatch() };
        let _lock = CHANGE.lock();
        PLACES.replace(None);
    }
}

/// Has `reset` remove all stacks, and forgets all places. Text that comes or goes meanwhile waits: what
/// is remembered of it is of the stacks after the reset. Context: process.
pub(crate) fn reset(reset: impl FnOnce()) {
    let _lock = CHANGE.lock();
    reset();
    PLACES.replace(None);
    BLIND.clear();
}

/// Text of a module comes, and nothing of it has run yet; or goes: nothing of it will run any more,
/// and its symbols are still known. Context: process.
///
/// # Safety
///
/// `text` points to `nr` elements.
#[no_mangle]
unsafe extern "C" fn stackmap_text_changes(text: *const stackmap_text, nr: c_uint, goes: bool) {
    // SAFETY: By the requirement.
    let text = unsafe { core::slice::from_raw_parts(text, nr as usize) };
    if goes {
        going(text);
    } else {
        coming(text);
    }
}

fn coming(text: &[stackmap_text]) {
    changes(text, |map| {
        // Nobody records an address in it yet. So those that are there now are all.
        let old = addresses(map, &map.now().map_err(stale)?, text)?;
        if old.is_empty() {
            return Ok(None);
        }
        Ok(Some((map.cut().map_err(stale)?, old, None)))
    });
}

fn going(text: &[stackmap_text]) {
    let recording = record::is_on();
    if recording {
        unwind::forget(text);
    }
    changes(text, |map| {
        // Who has walked a stack in it may not have inserted it yet, if anybody records at all.
        let mut cut = map.now().map_err(stale)?;
        if recording || !addresses(map, &cut, text)?.is_empty() {
            cut = map.cut().map_err(stale)?;
        }
        if recording {
            // Nor have kept a rule of what was alive then.
            unwind::forget(text);
        }
        let old = addresses(map, &cut, text)?;
        if old.is_empty() {
            return Ok(None);
        }
        let names = names(&old)?;
        Ok(Some((cut, old, Some(names))))
    });
}

/// Remembers that what is at `text` changes, if `look` finds addresses there in the stacks of a cut.
fn changes(
    text: &[stackmap_text],
    look: impl FnOnce(&Map) -> Result<Option<(Cut, KVVec<u64>, Option<Names>)>>,
) {
    let Some(map) = record::map() else {
        return;
    };
    let _lock = CHANGE.lock();
    let change = || -> Result {
        let Some((cut, addresses, names)) = look(&map)? else {
            return Ok(());
        };
        let mut places = KVVec::new();
        if let Some(now) = PLACES.get() {
            for place in now.iter() {
                places.push(place.clone(), GFP_KERNEL)?;
            }
        }
        for part in text {
            let part = part.start..part.end;
            if names.is_none() {
                unname(&mut places, &part);
            }
            if addresses.iter().any(|address| part.contains(address)) {
                let place = Place {
                    text: part,
                    cut,
                    names: names.clone(),
                };
                places.push(place, GFP_KERNEL)?;
            }
        }
        PLACES.replace(Some(Arc::new(places, GFP_KERNEL)?));
        Ok(())
    };
    if change().is_err() {
        text.iter().for_each(|part| BLIND.add(part));
        pr_warn_once!(
            "out of memory saving module symbols; their frames are shown as addresses until reset\n"
        );
    }
}

/// What is called by old names from now on may be the new text: they are forgotten.
fn unname(places: &mut KVVec<Place>, text: &Range<u64>) {
    for place in places.iter_mut() {
        if place.text.start < text.end && text.start < place.text.end {
            place.names = None;
        }
    }
    // The cut of the place that is about to be remembered holds all stacks of these.
    places.retain(|place| {
        place.names.is_some() || place.text.start < text.start || place.text.end > text.end
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

/// A reset removes all stacks, but none runs while we hold `CHANGE`.
fn stale(Stale: Stale) -> Error {
    EBUSY
}

/// The addresses in `text` that the kernel's symbols name in a stack of the cut, sorted.
fn addresses(map: &Map, cut: &Cut, text: &[stackmap_text]) -> Result<KVVec<u64>> {
    let mut addresses = KVVec::new();
    if map.entries() == 0 {
        return Ok(addresses);
    }
    let mut frames: KBox<[u64; MAX_FRAMES]> = KBox::zeroed(GFP_KERNEL)?;
    let mut from = 0;
    while let Some(stack) = map.next(cut, from, &mut frames).map_err(stale)? {
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
