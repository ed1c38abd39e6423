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
    map::{Cut, Map, Moment, ReadSide, MAX_FRAMES},
    record, shim, unwind,
};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};
use kernel::{
    bindings,
    error::to_result,
    global_lock, pr_warn_once,
    prelude::*,
    sync::{Arc, GlobalGuard},
};

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

/// A part of memory in which the kernel's symbols are not those of the stacks of a cut.
#[derive(Clone)]
struct Place {
    text: Range<u64>,
    cut: Cut,
    /// Sorted by address.
    names: Option<Arc<KVec<Name>>>,
}

/// The places, the oldest first; null if there are none.
///
/// They are replaced under `CHANGE`; the old ones are freed after a grace period.
static PLACES: AtomicPtr<KVec<Place>> = AtomicPtr::new(core::ptr::null_mut());

/// Whether there was no memory to remember a place: nothing is named until the next reset.
static BLIND: AtomicBool = AtomicBool::new(false);

global_lock! {
    // SAFETY: Initialised in `Watch::begin`, before anything takes it.
    unsafe(uninit) static CHANGE: Mutex<()> = ();
}

/// The names, while a read-side section lasts.
pub(crate) struct Symbols<'a>(&'a [Place]);

impl<'a> Symbols<'a> {
    /// Gets at the names. Context: any.
    pub(crate) fn read(_section: &'a ReadSide) -> Self {
        // ORDERING: Acquire; pairs with the swap in `replace`.
        let places = PLACES.load(Ordering::Acquire);
        // SAFETY: Null or valid; what `replace` has taken away it frees only when all sections have
        // ended that began before.
        Self(unsafe { places.as_ref() }.map_or(&[], |places| places))
    }

    /// What `address` is called in a stack that was inserted at `inserted`.
    pub(crate) fn of(&self, inserted: Moment, address: u64) -> Symbol<'a> {
        if address == u64::from(shim::STACKMAP_TRAMPOLINE_MARKER) {
            return Symbol::Trampoline;
        }
        let names = match self.place(inserted, address) {
            Some(place) => &place.names,
            None if BLIND.load(Ordering::Relaxed) => return Symbol::Gone,
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
        forget();
    }
}

/// Forgets all places, after the stacks have been removed. Context: process.
pub(crate) fn forget() {
    replace(&CHANGE.lock(), None);
    BLIND.store(false, Ordering::Relaxed);
}

/// Text comes; nothing of it has run yet. Context: process.
#[no_mangle]
extern "C" fn stackmap_text_coming(start: usize, end: usize) {
    unwind::forget(&(start as u64..end as u64));
    changes(start as u64..end as u64, |_, text, names| {
        // What is called by the old names from now on may be the new text.
        for place in names.iter_mut() {
            if place.text.start < text.end && text.start < place.text.end {
                place.names = None;
            }
        }
        // The cut of the place that is about to be remembered holds all stacks of these.
        names.retain(|place| {
            place.names.is_some() || place.text.start < text.start || place.text.end > text.end
        });
        Ok(None)
    });
}

/// Text goes; nothing of it will run any more, and its symbols are still known. Context: process.
#[no_mangle]
extern "C" fn stackmap_text_going(start: usize, end: usize) {
    unwind::forget(&(start as u64..end as u64));
    changes(start as u64..end as u64, |addresses, _, _| {
        let mut names = KVec::with_capacity(addresses.len(), GFP_KERNEL)?;
        let mut text = KBox::new([0; shim::STACKMAP_SYMBOL_LEN as usize], GFP_KERNEL)?;
        for address in addresses {
            // SAFETY: The buffer has the length that the function expects.
            let len = unsafe { shim::stackmap_symbol(text.as_mut_ptr().cast(), *address as usize) };
            let mut name = KVec::new();
            name.extend_from_slice(&text[..len as usize], GFP_KERNEL)?;
            names.push((*address, name), GFP_KERNEL)?;
        }
        Ok(Some(Arc::new(names, GFP_KERNEL)?))
    });
}

/// Remembers that what is at `text` changes, if a stack has an address there. `names` is given these
/// addresses, the text, and all places so far, and returns the names that the new place gets.
fn changes(
    text: Range<u64>,
    names: impl FnOnce(&[u64], &Range<u64>, &mut KVec<Place>) -> Result<Option<Arc<KVec<Name>>>>,
) {
    let Some(map) = record::map() else {
        return;
    };
    if map.entries() == 0 {
        return;
    }
    let lock = CHANGE.lock();
    let change = || -> Result {
        // A reset meanwhile removes all stacks that there were.
        let Ok(cut) = map.cut() else {
            return Ok(());
        };
        let addresses = addresses(map, &cut, &text)?;
        if addresses.is_empty() {
            return Ok(());
        }
        let mut places = KVec::new();
        for place in places_now(&lock) {
            places.push(place.clone(), GFP_KERNEL)?;
        }
        let names = names(&addresses, &text, &mut places)?;
        places.push(Place { text, cut, names }, GFP_KERNEL)?;
        replace(&lock, Some(KBox::new(places, GFP_KERNEL)?));
        Ok(())
    };
    if change().is_err() {
        BLIND.store(true, Ordering::Relaxed);
        pr_warn_once!("no memory for the names of a module: addresses until the next reset\n");
    }
}

/// The addresses in `text` that the kernel's symbols name in a stack of the cut, sorted.
fn addresses(map: &Map, cut: &Cut, text: &Range<u64>) -> Result<KVec<u64>> {
    let mut frames: KBox<[u64; MAX_FRAMES]> = KBox::zeroed(GFP_KERNEL)?;
    let mut addresses = KVec::new();
    let mut from = 0;
    // What fails is stale: a reset has removed the stacks.
    while let Some(stack) = map.next(cut, from, &mut frames).unwrap_or(None) {
        from = stack.next();
        for address in &frames[..stack.nr] {
            if !text.contains(address) {
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

/// The places, for who may change them.
fn places_now(_lock: &GlobalGuard<CHANGE>) -> &[Place] {
    let places = PLACES.load(Ordering::Relaxed);
    // SAFETY: Null or valid; it is freed only under the lock, by `replace`.
    unsafe { places.as_ref() }.map_or(&[], |places| places)
}

/// Replaces the places.
fn replace(_lock: &GlobalGuard<CHANGE>, places: Option<KBox<KVec<Place>>>) {
    let new = places.map_or(core::ptr::null_mut(), KBox::into_raw);
    // ORDERING: Release; pairs with the load in `Symbols::read`.
    let old = PLACES.swap(new, Ordering::Release);
    if old.is_null() {
        return;
    }
    // SAFETY: Process context; the lock is none that a reader takes.
    unsafe { bindings::synchronize_rcu() };
    // SAFETY: `replace` made it of a box; nobody has it since the grace period.
    drop(unsafe { KBox::from_raw(old) });
}
