// SPDX-License-Identifier: GPL-2.0

//! A program that ptrace() has stopped: its registers, its memory, and the rules of its files.

use object::{Object, ObjectSegment, ObjectSymbol};
use stackmap_user::{
    cfi::{rule_of, Elf, X86_64},
    frame::{Memory, Unreadable},
    rule::Rule,
    Bytes,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    env,
    fs::{self, File},
    io::Error,
    os::unix::{fs::FileExt, process::CommandExt},
    process::{Child, Command, Stdio},
    ptr,
    rc::Rc,
};

const AT_ENTRY: u64 = 9;
const BREAKPOINT: u64 = 0xcc;
pub(crate) const SIGTRAP: i32 = 5;
/// The code segment of 32 bits.
const CODE_32: u64 = 0x23;

/// The registers of a stopped task, as ptrace() has them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct UserRegisters {
    pub(crate) r15_to_r12: [u64; 4],
    pub(crate) rbp: u64,
    pub(crate) rbx_to_r8: [u64; 5],
    pub(crate) rax: u64,
    pub(crate) rcx_to_orig_rax: [u64; 5],
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) eflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss_to_gs: [u64; 7],
}

extern "C" {
    fn ptrace(request: u64, pid: i32, address: *mut UserRegisters, data: *mut UserRegisters)
        -> i64;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

const TRACEME: u64 = 0;
const POKE: u64 = 5;
const CONTINUE: u64 = 7;
pub(crate) const STEP: u64 = 9;
const GET_REGISTERS: u64 = 12;
const SET_REGISTERS: u64 = 13;
const CONTINUE_TO_CALL: u64 = 24;

/// A part of the address space.
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) executable: bool,
    pub(crate) path: Rc<str>,
}

const PAGE: usize = 4096;

/// A file, and an offset in it.
type Site = (Rc<str>, u64);

/// A program that is stopped.
pub(crate) struct Target {
    pub(crate) child: Child,
    pub(crate) pid: i32,
    pub(crate) memory: File,
    /// The pages that were read of it since it stopped.
    pub(crate) pages: RefCell<HashMap<u64, Option<[u8; PAGE]>>>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) files: HashMap<Rc<str>, Vec<u8>>,
    /// The stack pointer that it began with.
    pub(crate) stack: u64,
    /// Bytes of a word: 4 or 8.
    pub(crate) word_size: usize,
    pub(crate) rules: RefCell<HashMap<Site, Option<Rule>>>,
}

impl Target {
    /// Starts a program, which stops before its first instruction.
    pub(crate) fn start(command: &mut Command) -> Self {
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
        let given: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        let command = command.env_clear().envs(given).current_dir(directory);
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
    pub(crate) fn wait(&self) -> Option<i32> {
        self.pages.borrow_mut().clear();
        let mut status = 0;
        // SAFETY: The status can be written.
        let pid = unsafe { waitpid(self.pid, &mut status, 0) };
        (pid == self.pid && status & 0xff == 0x7f).then_some(status >> 8 & 0xff)
    }

    pub(crate) fn request(&self, request: u64, address: u64, data: *mut UserRegisters) {
        // SAFETY: The task is stopped; what is read or written of this process is `data`.
        let ret = unsafe { ptrace(request, self.pid, address as *mut UserRegisters, data) };
        assert_eq!(ret, 0, "ptrace {request}: {}", Error::last_os_error());
    }

    pub(crate) fn registers(&self) -> UserRegisters {
        let mut registers = UserRegisters::default();
        self.request(GET_REGISTERS, 0, &mut registers);
        registers
    }

    /// Runs it up to the entry of the program itself.
    pub(crate) fn run_to_entry(&mut self) {
        let auxiliary = fs::read(format!("/proc/{}/auxv", self.pid)).unwrap();
        let words: Vec<_> = auxiliary
            .chunks_exact(self.word_size)
            .map(word_of)
            .collect();
        let entry = words.chunks_exact(2).find(|pair| pair[0] == AT_ENTRY);
        let entry = entry.unwrap()[1];
        self.run_to(entry);
    }

    /// Runs it up to an instruction, which no other thread executes.
    pub(crate) fn run_to(&mut self, address: u64) {
        let code = u64::from_le_bytes(self.bytes(address));
        self.request(POKE, address, (code & !0xff | BREAKPOINT) as *mut _);
        self.request(CONTINUE, 0, ptr::null_mut());
        assert_eq!(self.wait(), Some(SIGTRAP));
        self.request(POKE, address, code as *mut _);
        let mut registers = self.registers();
        registers.rip = address;
        self.request(SET_REGISTERS, 0, &mut registers);
        self.read_mappings();
    }

    /// Runs it up to the end of the `nr`th system call of this number.
    pub(crate) fn run_to_call(&mut self, (number, nr): (u64, u32)) {
        // It stops before and after each.
        let mut stops = 2 * nr;
        while stops > 0 {
            self.request(CONTINUE_TO_CALL, 0, ptr::null_mut());
            assert_eq!(self.wait(), Some(SIGTRAP));
            let [.., orig_rax] = self.registers().rcx_to_orig_rax;
            stops -= u32::from(orig_rax == number);
        }
        self.read_mappings();
    }

    /// Returns the address of a function by its name, which a file that is mapped exports.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        self.files.iter().find_map(|(path, file)| {
            let elf = object::File::parse(&file[..]).ok()?;
            let symbol = elf
                .dynamic_symbols()
                .find(|symbol| symbol.name() == Ok(name) && symbol.is_definition())?;
            let mut segments = elf.segments().filter_map(|segment| {
                let inside = symbol.address().checked_sub(segment.address())?;
                let (offset, size) = segment.file_range();
                (inside < size).then_some(offset + inside)
            });
            let offset = segments.next()?;
            let mapping = self.mappings.iter().find(|mapping| {
                let size = mapping.end - mapping.start;
                mapping.executable
                    && mapping.path == *path
                    && offset.wrapping_sub(mapping.offset) < size
            })?;
            Some(mapping.start + offset - mapping.offset)
        })
    }

    pub(crate) fn read_mappings(&mut self) {
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

    pub(crate) fn mapping(&self, address: u64) -> Option<&Mapping> {
        let index = self
            .mappings
            .partition_point(|mapping| mapping.end <= address);
        let mapping = self.mappings.get(index)?;
        (mapping.start <= address).then_some(mapping)
    }

    /// Returns where the stack is that a stack pointer is in: it may be below one that has not grown yet.
    pub(crate) fn stack_of(&self, sp: u64) -> Option<(u64, u64)> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= sp);
        let mapping = self.mappings.get(index)?;
        Some((mapping.start.min(sp), mapping.end))
    }

    /// Reads memory of which the end may be missing. Returns how many bytes were read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
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
    pub(crate) fn bytes<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(address, &mut bytes);
        bytes
    }

    pub(crate) fn rule(&self, address: u64, interrupted: bool) -> Option<Rule> {
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

    pub(crate) fn describe(&self, address: u64) -> String {
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
