// SPDX-License-Identifier: GPL-2.0

//! The stack of this very process, walked by the rules of its files, against the unwinder of the language's
//! runtime.

use stackmap_user::{
    cfi::{learn, rule_of, Tracked, X86_64},
    encoded::{EncodedStack, End},
    frame::{Code, Memory, Registers, Unreadable},
    rule::Rule,
    walk::by_rules,
    Bytes,
};
use std::{
    arch::asm,
    collections::HashMap,
    ffi::c_void,
    fs,
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

const USER_END: u64 = 0x7fff_ffff_f000;

struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// The memory and the code of this process.
struct Own {
    mappings: Vec<Mapping>,
    files: HashMap<String, Vec<u8>>,
}

impl Own {
    fn read() -> Self {
        let text = fs::read_to_string("/proc/self/maps").unwrap();
        let mut own = Self {
            mappings: Vec::new(),
            files: HashMap::new(),
        };
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next().unwrap().split_once('-').unwrap();
            let (_flags, offset) = (words.next(), words.next().unwrap());
            let path = words.nth(2).unwrap_or_default().to_owned();
            if path.starts_with('/') {
                let read = || fs::read(&path).unwrap_or_default();
                own.files.entry(path.clone()).or_insert_with(read);
            }
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            own.mappings.push(Mapping {
                start: number(start),
                end: number(end),
                offset: number(offset),
                path,
            });
        }
        own
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let mut all = self.mappings.iter();
        all.find(|mapping| mapping.start <= address && address < mapping.end)
    }
}

struct OwnMemory<'a>(&'a Own);

impl Memory for OwnMemory<'_> {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        self.0.mapping(address).ok_or(Unreadable::Unmapped)?;
        // SAFETY: It is mapped; a stack does not go while it is used.
        Ok(unsafe { (address as *const u64).read_volatile() })
    }
}

struct OwnCode<'a> {
    own: &'a Own,
    words: EncodedStack,
}

impl Code for OwnCode<'_> {
    fn frames(&self) -> usize {
        self.words.frames()
    }

    fn frame(&mut self, ip: u64, address: u64, _interrupted: bool) -> Result<Rule, End> {
        self.words.keep(ip);
        self.rule(address).ok_or(End::NoRule)
    }

    fn rule(&mut self, address: u64) -> Option<Rule> {
        let mapping = self.own.mapping(address)?;
        let file = self.own.files.get(&mapping.path)?;
        let offset = address - mapping.start + mapping.offset;
        rule_of(learn(&Bytes(file), &X86_64, offset))
    }

    fn stack(&self) -> u64 {
        u64::MAX
    }

    fn bytes_before(&mut self, _address: u64) -> Option<[u8; 8]> {
        None
    }

    fn instruction(&mut self, _address: u64) -> Option<([u8; 16], usize)> {
        None
    }

    fn register(&self, _register: u64) -> u64 {
        0
    }

    fn track(&mut self, _address: u64, _register: u64) -> Option<Tracked> {
        None
    }

    fn guess(&mut self) {
        unreachable!("no bytes can be read");
    }
}

extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> i32,
        data: *mut c_void,
    ) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn raise(number: i32) -> i32;
}

extern "C" fn keep(context: *mut c_void, ips: *mut c_void) -> i32 {
    // SAFETY: The unwinder calls this with its context and what it was given.
    unsafe { (*ips.cast::<Vec<usize>>()).push(_Unwind_GetIP(context)) };
    0
}

/// Walks the stack both ways, and compares all callers.
#[inline(never)]
fn compare(own: &Own) -> usize {
    let mut theirs = Vec::<usize>::new();
    let (ip, sp, fp): (u64, u64, u64);
    // SAFETY: Registers are read.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) fp);
        _Unwind_Backtrace(keep, (&raw mut theirs).cast());
    }
    let registers = Registers {
        ip,
        sp,
        fp,
        word: 8,
    };
    let mut code = OwnCode {
        own,
        words: EncodedStack::default(),
    };
    let end = by_rules(&X86_64, registers, &OwnMemory(own), &mut code, USER_END);
    let ours: Vec<_> = code.words.words().iter().map(|ip| *ip as usize).collect();
    assert_eq!(end, End::Complete);
    // The last one of theirs may be the end of the stack, which is no frame.
    while theirs.last() == Some(&0) {
        theirs.pop();
    }
    assert_eq!(ours[1..], theirs[1..]);
    ours.len()
}

/// Frames of several sizes, some of them aligned.
#[inline(never)]
fn deep(own: &Own, depth: usize) -> usize {
    #[repr(align(64))]
    struct Aligned([u8; 64]);

    #[inline(never)]
    fn large(own: &Own, depth: usize) -> usize {
        let buffer = black_box([0_u8; 4000]);
        deep(own, depth) + usize::from(buffer[depth])
    }

    #[inline(never)]
    fn aligned(own: &Own, depth: usize) -> usize {
        let buffer = black_box(Aligned([0; 64]));
        deep(own, depth) + usize::from(buffer.0[depth % 64])
    }

    match depth {
        0 => compare(own),
        _ if depth % 5 == 0 => large(own, depth - 1) + black_box(0),
        _ if depth % 7 == 0 => aligned(own, depth - 1) + black_box(0),
        _ => deep(own, depth - 1) + black_box(0),
    }
}

#[test]
fn a_stack_of_this_process_is_complete_and_right() {
    let own = Own::read();
    for depth in [0, 1, 26, 100] {
        assert!(deep(&own, depth) > depth + 5);
    }
}

#[test]
fn a_stack_of_another_thread_is_complete_and_right() {
    let thread = thread::spawn(|| deep(&Own::read(), 30));
    assert!(thread.join().unwrap() > 30);
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_number: i32) {
    HANDLED.store(deep(&Own::read(), 3), Ordering::Relaxed);
}

#[test]
fn a_stack_goes_on_through_a_signal() {
    const SIGUSR1: i32 = 10;
    // SAFETY: The handler is a function of this program; the signal comes from raise(), so nothing that the
    // handler uses is locked.
    unsafe {
        signal(SIGUSR1, handle);
        raise(SIGUSR1);
    }
    assert!(HANDLED.load(Ordering::Relaxed) > 10);
}
