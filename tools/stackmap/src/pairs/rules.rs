// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which events belong together, and by what.

use crate::{symbols::texts::ByNumber, trace::Event};
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

/// Reads the name of an event, with or without its system: `system:event` or `event`.
pub fn event_name(text: &str) -> Result<String, String> {
    let text = text.replacen('/', ":", 1);
    let (system, name) = text.split_once(':').unwrap_or((" ", &text));
    match name.is_empty() || system.is_empty() || text.contains(['*', '?']) {
        true => Err("not the name of an event".to_owned()),
        false => Ok(text),
    }
}

/// A field of the key, by its name in the first event and in the last one.
pub type KeyField = (String, String);

/// Reads `FIELD`, or `FIRST=LAST` if its names differ.
pub fn key_field(text: &str) -> Result<KeyField, String> {
    let (first, last) = text.split_once('=').unwrap_or((text, text));
    match first.is_empty() || last.is_empty() {
        true => Err("not the name of a field".to_owned()),
        false => Ok((first.to_owned(), last.to_owned())),
    }
}

/// Whether an event has a name.
fn is_named(event: &Event, name: &str) -> bool {
    match name.split_once(':') {
        Some((system, name)) => name == &*event.name && Some(system) == event.system(),
        None => name == &*event.name,
    }
}

/// Where in a pair an event is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// A pair begins with it.
    First,
    /// It comes between the first event and the last one: who wakes a task up.
    Middle,
    /// A pair ends with it.
    Last,
}

/// What an event is in a pair.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// The number of the pair.
    pub(super) pair: u32,
    pub(super) part: Part,
    /// What such a pair is called.
    pub(super) name: String,
    /// The fields that are the same in all events of the pair.
    pub(super) key: Vec<String>,
    pub(super) size: Size,
    /// What the first field of the key is if there is nothing.
    nothing: Nothing,
    /// Whether what has begun goes on if it begins again; otherwise it begins anew.
    pub(super) goes_on: bool,
}

/// Keys of nothing.
#[derive(Clone, Copy, Debug)]
enum Nothing {
    /// These.
    These(&'static [u64]),
    /// Errors: negative numbers.
    Negative,
}

impl Role {
    fn new(pair: u32, part: Part, name: &str, key: &[impl AsRef<str>]) -> Self {
        Self {
            pair,
            part,
            name: name.to_owned(),
            key: key.iter().map(|field| field.as_ref().to_owned()).collect(),
            size: Size::One,
            nothing: Nothing::These(&[]),
            goes_on: false,
        }
    }

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

    /// Whether nothing begins or ends with a key whose first number is this one.
    pub(super) fn is_nothing(&self, number: u64, event: &Event) -> bool {
        match self.nothing {
            Nothing::These(numbers) => numbers.contains(&number),
            Nothing::Negative => {
                let number = event.fields.signed(&self.key[0]);
                number.is_some_and(|number| number < 0)
            }
        }
    }
}

/// The system of an event, and what the event is.
type Known = (Option<String>, Rc<[Role]>);

/// Events, and what they are.
type Roles = Vec<(String, Role)>;

/// `NULL`, and what kmalloc() returns for no bytes.
const NO_OBJECT: Nothing = Nothing::These(&[0, 16]);
/// The number of no page.
const NO_PAGE: Nothing = Nothing::These(&[u64::MAX, u32::MAX as u64]);
/// The idle task of a CPU, which has nothing to do.
const IDLE: Nothing = Nothing::These(&[0]);

/// Pairs that have a length: the system, the first and the last event, the fields that are the same.
const LATENCIES: [&str; 17] = [
    "block block_rq_insert block_rq_issue dev sector",
    "block block_rq_issue block_rq_complete dev sector",
    "irq irq_handler_entry irq_handler_exit irq common_cpu",
    "irq softirq_raise softirq_entry vec common_cpu",
    "irq softirq_entry softirq_exit vec common_cpu",
    "irq tasklet_entry tasklet_exit tasklet",
    "workqueue workqueue_queue_work workqueue_execute_start work",
    "workqueue workqueue_execute_start workqueue_execute_end work",
    "timer timer_expire_entry timer_expire_exit timer",
    "timer hrtimer_expire_entry hrtimer_expire_exit hrtimer",
    "lock contention_begin contention_end lock_addr common_pid",
    "vmscan mm_vmscan_direct_reclaim_begin mm_vmscan_direct_reclaim_end common_pid",
    "vmscan mm_vmscan_memcg_reclaim_begin mm_vmscan_memcg_reclaim_end common_pid",
    "compaction mm_compaction_begin mm_compaction_end common_pid",
    "raw_syscalls sys_enter sys_exit common_pid id",
    "nvme nvme_setup_cmd nvme_complete_rq ctrl_id qid cid",
    "scsi scsi_dispatch_cmd_start scsi_dispatch_cmd_done host_no channel id lun driver_tag",
];

/// What is raised twice is run once, from the first time on.
const RAISED: &str = "softirq_raise";

/// The names of system calls begin so.
const SYSCALLS: (&str, &str) = ("sys_enter_", "sys_exit_");

/// Which events belong together.
#[derive(Debug, Default)]
pub struct Rules {
    roles: Roles,
    /// The roles of events that were met, by name and then by system.
    known: ByNumber<Rc<str>, Vec<Known>>,
    /// Whether system calls are pairs, too.
    has_syscalls: bool,
    /// The numbers of the pairs of system calls, by name.
    syscalls: HashMap<String, u32>,
}

impl Rules {
    fn new(roles: impl Into<Roles>) -> Self {
        let roles = roles.into();
        Self {
            roles,
            ..Self::default()
        }
    }

    /// Where tasks leave their CPUs, are woken up, and come back.
    pub fn waits() -> Self {
        let roles = [
            ("sched_switch", Part::Last, "next_pid"),
            ("sched_switch", Part::First, "prev_pid"),
            ("sched_waking", Part::Middle, "pid"),
        ];
        let roles = roles.map(|(event, part, field)| {
            let role = Role::new(0, part, event, &[field]);
            let nothing = IDLE;
            (format!("sched:{event}"), Role { nothing, ..role })
        });
        Self::new(roles)
    }

    /// What the kernel allocates and frees: objects and pages.
    pub fn memory() -> Self {
        let bytes = Size::Field("bytes_alloc".to_owned());
        let pages = Size::Pages("order".to_owned());
        // kfree() takes objects of caches, too.
        let roles = [
            ("kmalloc", 0, "ptr", Part::First, &bytes, NO_OBJECT),
            ("kmem_cache_alloc", 0, "ptr", Part::First, &bytes, NO_OBJECT),
            ("kfree", 0, "ptr", Part::Last, &Size::One, NO_OBJECT),
            (
                "kmem_cache_free",
                0,
                "ptr",
                Part::Last,
                &Size::One,
                NO_OBJECT,
            ),
            ("mm_page_alloc", 1, "pfn", Part::First, &pages, NO_PAGE),
            ("mm_page_free", 1, "pfn", Part::Last, &pages, NO_PAGE),
        ];
        let roles = roles.map(|(event, pair, field, part, size, nothing)| {
            let (role, size) = (Role::new(pair, part, event, &[field]), size.clone());
            let role = Role {
                size,
                nothing,
                ..role
            };
            (format!("kmem:{event}"), role)
        });
        Self::new(roles)
    }

    /// What has a length in the kernel's own events.
    pub fn latencies() -> Self {
        let mut roles = Vec::new();
        for (pair, text) in (0..).zip(LATENCIES) {
            let words: Vec<_> = text.split(' ').collect();
            let [first, last] = [words[1], words[2]].map(|name| format!("{}:{name}", words[0]));
            let mut of_pair = roles_of(pair, first, last, &words[3..], &words[3..]);
            of_pair[0].1.goes_on = words[1] == RAISED;
            roles.extend(of_pair);
        }
        Self {
            has_syscalls: true,
            ..Self::new(roles)
        }
    }

    /// One pair that has a length.
    pub fn latency(first: String, last: String, key: &[KeyField]) -> Self {
        let of_first: Vec<_> = key.iter().map(|field| &field.0).collect();
        let of_last: Vec<_> = key.iter().map(|field| &field.1).collect();
        Self::new(roles_of(0, first, last, &of_first, &of_last))
    }

    /// What one event allocates, and another one frees. A negative key is an error, and nothing that would be freed.
    pub fn resource(first: String, last: String, key: &[KeyField], size: Size) -> Self {
        let mut rules = Self::latency(first, last, key);
        let role = &mut rules.roles[0].1;
        (role.size, role.nothing) = (size, Nothing::Negative);
        rules
    }

    /// Whether there is more to say of an event than that it was there.
    pub(super) fn has_sizes(&self) -> bool {
        self.roles.iter().any(|(_, role)| role.size != Size::One)
    }

    /// What an event is.
    pub(super) fn roles(&mut self, event: &Event) -> Rc<[Role]> {
        let known = self.known.get(&*event.name).into_iter().flatten();
        let mut known = known.filter(|(system, _)| system.as_deref() == event.system());
        if let Some((_, roles)) = known.next() {
            return roles.clone();
        }
        let roles = self.roles.iter().filter(|(name, _)| is_named(event, name));
        let mut roles: Vec<_> = roles.map(|(_, role)| role.clone()).collect();
        roles.extend(self.syscall(event));
        // What ends comes before what begins with the same event.
        roles.sort_by_key(|role| role.part == Part::First);
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
        let next = (LATENCIES.len() + self.syscalls.len()) as u32;
        let pair = *self.syscalls.entry(call.to_owned()).or_insert(next);
        let part = first.map_or(Part::Last, |_| Part::First);
        Some(Role::new(pair, part, &format!("{call}()"), &["common_pid"]))
    }
}

fn roles_of(
    pair: u32,
    first: String,
    last: String,
    of_first: &[impl AsRef<str>],
    of_last: &[impl AsRef<str>],
) -> [(String, Role); 2] {
    let name = |event: &String| {
        event
            .rsplit(':')
            .next()
            .map_or(String::new(), str::to_owned)
    };
    let name = format!("{} -> {}", name(&first), name(&last));
    let of_first = Role::new(pair, Part::First, &name, of_first);
    let of_last = Role::new(pair, Part::Last, &name, of_last);
    [(first, of_first), (last, of_last)]
}
