// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counters of the map, `stack_map_stat`.

/// The counters, in the order of the file: `key:`, blanks and a value on each line.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stat(Vec<(String, String)>);

/// Why full stacks were recorded: the key of the counter, and what it means.
const REASONS: &[(&str, &str)] = &[
    (
        "drop_full",
        "the map was full; load the module with a larger bits=",
    ),
    (
        "drop_pool",
        "the pool was full; load the module with a larger bits=",
    ),
    ("drop_growing", "pool growth was pending"),
    (
        "drop_probe",
        "the probe limit was reached; load the module with a larger bits=",
    ),
    (
        "drop_contended",
        "too many CPUs recorded new stacks at once",
    ),
    ("drop_reset", "the map was being reset"),
    ("drop_nested", "interrupts were nested too deep"),
    (
        "drop_missed",
        "nested kprobes are skipped, so the kernel records the full stack",
    ),
    (
        "drop_unwatched",
        "RCU was not watching the CPU, for example near idle",
    ),
    (
        "drop_foreign",
        "the kernel requested a top-level stack while it printed into an instance",
    ),
];

/// Why user stacks were not kept, in the same form.
const USER_REASONS: &[(&str, &str)] = &[
    (
        "drop_full",
        "the map of user stacks was full; load the module with a larger user_bits=",
    ),
    (
        "drop_pool",
        "the pool of user stacks was full; load the module with a larger user_bits=",
    ),
    ("drop_growing", "pool growth was pending"),
    (
        "drop_probe",
        "the probe limit was reached; load the module with a larger user_bits=",
    ),
    (
        "drop_contended",
        "too many CPUs recorded new user stacks at once",
    ),
    ("drop_reset", "the map was being reset"),
    (
        "drop_share",
        "a user had used up its share; reset the map, or load the module with a larger user_bits=",
    ),
];

impl Stat {
    /// Reads the text of `stack_map_stat`; lines that are not of its form are left out.
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (key, value) = line.split_once(':')?;
            Some((key.trim().to_owned(), value.trim().to_owned()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Whether there is no counter.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every key and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// The value of a key as it stands there.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.iter()
            .find(|(other, _)| *other == key)
            .map(|(_, value)| value)
    }

    /// The number that a value is, or begins with (`41 / 16384`).
    pub fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    }

    /// How many stacks the map can hold.
    pub fn capacity(&self) -> Option<u64> {
        self.text("entries")?.split_once('/')?.1.trim().parse().ok()
    }

    /// How many bits of an id are its slot; the rest is the generation.
    pub fn slot_bits(&self) -> Option<u32> {
        let slots = self.number("table_size")?;
        slots.is_power_of_two().then(|| slots.ilog2())
    }

    /// What was counted since `before`; numbers only, and nothing if the map was reset meanwhile.
    pub fn since(&self, before: &Stat) -> Self {
        let keys = self.0.iter().filter_map(|(key, _)| {
            let delta = self.number(key)?.checked_sub(before.number(key)?)?;
            Some((key.clone(), delta.to_string()))
        });
        Self(keys.collect())
    }

    fn reasons(&self, reasons: &[(&str, &'static str)]) -> Vec<(u64, &'static str)> {
        let reasons = reasons.iter().filter_map(|(key, meaning)| {
            let count = self.number(key)?;
            (count > 0).then_some((count, *meaning))
        });
        reasons.collect()
    }

    /// Of the counters of user stacks: how many were not kept, for each reason that there was.
    pub fn user_drops(&self) -> Vec<(u64, &'static str)> {
        self.reasons(USER_REASONS)
    }

    /// How many full stacks were recorded, for each reason that there was.
    pub fn drops(&self) -> Vec<(u64, &'static str)> {
        let known = self.reasons(REASONS);
        // The first five counters are those that every writer has.
        let named: u64 = known.iter().map(|(count, _)| count).sum();
        let unnamed = self.number("drops").unwrap_or(0).saturating_sub(named);
        let unnamed = (unnamed > 0).then_some((unnamed, "no reason given"));
        known.into_iter().chain(unnamed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
entries:        41 / 16384
table_size:     32768
successes:      176
drops:          7
success_rate:   100%
hits:           135
drop_full:      5
drop_pool:      0
hook:           jump
";

    #[test]
    fn reads_what_the_module_prints() {
        let stat = Stat::parse(TEXT);
        assert_eq!(stat.number("entries"), Some(41));
        assert_eq!(stat.capacity(), Some(16384));
        assert_eq!(stat.slot_bits(), Some(15));
        assert_eq!(stat.text("hook"), Some("jump"));
        assert_eq!(stat.number("hook"), None);
        assert_eq!(stat.iter().count(), 9);
        let drops: Vec<_> = stat.drops().iter().map(|(count, _)| *count).collect();
        assert_eq!(drops, [5, 2]);
    }

    #[test]
    fn knows_every_reason_that_the_module_counts() {
        let module = concat!(
            include_str!("../../../src/files/stack_map_stat.rs"),
            include_str!("../../../src/counters.rs"),
        );
        let keys = module.split("(\"drop_").skip(1);
        let keys: Vec<_> = keys.filter_map(|rest| rest.split_once(":\"")).collect();
        assert!(keys.len() >= REASONS.len());
        for (key, _) in keys {
            let key = format!("drop_{key}");
            let reasons = REASONS.iter().chain(USER_REASONS);
            assert!(reasons.clone().any(|(known, _)| *known == key), "{key}");
        }
    }

    #[test]
    fn counts_the_change_since_another_stat() {
        let before = Stat::parse("successes: 100\nhits: 200\nhook: jump\n");
        let since = Stat::parse(TEXT).since(&before);
        assert_eq!(since.number("successes"), Some(76));
        assert_eq!(since.number("hits"), None);
        assert_eq!(since.text("hook"), None);
    }

    #[test]
    fn takes_any_text() {
        let stat = Stat::parse("table_size: 3\nentries: /\n:\nx\n\u{fffd}: 1\ndrops: -1\n");
        assert_eq!(stat.slot_bits(), None);
        assert_eq!(stat.capacity(), None);
        assert!(stat.drops().is_empty());
        assert!(Stat::parse("").iter().next().is_none());
    }
}
