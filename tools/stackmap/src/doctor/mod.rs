// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks whether the module works on a kernel, and says what to do.

mod config;
mod module;

use crate::{error::Error, kernel, symbols::kallsyms::Kallsyms, tracefs::Tracefs};
use config::Config;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The verdict of a check.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Worth knowing, and no obstacle.
    Note,
    /// The result is not known, or something works less well than it could.
    Warning,
    /// The module cannot work.
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Check {
    /// The verdict.
    pub verdict: Verdict,
    /// The subject of the check.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What to do, if something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    fn new(verdict: Verdict, what: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict,
            what,
            found: found.into(),
            advice: None,
        }
    }

    fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

use Verdict::{Bad, Good, Note, Warning};

/// Whether the kernel is new enough, as far as its release tells.
fn check_release(release: &str, machine: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|number| number.parse().ok());
    let version = number().zip(number());
    let check = |verdict| Check::new(verdict, "kernel", format!("{release} {machine}"));
    match version {
        Some(version) if version < OLDEST => check(Bad).advise(NEEDED_KERNEL),
        _ => check(Good),
    }
}

/// What the kernel must have been configured with: the option, and what it is for.
const REQUIRED: [(&str, &str); 5] = [
    ("CONFIG_MODULES", "modules"),
    ("CONFIG_EVENT_TRACING", "trace events"),
    ("CONFIG_STACKTRACE", "stack traces"),
    (
        "CONFIG_KPROBES",
        "finding the functions that the module needs",
    ),
    ("CONFIG_KALLSYMS", "symbol names"),
];

/// The oldest kernel that the module builds for, and the error for older ones, as `make` has it.
const OLDEST: (u32, u32) = (6, 12);
const NEEDED_KERNEL: &str = "the module needs Linux 6.12 or newer";

/// The module finds unexported symbols by this one, which a kernel without kprobes does not have.
const FINDER: &str = "register_kprobe";

/// What the module defers user stacks by where the kernel cannot.
const NOTIFIER: &str = "user_return_notifier_register";

// The unexported symbols without which the module does not load (NEEDED), those without which it has no user
// stacks (FOR_USER_STACKS), on x86-64 (FOR_X86), and those without which it needs NOTIFIER for them there
// (FOR_DEFERRAL), as its source names them.
include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// The system that is looked at.
#[derive(Clone, Debug)]
pub struct System {
    /// Where its files are; `/` for the running one.
    pub root: PathBuf,
    /// Where its tracefs is, if not where it usually is.
    pub tracefs: Option<PathBuf>,
    /// Whether the caller is root.
    pub is_root: bool,
}

impl System {
    /// The running one.
    pub fn running(tracefs: Option<&Path>) -> Self {
        Self {
            root: PathBuf::from("/"),
            tracefs: tracefs.map(Path::to_owned),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// Looks at everything.
    pub fn check(&self) -> Vec<Check> {
        let release = self.line("proc/sys/kernel/osrelease").unwrap_or_default();
        let machine = self
            .line("proc/sys/kernel/arch")
            .unwrap_or_else(kernel::machine);
        let tracefs = Tracefs::find(self.tracefs.as_deref());
        let usable = tracefs.as_ref().is_ok_and(Tracefs::has_stackmap);
        // Everybody can read that list.
        let loaded = usable || self.is_loaded();

        let mut checks = vec![check_release(&release, &machine), self.check_user()];
        if !["x86_64", "aarch64"].contains(&&*machine) {
            let check = Check::new(Bad, "machine", machine);
            checks.push(check.advise("the module is for x86_64 and aarch64"));
        }
        checks.push(match &tracefs {
            Ok(tracefs) => Check::new(Good, "tracefs", tracefs.root().display().to_string()),
            Err(error @ Error::Io { .. }) => {
                Check::new(Warning, "tracefs", "not accessible").advise(error.to_string())
            }
            Err(error) => Check::new(Bad, "tracefs", "not found").advise(error.to_string()),
        });
        let config = Config::read(&self.root, &release);
        checks.extend(self.check_config(config.as_ref(), loaded));
        checks.extend(self.check_functions());
        checks.extend(self.check_lockdown());
        if loaded {
            checks.push(Check::new(Good, "module", "loaded"));
        } else {
            checks.extend(self.check_loading());
            checks.push(module::check_installed(&self.root, &release));
        }
        if let Ok(tracefs) = &tracefs {
            if usable {
                checks.extend(check_recording(tracefs));
            }
        }
        checks.push(self.check_debug_info(&release));
        checks
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn line(&self, path: &str) -> Option<String> {
        kernel::line(self.path(path))
    }

    fn is_loaded(&self) -> bool {
        let modules = std::fs::read_to_string(self.path("proc/modules"));
        modules.is_ok_and(|list| list.lines().any(|line| line.starts_with("stackmap ")))
    }

    fn check_user(&self) -> Check {
        match self.is_root {
            true => Check::new(Good, "user", "root"),
            false => Check::new(Warning, "user", "not root")
                .advise("tracing needs root; without it, the checks below may be incomplete"),
        }
    }

    fn check_config(&self, config: Option<&Config>, loaded: bool) -> Vec<Check> {
        let Some(config) = config else {
            // A loaded module shows that the configuration is good.
            let verdict = if loaded { Note } else { Warning };
            let check = Check::new(verdict, "configuration", "not found");
            return vec![check.advise("/proc/config.gz and /boot/config-* are missing")];
        };
        let missing = REQUIRED.iter().filter(|(option, _)| !config.has(option));
        let mut checks: Vec<_> = missing
            .map(|(option, purpose)| {
                Check::new(Bad, "configuration", format!("{option} is not set")).advise(format!(
                    "use a kernel with this option: it is needed for {purpose}"
                ))
            })
            .collect();
        if checks.is_empty() {
            let found = format!("{}: all required options are set", config.name());
            checks.push(Check::new(Good, "configuration", found));
        }
        if !config.has("CONFIG_FUNCTION_TRACER") {
            let check = Check::new(Note, "functions", "CONFIG_FUNCTION_TRACER is not set");
            checks.push(check.advise("stackmap record -f will not work; -e does"));
        }
        checks
    }

    fn check_functions(&self) -> Vec<Check> {
        let Ok(text) = std::fs::read(self.path("proc/kallsyms")) else {
            return vec![Check::new(
                Warning,
                "kernel symbols",
                "/proc/kallsyms cannot be read",
            )];
        };
        let has = |name: &str| {
            let name = format!(" {name}\n");
            memchr::memmem::find(&text, name.as_bytes()).is_some()
        };
        let missing_of = |names: &[&'static str]| -> Vec<_> {
            let missing = names.iter().copied().filter(|name| !has(name));
            missing.collect()
        };
        let missing = missing_of(NEEDED);
        let mut checks = Vec::new();
        checks.push(match missing.is_empty() {
            _ if !has(FINDER) => Check::new(Bad, "kernel symbols", format!("no {FINDER}"))
                .advise("use a kernel with kprobes (CONFIG_KPROBES)"),
            true => Check::new(Good, "kernel symbols", "all symbols that the module needs"),
            false => Check::new(Bad, "kernel symbols", format!("no {}", missing.join(", ")))
                .advise("the module does not load here: report this kernel's release"),
        });
        let mut missing = missing_of(FOR_USER_STACKS);
        if self.line("proc/sys/kernel/arch").as_deref() != Some("aarch64") {
            missing.extend(missing_of(FOR_X86));
            if !has(NOTIFIER) {
                missing.extend(missing_of(FOR_DEFERRAL));
            }
        }
        checks.push(match missing.is_empty() {
            true => Check::new(Good, "user stacks", "all symbols that they need"),
            false => Check::new(Note, "user stacks", format!("no {}", missing.join(", "))).advise(
                "events will have no user stacks: use a kernel with CONFIG_UNWIND_USER, or \
                     CONFIG_USER_RETURN_NOTIFIER",
            ),
        });
        let hidden = Kallsyms::parse(text, &Default::default(), "/proc/kallsyms").is_err();
        if hidden {
            let restrict = self
                .line("proc/sys/kernel/kptr_restrict")
                .unwrap_or_default();
            let found = format!("hidden (kernel.kptr_restrict is {restrict})");
            let advice = match restrict.as_str() {
                "2" => "as root: sysctl kernel.kptr_restrict=1",
                _ => "root can read them",
            };
            let advice = format!("without addresses there are no symbol names; {advice}");
            checks.push(Check::new(Warning, "kernel addresses", found).advise(advice));
        }
        checks
    }

    /// Settings that may keep any module from being loaded.
    fn check_loading(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        if self.line("proc/sys/kernel/modules_disabled").as_deref() == Some("1") {
            let check = Check::new(Bad, "loading modules", "disabled until the next boot");
            checks.push(check.advise("sysctl kernel.modules_disabled was set to 1"));
        }
        let enforced = self
            .line("sys/module/module/parameters/sig_enforce")
            .as_deref()
            == Some("Y");
        let lockdown = kernel::lockdown(&self.root);
        let locked = lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]");
        if enforced || locked {
            let why = if locked {
                "kernel lockdown"
            } else {
                "module.sig_enforce"
            };
            let check = Check::new(Warning, "signatures", format!("required, by {why}"));
            let advice = "sign the module with a key that the kernel trusts (mokutil --import), or turn off \
                          what requires it: Secure Boot, or a parameter of the kernel";
            checks.push(check.advise(advice));
        }
        checks
    }

    /// Whether lockdown keeps even a loaded module from working.
    fn check_lockdown(&self) -> Option<Check> {
        kernel::is_confidential(&self.root).then(|| {
            let check = Check::new(Bad, "lockdown", "confidentiality");
            check.advise("tracing is off in this mode: boot with lockdown=integrity")
        })
    }

    fn check_debug_info(&self, release: &str) -> Check {
        let places = [
            format!("usr/lib/debug/boot/vmlinux-{release}"),
            format!("usr/lib/debug/lib/modules/{release}/vmlinux"),
            format!("boot/vmlinux-{release}"),
        ];
        match places.iter().find(|place| self.path(place).exists()) {
            Some(place) => {
                let found = self.path(place).display().to_string();
                let advice = format!("for inlined functions and source lines: --vmlinux {found}");
                Check::new(Note, "debug information", found).advise(advice)
            }
            None => Check::new(Note, "debug information", "none; names come from kallsyms"),
        }
    }
}

/// The state of a loaded module.
fn check_recording(tracefs: &Tracefs) -> Vec<Check> {
    let mut checks = Vec::new();
    let stat = match tracefs.stat() {
        Ok(stat) => stat,
        Err(error) => return vec![Check::new(Warning, "counters", error.to_string())],
    };
    for (key, what, best, cost) in [
        (
            "hook",
            "hook",
            "jump",
            "a kprobe costs more for each event than a jump",
        ),
        (
            "unwind",
            "unwinder",
            "cached",
            "an id costs up to 1.3 times a full stack",
        ),
    ] {
        let check = match stat.text(key) {
            Some(found) if found == best => Check::new(Good, what, found),
            Some(found) => {
                Check::new(Warning, what, found).advise(format!("{cost}; dmesg says why"))
            }
            None => continue,
        };
        checks.push(check);
    }
    if let Some(count @ 1..) = stat.number("unwind_mismatches") {
        let found = format!("{count} stacks differ from those of the kernel's unwinder");
        checks.push(Check::new(Warning, "unwinder", found).advise(
            "load the module with unwind=kernel, and report this with the output of dmesg",
        ));
    }
    if let Some(name) = tracefs.instance_name() {
        let list = tracefs.read("stack_map_instances").unwrap_or_default();
        let listed = |line: &str| line.strip_suffix("/user").unwrap_or(line) == name;
        checks.push(match list.lines().any(listed) {
            true => Check::new(Good, "instance", format!("{name} records ids")),
            false => {
                Check::new(Note, "instance", format!("{name} records full stacks")).advise(format!(
                    "to record ids: echo {name} > {}",
                    tracefs.path("stack_map_instances").display()
                ))
            }
        });
    }
    let user = tracefs
        .has("options/stackmap-user")
        .then_some("stackmap-user");
    for option in ["stackmap", "stacktrace"].into_iter().chain(user) {
        let on = tracefs
            .read(&format!("options/{option}"))
            .is_ok_and(|text| text.trim() == "1");
        let what = "options";
        checks.push(match on {
            true => Check::new(Good, what, format!("{option} is on")),
            false => Check::new(Note, what, format!("{option} is off")).advise(format!(
                "stackmap record does not need it; otherwise echo 1 > {}",
                tracefs.path(&format!("options/{option}")).display()
            )),
        });
    }
    for (count, reason) in stat.drops() {
        let found = format!("{count} full stacks recorded");
        checks.push(Check::new(Warning, "counters", found).advise(reason));
    }
    for (count, reason) in tracefs.user_stat().unwrap_or_default().user_drops() {
        let found = format!("{count} user stacks not kept");
        checks.push(Check::new(Warning, "counters", found).advise(reason));
    }
    checks
}

#[cfg(test)]
mod tests;
