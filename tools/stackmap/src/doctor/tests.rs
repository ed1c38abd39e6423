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
        let names = NEEDED.iter().chain(&FOR_THE_JUMP).chain(&FOR_THE_CACHE);
        let names = names.chain([&FINDER]);
        let kallsyms: String = names
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
        let system = System {
            root: self.0.path().to_owned(),
            tracefs: Some(self.0.path().join("tracing")),
            is_root: true,
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
fn what_is_missing_is_named() {
    for (path, text, what, found) in [
        ("proc/sys/kernel/arch", "riscv64", "machine", "riscv64"),
        (
            "boot/config-7.2.12+deb13-amd64",
            "CONFIG_MODULES=y\nCONFIG_RUST=y\nCONFIG_EVENT_TRACING=y\nCONFIG_STACKTRACE=y\n\
             # CONFIG_KPROBES is not set\nCONFIG_KALLSYMS=y\n",
            "configuration",
            "CONFIG_KPROBES is not set",
        ),
        (
            "proc/kallsyms",
            "ffffffff81000000 T kallsyms_lookup_name\nffffffff81000010 T register_kprobe\n",
            "kernel symbols",
            "__ftrace_trace_stack",
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
    for old in ["6.12.57+deb13-amd64", "7.1-rc3", "7.0"] {
        let check = check_release(old, "x86_64");
        assert_eq!(
            (check.verdict, check.advice.as_deref()),
            (Bad, Some(NEEDED_KERNEL)),
            "{old}"
        );
    }
    for good in ["7.2.0-rc1", RELEASE, "7.10", "8.0", "unknown", ""] {
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
fn the_message_of_dkms_is_repeated() {
    let patient = Patient::new();
    patient.remove(&format!("lib/modules/{RELEASE}/updates/stackmap.ko"));
    let log = "var/lib/dkms/stackmap/0.1.0/build/make.log";
    let said = format!("stackmap is not built for {RELEASE}: no source.\nInstall linux-source");
    for (text, wanted) in [
        (
            "\nstackmap is not built for 7.2.1: no headers\n\n".to_owned(),
            "stackmap-dkms",
        ),
        (format!("begin\n\n{said}\n\n# exit code: 77\n"), &said[..]),
    ] {
        patient.file(log, &text);
        let (verdict, what, text) = patient.worst();
        assert_eq!((verdict, what), (Bad, "module"), "{text}");
        assert!(text.ends_with(wanted), "{text}");
    }
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
        (&NEEDED[..], Bad, "kernel symbols"),
        (&FOR_THE_JUMP, Warning, "hook"),
        (&FOR_THE_CACHE, Warning, "unwinder"),
    ] {
        for name in names {
            let (worst, found, text) = without(name).worst();
            assert_eq!((worst, found), (verdict, what), "{text}");
            assert!(text.starts_with(&format!("no {name};")), "{text}");
        }
    }
}

/// Symbols that the module looks for and that `doctor` does not mention if they are missing.
const UNTOLD: [&str; 7] = [
    "global_ops",
    "return_to_handler",
    "arch_rethook_trampoline",
    "__kretprobe_trampoline",
    "is_bpf_text_address",
    "__start_BTF",
    "__stop_BTF",
];

#[test]
fn knows_every_symbol_that_the_module_looks_for() {
    let module = include_str!("../../../../src/shim/unexported.c");
    // The names in quotes after each of the calls that look a symbol up.
    let names = |calls: &[&str]| {
        let mut names = Vec::new();
        for call in calls {
            let found = module.split(call).skip(1);
            names.extend(found.map(|rest| rest.split_once('"').unwrap().0));
        }
        names.sort_unstable();
        names
    };
    let sorted = |lists: &[&[&'static str]]| {
        let mut names = lists.concat();
        names.sort_unstable();
        names
    };
    let needed = names(&["need(\"", ".symbol_name = \""]);
    assert_eq!(needed, sorted(&[&NEEDED]));
    let others = names(&["find(\"", "find_address(\""]);
    let mut told = sorted(&[
        &FOR_THE_JUMP,
        &FOR_THE_CACHE,
        &FOR_THE_JUMP_ON_ARM64,
        &FOR_THE_CACHE_ON_ARM64,
        &UNTOLD,
    ]);
    // Some are for both machines.
    told.dedup();
    assert_eq!(others, told);
    // There is no other way.
    assert_eq!(module.matches("static_call(stackmap_kallsyms)").count(), 1);
}

#[test]
fn knows_every_symbol_that_user_stacks_need() {
    let module = include_str!("../../../../src/user/user.c");
    let (_, list) = module.split_once("names[] = {").unwrap();
    let (list, _) = list.split_once('}').unwrap();
    let names: Vec<_> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, FOR_USER_STACKS);
}
