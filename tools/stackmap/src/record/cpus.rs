// SPDX-License-Identifier: MIT OR Apache-2.0

//! Masks of CPUs, as `tracing_cpumask` has them: groups of 32 bits, the highest first.

use crate::{
    error::{Error, Result},
    filter::CpuRange,
    output::warn,
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

/// Warns of selected CPUs that are offline, and refuses a selection of no others. `online`: empty if it is not
/// known which are online.
pub(super) fn check_online(cpus: &[u32], online: &[u32]) -> Result {
    let offline = cpus.iter().filter(|cpu| !online.contains(cpu));
    let offline: Vec<_> = offline.map(u32::to_string).collect();
    if online.is_empty() || offline.is_empty() {
        return Ok(());
    }
    let list = offline.join(", ");
    if offline.len() == cpus.len() {
        return Err(Error::Refused(format!(
            "CPU {list}: offline, so that nothing would be recorded\n  hint: echo 1 > /sys/devices/system/cpu/cpu{}/online",
            offline[0]
        )));
    }
    warn(format_args!("CPU {list}: offline, and records nothing"));
    Ok(())
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
    fn a_selection_of_offline_cpus_is_refused() {
        for (cpus, online, is_refused) in [
            (&[1, 3][..], &[0, 2][..], true),
            (&[1, 3], &[0, 3], false),
            (&[1], &[1], false),
            (&[1], &[], false),
        ] {
            assert_eq!(check_online(cpus, online).is_err(), is_refused, "{cpus:?}");
        }
        assert!(crate::kernel::online_cpus().contains(&0));
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
