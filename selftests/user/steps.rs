// SPDX-License-Identifier: GPL-2.0

//! The stacks of programs at each of their instructions, by the module's rules, against a shadow stack.
//!
//! A program is stepped from its entry, or from that of the dynamic linker. Its calls, returns and signals say which
//! return addresses its stack has. A stack that is complete must have all of these, one that is cut the innermost. A
//! program of 32 bits is walked by frame pointers, as the module does.

mod debian;
mod programs;
mod traced;

use stackmap_user::{
    cfi::{Elf, Tracked, X86_64},
    encoded::{EncodedStack, End, FRAMES_MAX},
    frame::{Code, Frame, Memory, Registers},
    rule::{Rule, RuleKind},
    walk::{by_frame_pointers, by_rules, unverified},
    Bytes,
};
use std::{
    collections::BTreeMap,
    env, fs,
    mem::{replace, take},
    path::{Path, PathBuf},
    process::{self, Command},
};
use traced::{Target, UserRegisters, SIGTRAP, STEP};

const USER_END: u64 = 0x7fff_ffff_f000;

/// Instructions that are stepped, at most.
const MAX: u64 = 200_000;

/// The code of a program, and the stack that is being walked.
struct Walk<'a> {
    target: &'a Target,
    registers: UserRegisters,
    words: EncodedStack,
    /// The addresses of the return addresses.
    slots: Vec<u64>,
}

impl Code for Walk<'_> {
    fn frames(&self) -> usize {
        self.words.frames()
    }

    fn frame(&mut self, ip: u64, address: u64, interrupted: bool) -> Result<Rule, End> {
        let rule = self.target.rule(address, interrupted);
        if rule.is_some() || interrupted {
            self.words.keep(ip);
        }
        rule.ok_or(End::BadAddress)
    }

    fn rule(&mut self, address: u64) -> Option<Rule> {
        self.target.rule(address, true)
    }

    fn original(&mut self, _frame: &Frame, slot: Option<u64>) -> Option<Frame> {
        self.slots.extend(slot);
        None
    }

    fn register(&self, register: u64) -> u64 {
        let now = &self.registers;
        match register {
            0 => now.rax,
            2 => now.rcx_to_orig_rax[0],
            1 => now.rcx_to_orig_rax[1],
            4 | 5 => now.rcx_to_orig_rax[register as usize - 2],
            3 => now.rbx_to_r8[0],
            8..=11 => now.rbx_to_r8[12 - register as usize],
            number => now.r15_to_r12[15 - number as usize],
        }
    }

    fn track(&mut self, address: u64, register: u64) -> Option<Tracked> {
        let mapping = self.target.mapping(address)?;
        let file = Bytes(self.target.files.get(&mapping.path)?);
        let offset = address - mapping.start + mapping.offset;
        let elf = Elf::read(&file, &X86_64).ok()?;
        elf.track(&file, &X86_64, offset, register).ok()
    }

    fn stack(&self) -> u64 {
        self.target.stack
    }

    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let word = self.target.word(address.wrapping_sub(8)).ok()?;
        Some(word.to_le_bytes())
    }

    fn instruction(&mut self, address: u64) -> Option<([u8; 16], usize)> {
        let bytes = self.target.bytes(address);
        let mut decoder = iced_x86::Decoder::new(64, &bytes, 0);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then(|| (bytes, instruction.len()))
    }

    fn guess(&mut self) {
        self.words.guess();
    }
}

impl<'a> Walk<'a> {
    /// Walks the stack of a program in a state. Returns the walk, and how the stack ends.
    fn new(target: &'a Target, now: UserRegisters) -> (Self, End) {
        let mut walk = Self {
            target,
            registers: now,
            words: EncodedStack::default(),
            slots: Vec::new(),
        };
        let registers = Registers {
            ip: now.rip,
            sp: now.rsp,
            fp: now.rbp,
            word: target.word_size as u32,
        };
        let end = match target.word_size {
            8 => by_rules(&X86_64, registers, target, &mut walk, USER_END),
            _ => walk.by_pointers(registers),
        };
        (walk, end)
    }

    fn by_pointers(&mut self, registers: Registers) -> End {
        let mut ips = [0; FRAMES_MAX];
        let nr = by_frame_pointers(registers, self.target, &mut ips);
        unverified(&ips[..nr], USER_END, &mut self.words, |words, ip| {
            let is_code = self
                .target
                .mapping(ip)
                .is_some_and(|mapping| mapping.executable);
            if is_code {
                words.keep(ip);
            }
            is_code.then_some(()).ok_or(End::BadAddress)
        })
    }
}

/// A return address, and where it is on the stack; or what a signal has interrupted.
enum Pushed {
    Call { slot: u64, ip: u64 },
    Signal { ip: u64, sp: u64 },
}

/// The return addresses of a stack, the outermost first.
#[derive(Default)]
struct ShadowStack(Vec<Pushed>);

impl ShadowStack {
    /// Whether it has a return address, or what a signal has interrupted, in the memory from `start` to `end`.
    fn is_in(&self, start: u64, end: u64) -> bool {
        self.0.iter().any(|pushed| match pushed {
            Pushed::Call { slot, .. } => (start..end).contains(slot),
            Pushed::Signal { sp, .. } => (start..end).contains(sp),
        })
    }

    /// Whether a signal handler is about to return, whose stack may be anywhere.
    fn ends_signal(&self) -> bool {
        matches!(self.0.last(), Some(Pushed::Signal { .. }))
    }

    /// Removes the return addresses below `sp`, which is in the stack from `start` to `end`.
    fn pop_below(&mut self, sp: u64, start: u64, end: u64) {
        let here = start..end;
        while let Some(last) = self.0.last() {
            let left = match last {
                Pushed::Call { slot, .. } => *slot < sp || !here.contains(slot),
                // A handler that does not return, but jumps.
                Pushed::Signal { sp: before, .. } => *before < sp && here.contains(before),
            };
            if !left {
                break;
            }
            self.0.pop();
        }
    }

    /// Whether the program has changed a return address, as the one to which an exception is thrown is set. The
    /// frames in between are then abandoned.
    fn is_changed(&self, target: &Target) -> bool {
        self.0.iter().any(|pushed| match pushed {
            Pushed::Call { slot, ip } => target.word(*slot) != Ok(*ip),
            Pushed::Signal { .. } => false,
        })
    }

    /// All addresses, the innermost first.
    fn ips(&self, ip: u64) -> Vec<u64> {
        let outer = self.0.iter().rev().map(|pushed| match pushed {
            Pushed::Call { ip, .. } | Pushed::Signal { ip, .. } => *ip,
        });
        [ip].into_iter().chain(outer).collect()
    }
}

/// How many stacks there were of each kind.
#[derive(Default)]
struct Counts {
    right: u64,
    cut: BTreeMap<&'static str, u64>,
    guessed: u64,
    guessed_wrong: u64,
    wrong: u64,
    /// Those that are cut or guessed at code without a description, or after a function that enters an exception's handler.
    undescribed: u64,
    /// The frames that have no caller, or of which it is guessed, and how often.
    last: BTreeMap<u64, u64>,
}

impl Counts {
    fn all(&self) -> u64 {
        self.right + self.cut.values().sum::<u64>() + self.guessed + self.wrong
    }

    /// Returns the percentage that is right and complete.
    fn share(&self) -> f64 {
        100.0 * self.right as f64 / self.all().max(1) as f64
    }

    /// Returns the same of the stacks that have descriptions throughout.
    fn described_share(&self) -> f64 {
        100.0 * self.right as f64 / (self.all() - self.undescribed).max(1) as f64
    }

    /// Returns whether none is wrong, and at least `least` percent are right; above 96, 99.5 % of those with descriptions.
    fn are_right(&self, least: f64) -> bool {
        let described = least <= 96.0 || self.described_share() >= 99.5;
        self.wrong == 0 && self.share() >= least && described
    }
}

/// Whether these bytes begin with a call, after prefixes.
fn is_call(code: &[u8]) -> bool {
    let prefix = |byte: &u8| matches!(byte, 0x2e | 0x3e | 0x40..=0x4f | 0x66 | 0x67 | 0xf2 | 0xf3);
    let code: Vec<_> = code.iter().copied().skip_while(prefix).collect();
    matches!(code[..], [0xe8, ..]) || matches!(code[..], [0xff, form, ..] if form >> 3 & 7 == 2)
}

/// The stacks of all contexts of a program.
#[derive(Default)]
struct ShadowStacks {
    current: ShadowStack,
    others: Vec<ShadowStack>,
    /// The stack pointer has changed, but what swapcontext() returns to is the other context still.
    switches: bool,
}

impl ShadowStacks {
    /// Returns those of a program that has the stack which the module says. If not, that shows when the program returns.
    fn begun(target: &Target, now: UserRegisters) -> Self {
        let (walk, end) = Walk::new(target, now);
        assert_eq!(end, End::Complete);
        let calls = walk.slots.iter().zip(&walk.words.words()[1..]);
        let pushed = calls.map(|(slot, ip)| Pushed::Call {
            slot: *slot,
            ip: *ip,
        });
        Self {
            current: ShadowStack(pushed.rev().collect()),
            ..Self::default()
        }
    }

    /// Returns those of a program that has just called a function.
    fn at_entry(target: &Target) -> Self {
        let mut now = target.registers();
        let (slot, ip) = (now.rsp, target.word(now.rsp).unwrap());
        (now.rip, now.rsp) = (ip, slot + 8);
        let mut stacks = Self::begun(target, now);
        stacks.current.0.push(Pushed::Call { slot, ip });
        stacks
    }

    /// Follows an instruction, or the delivery of a signal. `syscall` is the size of a word and the number of the call.
    /// Returns whether the current stack is known afterwards.
    fn follow(
        &mut self,
        target: &Target,
        [before, now]: [&UserRegisters; 2],
        code: &[u8],
        syscall: Option<(usize, u64)>,
        delivered: bool,
    ) -> bool {
        const RETURN: u8 = 0xc3;

        let (start, end) = target.stack_of(now.rsp).expect("a stack");
        let (slot, ip) = (now.rsp, target.word(now.rsp).unwrap_or(0));
        let shadow = &mut self.current;
        if delivered {
            let (interrupted, sp) = (before.rip, before.rsp);
            shadow.0.push(Pushed::Signal {
                ip: interrupted,
                sp,
            });
            shadow.0.push(Pushed::Call { slot, ip });
        } else if matches!(syscall, Some((8, 15) | (4, 119 | 173))) {
            // sigreturn, rt_sigreturn
            let handler = shadow
                .0
                .iter()
                .rposition(|pushed| matches!(pushed, Pushed::Signal { .. }));
            shadow.0.truncate(handler.expect("a signal"));
        } else {
            if !shadow.0.is_empty() && !shadow.ends_signal() && !shadow.is_in(start, end) {
                let known = self.others.iter().position(|other| other.is_in(start, end));
                // A context begins where makecontext() lets its function return to.
                let new = || ShadowStack(vec![Pushed::Call { slot, ip }]);
                let next = known.map_or_else(new, |index| self.others.swap_remove(index));
                self.others.push(replace(shadow, next));
                self.switches = true;
            }
            shadow.pop_below(now.rsp + u64::from(is_call(code)), start, end);
            let pushed = now.rsp == before.rsp.wrapping_sub(target.word_size as u64);
            if is_call(code) && pushed && ip.wrapping_sub(before.rip) < 16 {
                shadow.0.push(Pushed::Call { slot, ip });
            }
        }
        self.switches &= code[0] != RETURN;
        !self.switches
    }
}

impl Counts {
    /// Compares the stack of a program in a state with the one that it should have.
    fn compare(&mut self, name: &str, target: &Target, now: UserRegisters, shadow: &ShadowStack) {
        let (walk, end) = Walk::new(target, now);
        let got = walk.words.words();
        let want = shadow.ips(now.rip);
        // longjmp() has the return address in rdx, vfork() in rdi: it is on no stack.
        let [rdx, _, rdi] = now.rcx_to_orig_rax[1..4] else {
            unreachable!()
        };
        let in_register = match got {
            [_, ip, outer @ ..] => [rdx, rdi].contains(ip) && want.ends_with(outer),
            _ => false,
        };
        if !want.starts_with(got) && (in_register || shadow.is_changed(target)) {
            return;
        }
        let verified = match walk.words.guessed() {
            0 => got,
            guessed => &got[..guessed],
        };
        if end != End::Complete || walk.words.guessed() != 0 {
            *self.last.entry(*verified.last().unwrap()).or_default() += 1;
            let kind = |(index, ip): (usize, &u64)| {
                let address = ip - u64::from(index > 0);
                target.rule(address, true).map(|rule| rule.kind())
            };
            let mut kinds = verified.iter().enumerate().map(kind);
            let last = kinds.clone().next_back().flatten();
            use RuleKind::{Generated, Start, Unknown};
            let undescribed = matches!(last, Some(Generated | Start | Unknown))
                || kinds.any(|kind| kind == Some(RuleKind::Handler));
            self.undescribed += u64::from(undescribed);
        }
        if walk.words.guessed() != 0 {
            self.guessed += 1;
            self.guessed_wrong += u64::from(!want.starts_with(got));
            // What comes before them is not guessed.
            self.wrong += u64::from(!want.starts_with(verified));
        } else if end == End::Complete && *got == want {
            self.right += 1;
        } else if end != End::Complete && want.starts_with(got) {
            *self.cut.entry(end.text()).or_default() += 1;
        } else {
            self.wrong += 1;
            if self.wrong <= 3 {
                let names =
                    |ips: &[u64]| -> Vec<_> { ips.iter().map(|ip| target.describe(*ip)).collect() };
                let (got, want) = (names(got), names(&want));
                eprintln!("{name}: {}: {got:?}, not {want:?}", end.text());
            }
        }
    }
}

/// Steps a program for at most `max` instructions, and compares its stack at each.
fn step(command: &mut Command, from_entry: bool, max: u64) -> Counts {
    let name = format!("{command:?}");
    let mut target = Target::start(command);
    if from_entry {
        target.run_to_entry();
    }
    step_on((&name, &mut target), ShadowStacks::default(), (1, max))
}

/// Steps a program that has this stack for at most `max` instructions, and compares its stack at each of which the number
/// is a multiple of `every`.
fn step_on(
    (name, target): (&str, &mut Target),
    mut shadows: ShadowStacks,
    (every, max): (u64, u64),
) -> Counts {
    let mut counts = Counts::default();
    let mut now = target.registers();
    let mut signal = 0;
    for nr in 0..max {
        let before = now;
        let code: [u8; 12] = target.bytes(before.rip);
        target.request(STEP, 0, signal as *mut _);
        let delivered = take(&mut signal) != 0;
        match target.wait() {
            None => break,
            Some(SIGTRAP) => {}
            Some(number) => {
                signal = number as u64;
                continue;
            }
        }
        now = target.registers();
        // syscall, sysenter, int $0x80
        let is_syscall = matches!(code[..2], [0x0f, 0x05 | 0x34] | [0xcd, 0x80]);
        let syscall = is_syscall.then_some((target.word_size, before.rax));
        // mmap, mprotect, munmap, brk, mremap
        if matches!(syscall, Some((8, 9..=12 | 25) | (4, _))) || target.mapping(now.rsp).is_none() {
            target.read_mappings();
        }
        let is_known = shadows.follow(target, [&before, &now], &code, syscall, delivered);
        if is_known && nr % every == 0 {
            counts.compare(name, target, now, &shadows.current);
        }
    }
    let mut last: Vec<_> = counts.last.iter().map(|(ip, nr)| (nr, ip)).collect();
    last.sort_by(|a, b| b.cmp(a));
    let last: Vec<_> = last
        .iter()
        .take(3)
        .map(|(nr, ip)| format!("{nr} {}", target.describe(**ip)))
        .collect();
    eprintln!(
        "{name}: {} stacks, {:.2} % right and complete, {:.2} % of those with descriptions, cut {:?}, guessed {} ({} of them wrong), wrong {}; most often at {last:?}",
        counts.all(),
        counts.share(),
        counts.described_share(),
        counts.cut,
        counts.guessed,
        counts.guessed_wrong,
        counts.wrong
    );
    counts
}

/// Fails if a program is missing, with the package that has it.
fn require(program: &str, package: &str) {
    let directories = env::var_os("PATH").unwrap();
    let found = env::split_paths(&directories).any(|path| path.join(program).exists());
    assert!(found, "{program} is missing: install the package {package}");
}

/// Builds a program of `steps/`.
fn build(compiler: &str, source: &str, flags: &str) -> PathBuf {
    let name = format!("{compiler} {source} {flags} {}", process::id());
    let name = name.replace([' ', '/', ',', '='], "_");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("steps");
    let status = Command::new(compiler)
        .args(flags.split_ascii_whitespace())
        .arg(sources.join(source))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.unwrap().success(), "{compiler} {source} {flags}");
    program
}

/// Builds a program and steps it from its own entry, or from the first instruction.
fn step_built(compiler: &str, source: &str, flags: &str, from_entry: bool) -> Counts {
    let program = build(compiler, source, flags);
    let counts = step(&mut Command::new(&program), from_entry, MAX);
    fs::remove_file(program).unwrap();
    counts
}

/// Builds and steps a program. None of its stacks may be wrong, and at least `least` percent must be complete without a
/// guess.
fn built(compiler: &str, source: &str, flags: &str, from_entry: bool, least: f64) {
    let counts = step_built(compiler, source, flags, from_entry);
    assert!(counts.are_right(least), "{source} {flags}");
}

/// Where the dynamic linker resolves a symbol, its frame ends at an offset from `rbx`, which callees save.
#[test]
fn lazily_bound() {
    built("cc", "steps.c", "-O2 -Wl,-z,lazy", true, 99.5);
    let flags = "-O2 -fno-omit-frame-pointer -Wl,-z,lazy";
    built("cc", "steps.c", flags, true, 99.5);
}

#[test]
fn bound_at_once_from_the_first_instruction_of_the_linker() {
    built("cc", "steps.c", "-O2 -Wl,-z,now", false, 99.5);
}

/// The frame pointer is saved where it points then, and the frame's end is in r10 in prologues and epilogues.
#[test]
fn with_stacks_that_functions_align() {
    built("cc", "steps.c", "-O2 -mstackrealign", true, 99.5);
    built("c++", "steps.cpp", "-O2 -mstackrealign", true, 99.5);
}

#[test]
fn static_with_assembly() {
    let flags = "-O2 -static -DASSEMBLY";
    built("cc", "steps.c", flags, true, 98.5);
    let flags = format!("{flags} -fno-omit-frame-pointer");
    built("cc", "steps.c", &flags, true, 98.5);
}

#[test]
fn without_descriptions() {
    let flags = "-O2 -static -DASSEMBLY -fno-asynchronous-unwind-tables";
    built("cc", "steps.c", flags, true, 55.0);
    let flags = format!("{flags} -fno-omit-frame-pointer");
    built("cc", "steps.c", &flags, true, 55.0);
}

/// gcc describes retpolines wrongly, and after an inlined one what follows it: such stacks are cut.
#[test]
fn with_retpolines() {
    let flags =
        "-O2 -fcf-protection=none -mfunction-return=thunk-inline -mindirect-branch=thunk-inline";
    built("cc", "steps.c", flags, true, 96.0);
    built("c++", "steps.cpp", flags, true, 80.0);
    let flags = "-O2 -fcf-protection=none -mfunction-return=thunk -mindirect-branch=thunk";
    built("cc", "frames.c", flags, true, 96.0);
}

/// Parts of functions that gcc puts elsewhere, each after a call in another one.
const COLD: &str = "-D__cold=__attribute__((cold)) -O2 -fno-omit-frame-pointer -mno-red-zone \
                    -fno-asynchronous-unwind-tables -static -no-pie -fno-pie";

/// Decoding goes on after calls that do not return.
#[test]
fn without_returns() {
    let flags = "-Os -mno-red-zone -static -no-pie -fno-pie -fno-asynchronous-unwind-tables";
    built("cc", "noreturn.c", flags, true, 89.0);
    built("cc", "cold.c", COLD, true, 94.0);
    let flags = "-O1 -static -no-pie -fno-pie -fno-asynchronous-unwind-tables";
    built("cc", "paths.c", flags, true, 93.0);
}

/// The frame pointer is an address on the stack, which a loop moves from frame to frame.
#[test]
fn with_lists_of_frames() {
    for optimize in ["-Og", "-O1"] {
        let flags = "-static -no-pie -fno-pie -fno-asynchronous-unwind-tables";
        built("cc", "list.c", &format!("{optimize} {flags}"), true, 80.0);
    }
}

#[test]
fn cpp() {
    built("c++", "steps.cpp", "-O2", true, 99.5);
}

/// While a panic is on its way, stacks are guessed that the unwinder's own function is the innermost frame of, or has called
/// the innermost one.
#[test]
fn rust() {
    built("rustc", "steps.rs", "-O", true, 99.5);
    built("rustc", "steps.rs", "-O --cfg panics", true, 96.1);
}

/// In the innermost frame all registers are known. `inner()` has changed none, but it may: where `indexed()` and `displaced()`
/// have called it, its one instruction is.
#[test]
fn with_callers_that_are_computed() {
    let flags = "-O1 -fno-omit-frame-pointer -static";
    let counts = step_built("cc", "computed.c", flags, true);
    let cut = BTreeMap::from([(End::Inexpressible.text(), 2)]);
    assert!(counts.are_right(99.0) && counts.cut == cut);
}

/// Nothing verifies frame pointers alone: no stack is complete, and all frames but the first are guessed.
#[test]
fn of_32_bits() {
    let flags = "-m32 -O1 -nostdlib -static -fno-pic";
    let counts = step_built("cc", "../../programs/compat.c", flags, true);
    assert!(counts.are_right(0.0) && counts.right == 0);
}

/// The table of a program of Go is not found where its relocations are not sorted.
#[test]
#[ignore = "builds a program of Go"]
fn go_without_a_table() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go_{}", process::id()));
    let status = Command::new(tests.join("build-go"))
        .arg("-buildmode=pie")
        .arg("-ldflags=-linkmode=external -extldflags=-Wl,-z,nocombreloc")
        .arg("-o")
        .arg(&program)
        .arg(tests.join("programs/names.go"))
        .status();
    assert!(status.unwrap().success());
    let counts = step(&mut Command::new(&program), true, MAX / 4);
    fs::remove_file(program).unwrap();
    let no_cfi = counts.cut.get(End::NoCfi.text()).copied();
    // C begins the program: only its stacks are complete.
    assert!(counts.are_right(0.0) && counts.share() < 5.0);
    assert!(no_cfi > Some(1000) && counts.cut.len() == 1);
}
