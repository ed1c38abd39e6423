// SPDX-License-Identifier: GPL-2.0

//! The stacks of programs at each of their instructions, by the module's rules, against a shadow stack.
//!
//! A program is stepped from its entry, or from that of the dynamic linker. Its calls, returns and signals say which
//! return addresses its stack has. A stack that is complete must have all of these, one that is cut the innermost. A
//! program of 32 bits is walked by frame pointers, as the module does.

use stackmap_user::{
    calls::{self, Calls},
    cfi::{rule_of, Elf, Tracked, X86_64},
    rule::Rule,
    rules::{Rules, Set, SETS},
    walk::{by_frame_pointers, by_rules, unverified, Code, Memory, Registers, Unreadable},
    words::{End, StackWords, FRAMES_MAX},
    Bytes,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    env,
    fs::{self, File},
    io::Error,
    os::unix::{fs::FileExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    ptr,
    rc::Rc,
};

mod programs;

const USER_END: u64 = 0x7fff_ffff_f000;
const AT_ENTRY: u64 = 9;
const BREAKPOINT: u64 = 0xcc;
const SIGTRAP: i32 = 5;
/// The code segment of 32 bits.
const CODE_32: u64 = 0x23;

/// Instructions that are stepped, at most.
const MAX: u64 = 200_000;

/// The registers of a stopped task, as ptrace() has them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct UserRegisters {
    r15_to_r12: [u64; 4],
    rbp: u64,
    rbx_to_r8: [u64; 5],
    rax: u64,
    rcx_to_orig_rax: [u64; 5],
    rip: u64,
    cs: u64,
    eflags: u64,
    rsp: u64,
    ss_to_gs: [u64; 7],
}

extern "C" {
    fn ptrace(request: u64, pid: i32, address: *mut UserRegisters, data: *mut UserRegisters)
        -> i64;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

const TRACEME: u64 = 0;
const POKE: u64 = 5;
const CONTINUE: u64 = 7;
const STEP: u64 = 9;
const GET_REGISTERS: u64 = 12;
const SET_REGISTERS: u64 = 13;

/// A part of the address space.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    executable: bool,
    path: Rc<str>,
}

const PAGE: usize = 4096;

/// A file, and an offset in it.
type Site = (Rc<str>, u64);

/// A program that is stopped.
struct Target {
    child: Child,
    pid: i32,
    memory: File,
    /// The pages that were read of it since it stopped.
    pages: RefCell<HashMap<u64, Option<[u8; PAGE]>>>,
    mappings: Vec<Mapping>,
    files: HashMap<Rc<str>, Vec<u8>>,
    /// The stack pointer that it began with.
    stack: u64,
    /// Bytes of a word: 4 or 8.
    word_size: usize,
    rules: RefCell<HashMap<Site, Option<Rule>>>,
}

impl Target {
    /// Starts a program, which stops before its first instruction.
    fn start(command: &mut Command) -> Self {
        // SAFETY: ptrace() may be called between fork() and exec().
        unsafe {
            command.pre_exec(
                || match ptrace(TRACEME, 0, ptr::null_mut(), ptr::null_mut()) {
                    0 => Ok(()),
                    _ => Err(Error::last_os_error()),
                },
            )
        };
        let directory = env!("CARGO_TARGET_TMPDIR");
        // Programs read their environment: how many instructions that takes must not depend on the user.
        let command = command.env_clear().current_dir(directory);
        let command = command.stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = child.id() as i32;
        let mut target = Self {
            child,
            pid,
            memory: File::options()
                .read(true)
                .open(format!("/proc/{pid}/mem"))
                .unwrap(),
            pages: RefCell::default(),
            mappings: Vec::new(),
            files: HashMap::new(),
            stack: 0,
            word_size: 8,
            rules: RefCell::default(),
        };
        assert_eq!(target.wait(), Some(SIGTRAP));
        // What was opened is the memory from before exec().
        target.memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let registers = target.registers();
        target.stack = registers.rsp;
        target.word_size = if registers.cs == CODE_32 { 4 } else { 8 };
        target.read_mappings();
        target
    }

    /// Waits until it stops. Returns the signal, or `None` if it has exited.
    fn wait(&self) -> Option<i32> {
        self.pages.borrow_mut().clear();
        let mut status = 0;
        // SAFETY: The status can be written.
        let pid = unsafe { waitpid(self.pid, &mut status, 0) };
        (pid == self.pid && status & 0xff == 0x7f).then_some(status >> 8 & 0xff)
    }

    fn request(&self, request: u64, address: u64, data: *mut UserRegisters) {
        // SAFETY: The task is stopped; what is read or written of this process is `data`.
        let ret = unsafe { ptrace(request, self.pid, address as *mut UserRegisters, data) };
        assert_eq!(ret, 0, "ptrace {request}: {}", Error::last_os_error());
    }

    fn registers(&self) -> UserRegisters {
        let mut registers = UserRegisters::default();
        self.request(GET_REGISTERS, 0, &mut registers);
        registers
    }

    /// Runs it up to the entry of the program itself.
    fn run_to_entry(&mut self) {
        let auxiliary = fs::read(format!("/proc/{}/auxv", self.pid)).unwrap();
        let words: Vec<_> = auxiliary
            .chunks_exact(self.word_size)
            .map(word_of)
            .collect();
        let entry = words.chunks_exact(2).find(|pair| pair[0] == AT_ENTRY);
        let entry = entry.unwrap()[1];
        let code = u64::from_le_bytes(self.bytes(entry));
        self.request(POKE, entry, (code & !0xff | BREAKPOINT) as *mut _);
        self.request(CONTINUE, 0, ptr::null_mut());
        assert_eq!(self.wait(), Some(SIGTRAP));
        self.request(POKE, entry, code as *mut _);
        let mut registers = self.registers();
        registers.rip = entry;
        self.request(SET_REGISTERS, 0, &mut registers);
        self.read_mappings();
    }

    fn read_mappings(&mut self) {
        self.mappings.clear();
        for line in fs::read_to_string(format!("/proc/{}/maps", self.pid))
            .unwrap_or_default()
            .lines()
        {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next().unwrap().split_once('-').unwrap();
            let (flags, offset) = (words.next().unwrap(), words.next().unwrap());
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let mapping = Mapping {
                start: number(start),
                end: number(end),
                offset: number(offset),
                executable: flags.as_bytes()[2] == b'x',
                path: words.nth(2).unwrap_or_default().into(),
            };
            let path = &mapping.path;
            let is_file = path.starts_with('/') || **path == *"[vdso]";
            if mapping.executable && is_file && !self.files.contains_key(path) {
                let bytes = fs::read(&**path).unwrap_or_else(|_| {
                    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
                    self.memory
                        .read_exact_at(&mut bytes, mapping.start)
                        .unwrap();
                    bytes
                });
                self.files.insert(path.clone(), bytes);
            }
            self.mappings.push(mapping);
        }
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let index = self
            .mappings
            .partition_point(|mapping| mapping.end <= address);
        let mapping = self.mappings.get(index)?;
        (mapping.start <= address).then_some(mapping)
    }

    /// Returns where the stack is that a stack pointer is in: it may be below one that has not grown yet.
    fn stack_of(&self, sp: u64) -> Option<(u64, u64)> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= sp);
        let mapping = self.mappings.get(index)?;
        Some((mapping.start.min(sp), mapping.end))
    }

    /// Reads memory of which the end may be missing. Returns how many bytes were read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        let mut read = 0;
        let mut pages = self.pages.borrow_mut();
        while read < bytes.len() {
            let at = address.wrapping_add(read as u64);
            let (page, offset) = (at & !(PAGE as u64 - 1), at as usize % PAGE);
            let Some(page) = pages.entry(page).or_insert_with(|| {
                let mut bytes = [0; PAGE];
                self.memory.read_exact_at(&mut bytes, page).ok()?;
                Some(bytes)
            }) else {
                break;
            };
            let length = (bytes.len() - read).min(PAGE - offset);
            bytes[read..read + length].copy_from_slice(&page[offset..offset + length]);
            read += length;
        }
        read
    }

    /// Bytes at an address, of which the last may be missing.
    fn bytes<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(address, &mut bytes);
        bytes
    }

    fn rule(&self, address: u64, interrupted: bool) -> Option<Rule> {
        let mapping = self.mapping(address).filter(|mapping| mapping.executable)?;
        let Some(file) = self.files.get(&mapping.path) else {
            return Some(Rule::GENERATED);
        };
        let offset = address - mapping.start + mapping.offset;
        let file = Bytes(file);
        let learn = |elf: Elf| match interrupted {
            true => elf.learn(&file, &X86_64, offset),
            false => elf.learn_call(&file, &X86_64, offset),
        };
        let mut rules = self.rules.borrow_mut();
        *rules
            .entry((mapping.path.clone(), offset))
            .or_insert_with(|| rule_of(Elf::read(&file, &X86_64).and_then(learn)))
    }

    fn describe(&self, address: u64) -> String {
        match self.mapping(address) {
            Some(mapping) => {
                let name = mapping.path.rsplit('/').next().unwrap_or_default();
                format!("{name}+{:#x}", address - mapping.start + mapping.offset)
            }
            None => format!("{address:#x}"),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memory for Target {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        match self.read(address, &mut bytes[..self.word_size]) {
            read if read == self.word_size => Ok(u64::from_le_bytes(bytes)),
            _ => Err(Unreadable::Unmapped),
        }
    }
}

/// Returns a word of 4 or 8 bytes.
fn word_of(bytes: &[u8]) -> u64 {
    let number = |word, byte: &u8| word << 8 | u64::from(*byte);
    bytes.iter().rev().fold(0, number)
}

/// The code of a program, and the stack that is being walked.
struct Walk<'a> {
    target: &'a Target,
    rules: &'a Rules,
    registers: UserRegisters,
    words: StackWords,
}

impl Code for Walk<'_> {
    fn frames(&self) -> usize {
        self.words.frames()
    }

    fn calls(&mut self) -> Calls<'_> {
        Calls {
            mapping: calls::Mapping::default(),
            rules: self.rules,
            words: &mut self.words,
        }
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

impl Walk<'_> {
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
}

impl Counts {
    fn all(&self) -> u64 {
        self.right + self.cut.values().sum::<u64>() + self.guessed + self.wrong
    }

    /// How many percent are right and complete.
    fn share(&self) -> f64 {
        100.0 * self.right as f64 / self.all().max(1) as f64
    }

    /// Whether none is wrong, and at least `least` percent are complete without a guess.
    fn are_right(&self, least: f64) -> bool {
        self.wrong == 0 && self.share() >= least
    }
}

/// Whether these bytes begin with a call, after prefixes.
fn is_call(code: &[u8]) -> bool {
    let prefix = |byte: &u8| matches!(byte, 0x2e | 0x3e | 0x40..=0x4f | 0x66 | 0x67 | 0xf2 | 0xf3);
    let code: Vec<_> = code.iter().copied().skip_while(prefix).collect();
    matches!(code[..], [0xe8, ..]) || matches!(code[..], [0xff, form, ..] if form >> 3 & 7 == 2)
}

/// Steps a program for at most `max` instructions, and compares its stack at each.
fn step(command: &mut Command, from_entry: bool, max: u64) -> Counts {
    const RETURN: u8 = 0xc3;

    let name = format!("{command:?}");
    let mut target = Target::start(command);
    if from_entry {
        target.run_to_entry();
    }
    let rules = Rules::new((0..SETS).map(|_| Set::default()).collect()).unwrap();
    let mut shadow = ShadowStack::default();
    // Those of contexts that others have taken the place of.
    let mut others: Vec<ShadowStack> = Vec::new();
    // Whether it has another stack pointer, but what swapcontext() returns to is the other context still.
    let mut switches = false;
    let mut counts = Counts::default();
    let mut now = target.registers();
    let mut signal = 0;
    for _ in 0..max {
        let before = now;
        let code: [u8; 12] = target.bytes(before.rip);
        target.request(STEP, 0, signal as *mut _);
        let delivered = std::mem::take(&mut signal) != 0;
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
        let call = (target.word_size, before.rax);
        // mmap, mprotect, munmap, brk, mremap
        if is_syscall && matches!(call, (8, 9..=12 | 25) | (4, _))
            || target.mapping(now.rsp).is_none()
        {
            target.read_mappings();
        }
        let (start, end) = target.stack_of(now.rsp).expect("a stack");
        let top = target.word(now.rsp).unwrap_or(0);
        let (slot, ip) = (now.rsp, top);
        if delivered {
            let (ip, sp) = (before.rip, before.rsp);
            shadow.0.push(Pushed::Signal { ip, sp });
            shadow.0.push(Pushed::Call { slot, ip: top });
        } else if is_syscall && matches!(call, (8, 15) | (4, 119 | 173)) {
            // sigreturn, rt_sigreturn
            let handler = shadow
                .0
                .iter()
                .rposition(|pushed| matches!(pushed, Pushed::Signal { .. }));
            shadow.0.truncate(handler.expect("a signal"));
        } else {
            if !shadow.0.is_empty() && !shadow.ends_signal() && !shadow.is_in(start, end) {
                let known = others.iter().position(|other| other.is_in(start, end));
                // A context begins where makecontext() lets its function return to.
                let new = || ShadowStack(vec![Pushed::Call { slot, ip }]);
                let next = known.map_or_else(new, |index| others.swap_remove(index));
                others.push(std::mem::replace(&mut shadow, next));
                switches = true;
            }
            shadow.pop_below(now.rsp + u64::from(is_call(&code)), start, end);
            let pushed = now.rsp == before.rsp.wrapping_sub(target.word_size as u64);
            if is_call(&code) && pushed && top.wrapping_sub(before.rip) < 16 {
                shadow.0.push(Pushed::Call { slot, ip });
            }
        }
        switches &= code[0] != RETURN;
        if switches {
            continue;
        }
        let mut walk = Walk {
            target: &target,
            rules: &rules,
            registers: now,
            words: StackWords::default(),
        };
        let registers = Registers {
            ip: now.rip,
            sp: now.rsp,
            fp: now.rbp,
            word: target.word_size as u32,
        };
        let end = match target.word_size {
            8 => by_rules(&X86_64, registers, &target, &mut walk, USER_END),
            _ => walk.by_pointers(registers),
        };
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
        if !want.starts_with(got) && (in_register || shadow.is_changed(&target)) {
            continue;
        }
        if walk.words.guessed() != 0 {
            counts.guessed += 1;
            counts.guessed_wrong += u64::from(!want.starts_with(got));
            // What comes before them is not guessed.
            let verified = &got[..walk.words.guessed()];
            counts.wrong += u64::from(!want.starts_with(verified));
        } else if end == End::Complete && *got == want {
            counts.right += 1;
        } else if end != End::Complete && want.starts_with(got) {
            *counts.cut.entry(end.text()).or_default() += 1;
        } else {
            counts.wrong += 1;
            if counts.wrong <= 3 {
                let names = |ips: &[u64]| {
                    ips.iter()
                        .map(|ip| target.describe(*ip))
                        .collect::<Vec<_>>()
                };
                eprintln!(
                    "{name}: {}: {:?}, not {:?}",
                    end.text(),
                    names(got),
                    names(&want)
                );
            }
        }
    }
    eprintln!(
        "{name}: {} stacks, {:.2} % right and complete, cut {:?}, guessed {} ({} of them wrong), wrong {}",
        counts.all(),
        counts.share(),
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
    built("rustc", "steps.rs", "-O --cfg panics", true, 96.0);
}

/// In the innermost frame all registers are known. `inner()` has changed none, but it may: where `indexed()` and `moved()`
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

/// Programs of musl, whose libc has no CFI.
#[test]
#[ignore = "needs musl-gcc"]
fn musl() {
    require("musl-gcc", "musl-tools");
    for (flags, least) in [
        ("-O2 -static", 85.0),
        ("-Os -static -fno-omit-frame-pointer", 89.0),
        ("-O2", 91.0),
    ] {
        built("musl-gcc", "steps.c", flags, true, least);
    }
}
