// SPDX-License-Identifier: MIT OR Apache-2.0

//! Systems in which something is missing.

use super::*;
use std::fs;

const RELEASE: &str = "7.2.12+deb13-amd64";

/// A system that is well, with the module installed and not loaded.
struct Patient(tempfile::TempDir);

impl Patient {
    fn new() -> Self {
        let patient = Self(tempfile::tempdir().unwrap());
        patient.file("proc/sys/kernel/osrelease", RELEASE);
        patient.file("proc/sys/kernel/arch", "x86_64\n");
        patient.file("tracing/trace", "");
        let config: String = REQUIRED
            .iter()
            .map(|(option, _)| format!("{option}=y\n"))
            .collect();
        patient.file(&format!("boot/config-{RELEASE}"), &config);
        let names = [NEEDED, FOR_USER_STACKS, FOR_X86, FOR_DEFERRAL, &[FINDER]].concat();
        let kallsyms: String = names
            .iter()
            .map(|name| format!("ffffffff81000000 T {name}\n"))
            .collect();
        patient.file("proc/kallsyms", &kallsyms);
        let dir = format!("lib/modules/{RELEASE}");
        patient.file(&format!("{dir}/modules.dep"), "updates/stackmap.ko:\n");
        let module = format!("\x7fELF\0vermagic={RELEASE} SMP preempt\0");
        patient.file(&format!("{dir}/updates/stackmap.ko"), &module);
        patient
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    fn check(&self) -> Vec<Check> {
        self.check_as(true)
    }

    fn check_as(&self, is_root: bool) -> Vec<Check> {
        let system = System {
            root: self.0.path().to_owned(),
            tracefs: Some(self.0.path().join("tracing")),
            is_root,
        };
        system.check()
    }

    /// Its worst verdict, the subject of that, and what to do.
    fn worst(&self) -> (Verdict, &'static str, String) {
        let checks = self.check();
        let worst = checks.iter().max_by_key(|check| check.verdict).unwrap();
        let advice = worst.advice.clone().unwrap_or_default();
        (
            worst.verdict,
            worst.what,
            format!("{}; {advice}", worst.found),
        )
    }
}

#[test]
fn a_good_system_only_needs_the_module_loaded() {
    let (verdict, what, text) = Patient::new().worst();
    assert_eq!((verdict, what), (Note, "debug information"), "{text}");
    let checks = Patient::new().check();
    let module = checks.iter().find(|check| check.what == "module").unwrap();
    assert_eq!(module.advice.as_deref(), Some("modprobe stackmap"));
}

#[test]
fn less_than_root_and_functions_are_named() {
    let has = |checks: &[Check], verdict, what| {
        let mut checks = checks.iter();
        checks.any(|check| (check.verdict, check.what) == (verdict, what))
    };
    let patient = Patient::new();
    assert!(has(&patient.check(), Good, "user"));
    assert!(has(&patient.check_as(false), Warning, "user"));
    assert!(has(&patient.check(), Note, "functions"));
    let config = format!("boot/config-{RELEASE}");
    let path = patient.0.path().join(&config);
    let text = fs::read_to_string(path).unwrap() + "CONFIG_FUNCTION_TRACER=y\n";
    patient.file(&config, &text);
    assert!(!has(&patient.check(), Note, "functions"));
}

#[test]
fn what_is_missing_is_named() {
    for (path, text, what, found) in [
        ("proc/sys/kernel/arch", "riscv64", "machine", "riscv64"),
        (
            "boot/config-7.2.12+deb13-amd64",
            "CONFIG_MODULES=y\nCONFIG_EVENT_TRACING=y\nCONFIG_STACKTRACE=y\n\
             # CONFIG_KPROBES is not set\nCONFIG_KALLSYMS=y\n",
            "configuration",
            "CONFIG_KPROBES is not set",
        ),
        (
            "proc/sys/kernel/modules_disabled",
            "1",
            "loading modules",
            "disabled",
        ),
        (
            "lib/modules/7.2.12+deb13-amd64/updates/stackmap.ko",
            "vermagic=6.1.0 SMP\0",
            "module",
            "is for 6.1.0 SMP",
        ),
        (
            "sys/kernel/security/lockdown",
            "none integrity [confidentiality]",
            "lockdown",
            "lockdown=integrity",
        ),
    ] {
        let patient = Patient::new();
        patient.file(path, text);
        let (verdict, worst, text) = patient.worst();
        assert_eq!((verdict, worst), (Bad, what), "{text}");
        assert!(text.contains(found), "{text}");
    }
}

#[test]
fn an_old_kernel_is_too_old() {
    assert!(NEEDED_KERNEL.contains(&format!("Linux {}.{} ", OLDEST.0, OLDEST.1)));
    for old in ["6.1.140", "6.11.9-amd64", "6.11-rc3"] {
        let check = check_release(old, "x86_64");
        assert_eq!(
            (check.verdict, check.advice.as_deref()),
            (Bad, Some(NEEDED_KERNEL)),
            "{old}"
        );
    }
    for good in [
        "6.12.57+deb13-amd64",
        "7.2.0-rc1",
        RELEASE,
        "7.10",
        "8.0",
        "unknown",
        "",
    ] {
        assert_eq!(check_release(good, "x86_64").verdict, Good, "{good}");
    }
}

#[test]
fn possible_obstacles_are_warnings() {
    let patient = Patient::new();
    patient.file("sys/module/module/parameters/sig_enforce", "Y\n");
    assert_eq!(patient.worst().0, Warning);
    assert!(patient.worst().2.contains("mokutil"));

    let patient = Patient::new();
    patient.remove("lib/modules/7.2.12+deb13-amd64/modules.dep");
    assert!(patient.worst().2.contains("depmod -a"));

    let patient = Patient::new();
    patient.remove("boot/config-7.2.12+deb13-amd64");
    assert_eq!(patient.worst().0, Warning);

    let patient = Patient::new();
    patient.remove("tracing/trace");
    assert!(patient.worst().2.contains("mount -t tracefs"));
}

#[test]
fn the_state_of_a_loaded_module_is_checked() {
    let patient = Patient::new();
    patient.file("tracing/options/stackmap", "1\n");
    patient.file("tracing/options/stacktrace", "0\n");
    patient.file(
        "tracing/stack_map_stat",
        "drops: 3\ndrop_full: 3\nhook: kprobe\nunwind: kernel\nunwind_mismatches: 2\n",
    );
    patient.file(
        "sys/kernel/security/lockdown",
        "none integrity [confidentiality]",
    );
    let checks = patient.check();
    let found = |what, text: &str| {
        let mut checks = checks.iter();
        checks.any(|check| check.what == what && check.found.contains(text))
    };
    assert!(found("module", "loaded"));
    assert!(found("lockdown", "confidentiality"));
    assert!(found("hook", "kprobe"));
    assert!(found("unwinder", "kernel"));
    assert!(found("unwinder", "2 stacks differ"));
    assert!(found("options", "stackmap is on"));
    assert!(found("options", "stacktrace is off"));
    assert!(found("counters", "3 full stacks recorded"));
}

#[test]
fn a_loaded_module_is_seen_without_tracefs_and_without_root() {
    let patient = Patient::new();
    patient.file(
        "proc/modules",
        "stackmap_x 1 0 - Live 0x0\nstackmap 1 0 - Live 0x0\n",
    );
    patient.remove("tracing/trace");
    let checks = patient.check_as(false);
    let module: Vec<_> = checks
        .iter()
        .filter(|check| check.what == "module")
        .collect();
    assert_eq!(module.len(), 1);
    assert_eq!((module[0].verdict, &module[0].found[..]), (Good, "loaded"));
    patient.file("proc/modules", "stackmap_x 1 0 - Live 0x0\n");
    let checks = patient.check();
    assert!(checks
        .iter()
        .any(|check| check.found.starts_with("not loaded")));
}

#[test]
fn hidden_addresses_have_the_advice_that_helps() {
    for (restrict, says) in [
        ("0", "root can read them"),
        ("1", "root can"),
        ("2", "kptr_restrict=1"),
    ] {
        let patient = Patient::new();
        let path = patient.0.path().join("proc/kallsyms");
        let shown = fs::read_to_string(path).unwrap();
        patient.file("proc/kallsyms", &shown.replace("ffffffff81", "0000000000"));
        patient.file("proc/sys/kernel/kptr_restrict", restrict);
        let checks = patient.check_as(false);
        let check = checks.iter().find(|check| check.what == "kernel addresses");
        let advice = check.unwrap().advice.as_deref().unwrap();
        assert!(advice.contains(says), "{advice}");
    }
}

/// A patient whose kernel has no such symbol.
fn without(name: &str) -> Patient {
    let patient = Patient::new();
    let kallsyms = fs::read_to_string(patient.0.path().join("proc/kallsyms")).unwrap();
    let line = format!(" {name}\n");
    assert!(kallsyms.contains(&line), "{name}");
    let lines = kallsyms.split_inclusive('\n');
    let kept: String = lines.filter(|kept| !kept.ends_with(&line)).collect();
    patient.file("proc/kallsyms", &kept);
    patient
}

#[test]
fn the_log_of_a_build_by_dkms_that_failed_is_named() {
    let patient = Patient::new();
    patient.remove(&format!("lib/modules/{RELEASE}/updates/stackmap.ko"));
    let (verdict, what, text) = patient.worst();
    assert_eq!((verdict, what), (Bad, "module"), "{text}");
    assert!(text.contains("dkms autoinstall"), "{text}");
    let log = "var/lib/dkms/stackmap/0.1.0/build/make.log";
    patient.file(log, "error\n");
    assert!(patient.worst().2.ends_with(log));
}

#[test]
fn a_kernel_without_kprobes_is_bad() {
    let checks = without(FINDER).check();
    let symbols = checks.iter().find(|check| check.what == "kernel symbols");
    let symbols = symbols.unwrap();
    assert_eq!(
        (symbols.verdict, &symbols.found[..]),
        (Bad, "no register_kprobe")
    );
    let advice = symbols.advice.as_deref().unwrap();
    assert!(advice.contains("CONFIG_KPROBES"), "{advice}");
}

#[test]
fn each_missing_symbol_is_named() {
    for (names, verdict, what) in [
        (NEEDED, Bad, "kernel symbols"),
        (FOR_USER_STACKS, Note, "user stacks"),
        (FOR_X86, Note, "user stacks"),
        (FOR_DEFERRAL, Note, "user stacks"),
    ] {
        for name in names {
            let mut checks = without(name).check();
            checks.retain(|check| check.found == format!("no {name}"));
            let [check] = &checks[..] else {
                panic!("{name}: {checks:?}");
            };
            assert_eq!((check.verdict, check.what), (verdict, what));
        }
    }
    // The module defers itself where the kernel has what it needs, on arm64 always.
    for (name, arch) in [
        ("unwind_deferred_request", "x86_64"),
        ("unwind_deferred_request", "aarch64"),
        ("insn_decode", "aarch64"),
    ] {
        let patient = without(name);
        patient.file("proc/sys/kernel/arch", arch);
        if arch == "x86_64" {
            let kallsyms = fs::read_to_string(patient.0.path().join("proc/kallsyms")).unwrap();
            let more = format!("ffffffff81000000 T {NOTIFIER}\n");
            patient.file("proc/kallsyms", &(kallsyms + &more));
        }
        assert!(patient
            .check()
            .iter()
            .all(|check| check.what != "user stacks" || check.verdict == Good));
    }
    // One of each place in the source.
    for name in [
        "kallsyms_lookup_name",
        "tracefs_remove",
        "ftrace_ops_trampoline",
    ] {
        assert!(NEEDED.contains(&name), "{NEEDED:?}");
    }
    assert!(
        FOR_USER_STACKS.contains(&"put_task_stack"),
        "{FOR_USER_STACKS:?}"
    );
    assert!(FOR_DEFERRAL.contains(&"unwind_srcu"), "{FOR_DEFERRAL:?}");
}
