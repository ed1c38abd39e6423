// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was read of a source.

use super::{differ, Source};
use crate::{
    capture::Manifest,
    error::Result,
    filter::Filter,
    stack_map_bin::{LoadId, Stack},
    stacks::Stacks,
    stat::Stat,
    symbols::{modules::Modules, texts::ByNumber, Place, Symbols},
    tally::Key,
    trace::{Sides, StackRef, UserRef},
    user::User,
    weight::Weight,
};
use std::collections::HashSet;

/// Stacks, and what it takes to read them.
#[derive(Default)]
pub struct Loaded {
    /// The stacks.
    pub stacks: Stacks,
    /// Names.
    pub symbols: Symbols,
    /// The modules that were loaded.
    pub modules: Modules,
    /// The counters of the map.
    pub stat: Option<Stat>,
    /// What the capture says about itself, if it is one.
    pub manifest: Option<Manifest>,
    /// How many bits of an id lie below its generation, if that is known.
    pub slot_bits: Option<u32>,
    /// The load of the module that the trace is of, if that is known.
    pub trace_load: Option<LoadId>,
    /// The user stacks that led to those of the kernel.
    pub user: User,
    /// Which stacks are wanted.
    pub shown: Shown,
    /// Which events are wanted.
    pub filter: Filter,
    /// What they are counted by.
    pub weight: Weight,
}

/// Which stacks of an event are wanted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Shown {
    /// Both.
    #[default]
    Both,
    /// That of the kernel.
    Kernel,
    /// The user stack.
    User,
}

impl Shown {
    /// What is wanted of them.
    pub fn of(self, sides: Sides<'_>) -> Sides<'_> {
        match self {
            Shown::Both => sides,
            Shown::Kernel => sides.kernel.into(),
            Shown::User => Sides {
                kernel: StackRef::None,
                ..sides
            },
        }
    }
}

/// Why there is no stack for an id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missing {
    /// The map was reset since.
    Stale,
    /// The module was reloaded: the stacks are of another load than the id.
    Gone,
    /// The map does not have it.
    Unknown,
}

#[cfg(test)]
impl Loaded {
    /// Returns the names of a kallsyms, for tests.
    pub(crate) fn named(kallsyms: &str) -> Self {
        let modules = Modules::default();
        let kallsyms = crate::symbols::kallsyms::Kallsyms::parse(kallsyms.into(), &modules, "");
        let mut loaded = Self::default();
        loaded.symbols.kallsyms = Some(kallsyms.unwrap());
        loaded
    }
}

impl Missing {
    /// Returns the reason in a word.
    pub fn word(self) -> &'static str {
        match self {
            Missing::Stale => "stale",
            Missing::Gone => "gone",
            Missing::Unknown => "unknown",
        }
    }
}

impl Loaded {
    /// Returns why an event has no stack of the kernel, if it has an id without a stack.
    pub fn lacks_stack(&self, stack: StackRef<'_>) -> Option<&'static str> {
        match stack {
            StackRef::Id(id) if self.stack(id).is_none() => Some(self.missing(id).word()),
            _ => None,
        }
    }

    /// Returns why an event has no user stack, if it ought to have one.
    pub fn lacks_user_stack(&self, user: UserRef) -> Option<&'static str> {
        match user {
            UserRef::Id(id) if self.user_stack(id).is_some() => None,
            UserRef::Id(_) => Some(self.missing_user().word()),
            UserRef::NotKept => Some("not kept"),
            UserRef::Pending => Some("pending"),
            UserRef::Lost => Some("lost"),
            UserRef::None => None,
        }
    }

    /// Returns the stack of an id of the trace.
    pub fn stack(&self, id: u32) -> Option<Stack<'_>> {
        self.stack_index(id).map(|index| self.stacks.at(index))
    }

    /// Returns the index of that stack in [`stacks`](Self::stacks).
    pub fn stack_index(&self, id: u32) -> Option<usize> {
        match self.is_gone() {
            true => None,
            false => self.stacks.index(id),
        }
    }

    /// Returns how many addresses in the kernel's stacks have no name, if there is any source of names, and how many
    /// there are.
    pub fn unnamed(&self) -> (usize, usize) {
        if self.symbols.is_empty() {
            return (0, 0);
        }
        let addresses: ByNumber<u64, bool> = self.stacks.frames().collect();
        let has_name = |(ip, exact): (&u64, &bool)| {
            let mut frames = self.symbols.frames(*ip, *exact);
            frames.any(|frame| frame.place != Place::Unknown)
        };
        let named = addresses.iter().filter(|address| has_name(*address));
        (addresses.len() - named.count(), addresses.len())
    }

    /// Of the two maps, the one that is wanted where only one can be shown, and what its ids are.
    pub fn map(&self) -> (&Stacks, fn(u32) -> Key) {
        let user = self.shown == Shown::User || self.stacks.is_empty();
        match user && !self.user.stacks.is_empty() {
            true => (&self.user.stacks, Key::of_user_id),
            false => (&self.stacks, Key::of_id),
        }
    }

    /// Whether there is a user stack of an id of the trace.
    pub fn has_user_stack(&self, id: u32) -> bool {
        !self.is_user_gone() && self.user.has(id)
    }

    /// The user stack of an id of the trace, if it was read.
    pub fn user_stack(&self, id: u32) -> Option<Stack<'_>> {
        match self.is_user_gone() {
            true => None,
            false => self.user.stacks.get(id),
        }
    }

    /// Reads those of the `wanted` user stacks that were left, and looks their frames up.
    pub fn read_users(&mut self, source: &mut Source, wanted: &HashSet<u32>) -> Result {
        if self.user.unread.is_empty() || wanted.is_empty() {
            return Ok(());
        }
        let stacks = &mut self.user.stacks;
        source.user_stacks(&mut |stack| {
            if wanted.contains(&stack.id) {
                // There is no id twice, and there were as many before.
                let _ = stacks.push(stack);
            }
        })?;
        self.user.prime(&mut |_| {});
        Ok(())
    }

    /// Why there is no user stack for an id of the trace.
    pub fn missing_user(&self) -> Missing {
        if self.is_user_gone() {
            return Missing::Gone;
        }
        match &self.manifest {
            Some(Manifest { reset: true, .. }) => Missing::Stale,
            _ => Missing::Unknown,
        }
    }

    /// Whether the stacks are known to be of another load of the module than the trace.
    fn is_gone(&self) -> bool {
        differ(self.trace_load, self.stacks.load_id())
    }

    /// The same of the user stacks.
    fn is_user_gone(&self) -> bool {
        let load = self.trace_load.or(self.stacks.load_id());
        differ(load, self.user.load_id())
    }

    /// Why there is no stack for `id`.
    pub fn missing(&self, id: u32) -> Missing {
        if self.is_gone() {
            return Missing::Gone;
        }
        let generation = match &self.manifest {
            Some(manifest) => manifest.generation,
            None => self.stacks.generation(self.slot_bits),
        };
        let of_id = self.slot_bits.and_then(|bits| id.checked_shr(bits));
        match (generation, of_id) {
            (Some(generation), Some(of_id)) if generation != of_id => Missing::Stale,
            // A map that is read after its ids were recorded is only empty after a reset.
            (None, _) if self.stacks.is_empty() && self.stat.is_some() => Missing::Stale,
            _ => Missing::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack_map_bin::{write_user, Order};

    #[test]
    fn user_stacks_of_another_load_are_gone() {
        let stack = Stack::example(5, &[1]);
        let mut file = Vec::new();
        let load = LoadId::new(42);
        write_user(&mut file, Order::Little, load, [stack].into_iter()).unwrap();
        let read = |trace_load, later| {
            let mut user = User::default();
            match later {
                true => user.unread = Stacks::read_user_ids(&file[..], "", &mut |_| {}).unwrap(),
                false => user.stacks = Stacks::read_user(&file[..], "").unwrap(),
            }
            Loaded {
                trace_load,
                user,
                ..Loaded::default()
            }
        };
        for later in [true, false] {
            for of in [load, None] {
                let loaded = read(of, later);
                assert!(loaded.has_user_stack(5) && !loaded.has_user_stack(6));
                assert_eq!(loaded.user_stack(5).is_some(), !later);
                assert_eq!(loaded.missing_user(), Missing::Unknown);
            }
            let loaded = read(LoadId::new(43), later);
            assert!(!loaded.has_user_stack(5) && loaded.user_stack(5).is_none());
            assert_eq!(loaded.missing_user(), Missing::Gone);
        }
    }
}
