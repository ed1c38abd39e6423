// SPDX-License-Identifier: MIT OR Apache-2.0

//! Masks of CPUs, as `tracing_cpumask` has them: groups of 32 bits, the highest first.

use crate::{
    error::{Error, Result},
    filter::CpuRange,
};

/// The mask of `cpus`.
pub(super) fn mask(cpus: &[u32]) -> String {
    let groups: Vec<_> = groups(cpus)
        .iter()
        .rev()
        .map(|group| format!("{group:08x}"))
        .collect();
    groups.join(",")
}

/// Whether `mask` lacks one of `cpus`. What is not a mask lacks none.
pub(super) fn lacks_one(mask: &str, cpus: &[u32]) -> bool {
    let found: Option<Vec<u32>> = mask
        .rsplit(',')
        .map(|group| u32::from_str_radix(group, 16).ok())
        .collect();
    let Some(found) = found else {
        return false;
    };
    let lacks = |(nr, group): (usize, &u32)| group & !found.get(nr).unwrap_or(&0) != 0;
    groups(cpus).iter().enumerate().any(lacks)
}

/// The groups of a mask, the lowest first.
fn groups(cpus: &[u32]) -> Vec<u32> {
    let mut groups = vec![0u32];
    for cpu in cpus {
        let group = (cpu / 32) as usize;
        if groups.len() <= group {
            groups.resize(group + 1, 0);
        }
        groups[group] |= 1 << (cpu % 32);
    }
    groups
}

/// The CPUs in `ranges`, each of which must be one of `all`: those that this kernel can have, online
/// or not.
pub(super) fn select(ranges: &[CpuRange], all: &[u32]) -> Result<Vec<u32>> {
    let mut cpus = Vec::new();
    for cpu in ranges.iter().flat_map(CpuRange::cpus) {
        if !all.contains(&cpu) {
            let last = all.last().copied().unwrap_or_default();
            return Err(Error::Refused(format!(
                "there is no CPU {cpu}\n  hint: this machine has the CPUs 0-{last}"
            )));
        }
        cpus.push(cpu);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_in_groups_of_32_cpus() {
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[0, 33]), "00000002,00000001");
        assert_eq!(mask(&[]), "00000000");
    }

    #[test]
    fn masks_that_lack_a_cpu_are_recognised() {
        assert!(!lacks_one("3", &[0, 1]));
        assert!(!lacks_one("ff", &[0, 1]));
        assert!(lacks_one("1", &[0, 1]));
        assert!(lacks_one("0,ffffffff", &[0, 33]));
        assert!(lacks_one("1", &[33]));
        assert!(!lacks_one("odd", &[0]));
    }

    #[test]
    fn only_cpus_of_the_machine_are_selected() {
        let select = |list: &str| {
            let ranges = list.split(',').map(|range| CpuRange::new(range).unwrap());
            select(&ranges.collect::<Vec<_>>(), &[0, 1, 2, 3])
        };
        assert_eq!(select("0-1,3").unwrap(), [0, 1, 3]);
        for (list, missing) in [("4", 4), ("2-4294967295", 4), ("9,0", 9)] {
            let error = select(list).unwrap_err().to_string();
            assert!(error.contains(&format!("no CPU {missing}\n")), "{error}");
            assert!(error.contains("0-3"), "{error}");
        }
    }
}
