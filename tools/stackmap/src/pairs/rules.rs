// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which events belong together, and by what.

use crate::trace::Event;
use std::{collections::HashMap, rc::Rc};

/// How much an event is of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Size {
    /// One.
    One,
    /// What this field says, in bytes.
    Field(String),
    /// Pages; this field says how many, as a power of two.
    Pages(String),
}

/// The name of an event, with or without its system.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventName {
    system: Option<String>,
    name: String,
}

impl EventName {
    /// Reads `system:event` or `event`.
    pub fn new(text: &str) -> Result<Self, String> {
        let (system, name) = match text.split_once([':', '/']) {
            Some((system, name)) => (Some(system), name),
            None => (None, text),
        };
        if name.is_empty() || system == Some("") || text.contains(['*', '?']) {
            return Err("not the name of an event".to_owned());
        }
        Ok(Self {
            system: system.map(str::to_owned),
            name: name.to_owned(),
        })
    }

    fn is(&self, event: &Event) -> bool {
        let system = self.system.as_deref();
        self.name == event.name && (system.is_none() || system == event.system())
    }
}

/// A field of the key, by its name in the first event and in the last one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyField(String, String);

impl KeyField {
    /// Reads `FIELD`, or `FIRST=LAST` if its names differ.
    pub fn new(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('=').unwrap_or((text, text));
        match first.is_empty() || last.is_empty() {
            true => Err("not the name of a field".to_owned()),
            false => Ok(Self(first.to_owned(), last.to_owned())),
        }
    }
}

/// What an event is in a pair.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// The number of the pair.
    pub(super) pair: u32,
    /// Whether something begins with it.
    pub(super) is_first: bool,
    /// What such a pair is called.
    pub(super) name: String,
    /// The fields that are the same in both.
    pub(super) key: Vec<String>,
    pub(super) size: Size,
    /// What the first field of the key is if there is nothing.
    nothing: Nothing,
    /// Whether what has begun goes on if it begins again; otherwise it begins anew.
    pub(super) goes_on: bool,
}

/// Keys of nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Nothing {
    /// There are none.
    No,
    /// These.
    These(&'static [u64]),
    /// Errors: negative numbers.
    Negative,
}

impl Role {
    /// The fields that its event is to have.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        let key = self.key.iter().map(String::as_str);
        key.chain(self.size_field())
    }

    /// The field that says how much it is of.
    pub(super) fn size_field(&self) -> Option<&str> {
        match &self.size {
            Size::One => None,
            Size::Field(field) | Size::Pages(field) => Some(field),
        }
    }

    /// Whether nothing begins or ends with such a key: its first number, and whether that has a minus.
    pub(super) fn is_nothing(&self, id: u64, is_negative: bool) -> bool {
        match self.nothing {
            Nothing::No => false,
            Nothing::These(ids) => ids.contains(&id),
            Nothing::Negative => is_negative,
        }
    }
}

/// The system of an event, and what the event is.
type Known = (Option<String>, Rc<[Role]>);

/// Events, and what they are.
type Roles = Vec<(EventName, Role)>;

/// `NULL`, and what kmalloc() returns for no bytes.
const NO_OBJECT: Nothing = Nothing::These(&[0, 16]);
/// The number of no page.
const NO_PAGE: Nothing = Nothing::These(&[u64::MAX, u32::MAX as u64]);

/// Pairs that have a length: the system, the first and the last event, the fields that are the same.
const LATENCIES: [(&str, &str, &str, &[&str]); 17] = [
    (
        "block",
        "block_rq_insert",
        "block_rq_issue",
        &["dev", "sector"],
    ),
    (
        "block",
        "block_rq_issue",
        "block_rq_complete",
        &["dev", "sector"],
    ),
    (
        "irq",
        "irq_handler_entry",
        "irq_handler_exit",
        &["irq", "common_cpu"],
    ),
    (
        "irq",
        "softirq_raise",
        "softirq_entry",
        &["vec", "common_cpu"],
    ),
    (
        "irq",
        "softirq_entry",
        "softirq_exit",
        &["vec", "common_cpu"],
    ),
    ("irq", "tasklet_entry", "tasklet_exit", &["tasklet"]),
    (
        "workqueue",
        "workqueue_queue_work",
        "workqueue_execute_start",
        &["work"],
    ),
    (
        "workqueue",
        "workqueue_execute_start",
        "workqueue_execute_end",
        &["work"],
    ),
    (
        "timer",
        "timer_expire_entry",
        "timer_expire_exit",
        &["timer"],
    ),
    (
        "timer",
        "hrtimer_expire_entry",
        "hrtimer_expire_exit",
        &["hrtimer"],
    ),
    (
        "lock",
        "contention_begin",
        "contention_end",
        &["lock_addr", "common_pid"],
    ),
    (
        "vmscan",
        "mm_vmscan_direct_reclaim_begin",
        "mm_vmscan_direct_reclaim_end",
        &["common_pid"],
    ),
    (
        "vmscan",
        "mm_vmscan_memcg_reclaim_begin",
        "mm_vmscan_memcg_reclaim_end",
        &["common_pid"],
    ),
    (
        "compaction",
        "mm_compaction_begin",
        "mm_compaction_end",
        &["common_pid"],
    ),
    (
        "raw_syscalls",
        "sys_enter",
        "sys_exit",
        &["common_pid", "id"],
    ),
    (
        "nvme",
        "nvme_setup_cmd",
        "nvme_complete_rq",
        &["ctrl_id", "qid", "cid"],
    ),
    (
        "scsi",
        "scsi_dispatch_cmd_start",
        "scsi_dispatch_cmd_done",
        &["host_no", "channel", "id", "lun", "driver_tag"],
    ),
];

/// What is raised twice is run once, from the first time on.
const RAISED: &str = "softirq_raise";

/// The names of system calls begin so.
const SYSCALLS: (&str, &str) = ("sys_enter_", "sys_exit_");

/// Which events belong together.
#[derive(Debug)]
pub struct Rules {
    roles: Roles,
    /// The roles of events that were met, by name and then by system.
    known: HashMap<String, Vec<Known>>,
    /// Whether system calls are pairs, too.
    has_syscalls: bool,
    /// The numbers of the pairs of system calls, by name.
    syscalls: HashMap<String, u32>,
    nr_pairs: u32,
    /// Whether there is more to say of an event than that it was there.
    pub has_sizes: bool,
}

impl Rules {
    fn new(roles: Roles, nr_pairs: u32) -> Self {
        Self {
            has_sizes: roles.iter().any(|(_, role)| role.size != Size::One),
            roles,
            known: HashMap::new(),
            has_syscalls: false,
            syscalls: HashMap::new(),
            nr_pairs,
        }
    }

    /// What the kernel allocates and frees: objects and pages.
    pub fn memory() -> Self {
        let bytes = || Size::Field("bytes_alloc".to_owned());
        let pages = || Size::Pages("order".to_owned());
        // kfree() takes objects of caches, too.
        let roles = [
            ("kmalloc", 0, "ptr", true, bytes(), NO_OBJECT),
            ("kmem_cache_alloc", 0, "ptr", true, bytes(), NO_OBJECT),
            ("kfree", 0, "ptr", false, Size::One, NO_OBJECT),
            ("kmem_cache_free", 0, "ptr", false, Size::One, NO_OBJECT),
            ("mm_page_alloc", 1, "pfn", true, pages(), NO_PAGE),
            ("mm_page_free", 1, "pfn", false, pages(), NO_PAGE),
        ];
        let roles = roles.map(|(name, pair, field, is_first, size, nothing)| {
            let event = EventName {
                system: Some("kmem".to_owned()),
                name: name.to_owned(),
            };
            let role = Role {
                pair,
                is_first,
                name: name.to_owned(),
                key: vec![field.to_owned()],
                size,
                nothing,
                goes_on: false,
            };
            (event, role)
        });
        Self::new(roles.into(), 2)
    }

    /// What has a length in the kernel's own events.
    pub fn latencies() -> Self {
        let mut roles = Vec::new();
        for (pair, (system, first, last, key)) in (0..).zip(LATENCIES) {
            let name = |name: &str| EventName {
                system: Some(system.to_owned()),
                name: name.to_owned(),
            };
            let key: Vec<_> = key.iter().map(|field| KeyField::new(field)).collect();
            let key: Vec<_> = key.into_iter().flatten().collect();
            let mut pair = roles_of(pair, name(first), name(last), &key, Size::One);
            pair[0].1.goes_on = first == RAISED;
            roles.extend(pair);
        }
        Self {
            has_syscalls: true,
            ..Self::new(roles, LATENCIES.len() as u32)
        }
    }

    /// One pair that has a length.
    pub fn latency(first: EventName, last: EventName, key: &[KeyField]) -> Self {
        Self::new(roles_of(0, first, last, key, Size::One).into(), 1)
    }

    /// What one event allocates, and another one frees. A negative key is an error, and nothing that would be freed.
    pub fn resource(first: EventName, last: EventName, key: &[KeyField], size: Size) -> Self {
        let mut roles = roles_of(0, first, last, key, size);
        roles[0].1.nothing = Nothing::Negative;
        Self::new(roles.into(), 1)
    }

    /// What an event is.
    pub(super) fn roles(&mut self, event: &Event) -> Rc<[Role]> {
        let known = self.known.get(&event.name).into_iter().flatten();
        let mut known = known.filter(|(system, _)| system.as_deref() == event.system());
        if let Some((_, roles)) = known.next() {
            return roles.clone();
        }
        let roles = self.roles.iter().filter(|(name, _)| name.is(event));
        let mut roles: Vec<_> = roles.map(|(_, role)| role.clone()).collect();
        roles.extend(self.syscall(event));
        // What ends comes before what begins with the same event.
        roles.sort_by_key(|role| role.is_first);
        let roles: Rc<[Role]> = roles.into();
        let system = event.system().map(str::to_owned);
        let known = self.known.entry(event.name.clone()).or_default();
        known.push((system, roles.clone()));
        roles
    }

    fn syscall(&mut self, event: &Event) -> Option<Role> {
        if !self.has_syscalls || event.system() != Some("syscalls") {
            return None;
        }
        let first = event.name.strip_prefix(SYSCALLS.0);
        let call = first.or(event.name.strip_prefix(SYSCALLS.1))?;
        let pair = *self
            .syscalls
            .entry(call.to_owned())
            .or_insert(self.nr_pairs);
        self.nr_pairs = self.nr_pairs.max(pair + 1);
        Some(Role {
            pair,
            is_first: first.is_some(),
            name: format!("{call}()"),
            key: vec!["common_pid".to_owned()],
            size: Size::One,
            nothing: Nothing::No,
            goes_on: false,
        })
    }
}

fn roles_of(
    pair: u32,
    first: EventName,
    last: EventName,
    key: &[KeyField],
    size: Size,
) -> [(EventName, Role); 2] {
    let name = format!("{} -> {}", first.name, last.name);
    let role = |is_first, key, size| Role {
        pair,
        is_first,
        name: name.clone(),
        key,
        size,
        nothing: Nothing::No,
        goes_on: false,
    };
    let of_first = key.iter().map(|field| field.0.clone()).collect();
    let of_last = key.iter().map(|field| field.1.clone()).collect();
    let of_first = role(true, of_first, size);
    [(first, of_first), (last, role(false, of_last, Size::One))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_events_have_no_wildcards() {
        for text in ["", "a:", ":a", "a*", "a:?"] {
            assert!(EventName::new(text).is_err(), "{text}");
        }
        let name = EventName::new("kmem:kfree").unwrap();
        assert_eq!(name.system.as_deref(), Some("kmem"));
        assert_eq!(EventName::new("kfree").unwrap().system, None);
    }

    #[test]
    fn fields_of_keys_may_have_two_names() {
        for text in ["", "=a", "a="] {
            assert!(KeyField::new(text).is_err(), "{text}");
        }
        let field = |first: &str, last: &str| KeyField(first.to_owned(), last.to_owned());
        assert_eq!(KeyField::new("ret=fd").unwrap(), field("ret", "fd"));
        assert_eq!(KeyField::new("ptr").unwrap(), field("ptr", "ptr"));
    }
}
