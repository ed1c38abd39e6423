// SPDX-License-Identifier: GPL-2.0

//! The stacks of arm64 programs at each of their instructions, by the module's rules, against a shadow stack.
//!
//! QEMU runs a static program, and steps its main() for gdb. Its calls, returns and signals say which return addresses its stack
//! has. The processor signs return addresses, if the program asks for it.

use object::{Object, ObjectSymbol};
use stackmap_user::{
    cfi::{rule_of, Elf, Tracked, Unknown, ARM64},
    encoded::{EncodedStack, End},
    frame::{Code, Memory, Registers, Unreadable},
    rule::Rule,
    walk::by_rules,
    Bytes,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

const USER_END: u64 = 1 << 48;
const SVC: u32 = 0xd400_0001;
const SIGRETURN: u64 = 139;
const SIGTRAP: u64 = 5;
/// Instructions that are stepped, at most.
const MAX: u64 = 100_000;
/// Bytes of memory that are read at once.
const BLOCK: u64 = 1024;

/// x0 to x30, the stack pointer, and the next instruction.
type State = [u64; 33];

/// A program that is stopped.
struct Target {
    qemu: Child,
    gdb: RefCell<BufReader<UnixStream>>,
    /// What was read of its stack since it stopped, and of its code.
    memory: RefCell<HashMap<u64, Option<Vec<u8>>>>,
    text: RefCell<HashMap<u64, Option<Vec<u8>>>>,
    file: Vec<u8>,
    elf: Elf,
    /// The addresses of the file's code, and where it is in the file.
    code: (u64, u64, u64),
    /// Where signal handlers return to.
    returns: u64,
    stack: u64,
    rules: RefCell<HashMap<(u64, bool), Option<Rule>>>,
}

impl Target {
    fn start(program: &Path) -> Self {
        let file = fs::read(program).unwrap();
        let elf = Elf::read(&Bytes(&file), &ARM64).unwrap();
        let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        let headers = number(32) as usize;
        // The segment that is loaded and executable.
        let header = (0..16).map(|nr| headers + 56 * nr);
        let header = header
            .into_iter()
            .find(|at| number(*at) & 0x1_ffff_ffff == 0x1_0000_0001 && file[at + 4] == 5);
        let at = header.unwrap();
        let code = (number(at + 16), number(at + 32), number(at + 8));
        let socket = program.with_extension("gdb");
        let _ = fs::remove_file(&socket);
        let qemu = Command::new("qemu-aarch64")
            .args(["-cpu", "max,pauth-impdef=on", "-g"])
            .args([&socket, program])
            .env_clear()
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let gdb = loop {
            match UnixStream::connect(&socket) {
                Ok(gdb) => break gdb,
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut target = Self {
            qemu,
            gdb: BufReader::new(gdb).into(),
            memory: RefCell::default(),
            text: RefCell::default(),
            file,
            elf,
            code,
            returns: 0,
            stack: 0,
            rules: RefCell::default(),
        };
        target.ask("?");
        target.stack = target.state()[31];
        let object = object::File::parse(&*target.file).unwrap();
        let main = object.symbol_by_name("main").unwrap().address();
        target.ask(&format!("Z0,{main:x},4"));
        assert!(target.ask("c").starts_with("T05"));
        target.ask(&format!("z0,{main:x},4"));
        target
    }

    /// Sends a packet, and returns the reply.
    fn ask(&self, packet: &str) -> String {
        let mut gdb = self.gdb.borrow_mut();
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(gdb.get_mut(), "${packet}#{sum:02x}").unwrap();
        let (mut reply, mut sum) = (Vec::new(), [0; 2]);
        gdb.read_until(b'$', &mut Vec::new()).unwrap();
        gdb.read_until(b'#', &mut reply).unwrap();
        gdb.read_exact(&mut sum).unwrap();
        gdb.get_mut().write_all(b"+").unwrap();
        reply.pop();
        String::from_utf8(reply).unwrap()
    }

    fn state(&self) -> State {
        let reply = self.ask("g");
        let bytes = bytes(&reply[..33 * 16]);
        let mut words = bytes.chunks_exact(8);
        [(); 33].map(|()| u64::from_le_bytes(words.next().unwrap().try_into().unwrap()))
    }

    /// Executes an instruction, or begins the handler of a signal. Returns the signal that comes next; [`None`]: the program
    /// has exited.
    fn step(&self, signal: u64) -> Option<u64> {
        self.memory.borrow_mut().clear();
        let reply = match signal {
            SIGTRAP => self.ask("s"),
            signal => self.ask(&format!("S{signal:02x}")),
        };
        reply
            .strip_prefix('T')
            .map(|reply| u64::from_str_radix(&reply[..2], 16).unwrap())
    }

    fn is_code(&self, address: u64) -> bool {
        address.wrapping_sub(self.code.0) < self.code.1
    }

    fn instruction(&self, address: u64) -> u32 {
        let word = self.word(address & !7).unwrap_or(0);
        (word >> (8 * (address & 4))) as u32
    }

    fn rule(&self, address: u64, interrupted: bool) -> Option<Rule> {
        if !self.is_code(address) {
            return (address.wrapping_sub(self.returns) <= 8 || address + 1 == self.returns)
                .then_some(Rule::UNKNOWN);
        }
        let offset = address - self.code.0 + self.code.2;
        let file = Bytes(&self.file);
        let learn = || match interrupted {
            true => self.elf.learn(&file, &ARM64, offset),
            false => self.elf.learn_call(&file, &ARM64, offset),
        };
        let mut rules = self.rules.borrow_mut();
        *rules
            .entry((offset, interrupted))
            .or_insert_with(|| rule_of(learn()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn bytes(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

impl Memory for Target {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        let start = address & !(BLOCK - 1);
        let blocks = match self.is_code(start) && self.is_code(start + BLOCK) {
            true => &self.text,
            false => &self.memory,
        };
        let mut blocks = blocks.borrow_mut();
        let block = blocks.entry(start).or_insert_with(|| {
            let reply = self.ask(&format!("m{start:x},{BLOCK:x}"));
            (!reply.starts_with('E')).then(|| bytes(&reply))
        });
        let at = (address - start) as usize;
        let word = block.as_ref().and_then(|block| block.get(at..at + 8));
        Ok(u64::from_le_bytes(
            word.ok_or(Unreadable::Unmapped)?.try_into().unwrap(),
        ))
    }

    fn without_signature(&self, address: u64) -> u64 {
        address & !(0x7f << 48)
    }
}

/// The code of a program, and the stack that is being walked.
struct Walk<'a> {
    target: &'a Target,
    state: State,
    words: EncodedStack,
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

    fn register(&self, register: u64) -> u64 {
        self.state[register as usize]
    }

    fn track(&mut self, address: u64, register: u64) -> Option<Tracked> {
        let offset = address - self.target.code.0 + self.target.code.2;
        let file = Bytes(&self.target.file);
        let tracked: Result<Tracked, Unknown> =
            self.target.elf.track(&file, &ARM64, offset, register);
        tracked.ok()
    }

    fn stack(&self) -> u64 {
        self.target.stack
    }

    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let code = [8, 4].map(|by| u64::from(self.target.instruction(address.wrapping_sub(by))));
        Some((code[1] << 32 | code[0]).to_le_bytes())
    }

    fn instruction(&mut self, _address: u64) -> Option<([u8; 16], usize)> {
        unreachable!()
    }

    fn guess(&mut self) {
        self.words.guess();
    }
}

/// A return address, or where a signal has interrupted, and the stack pointer there.
#[derive(Debug)]
struct Pushed {
    ip: u64,
    sp: u64,
    is_signal: bool,
}

#[derive(Debug, Default)]
struct Counts {
    complete: u64,
    guessed: u64,
    wrongly_guessed: u64,
    /// Of all, so often a signed address is in x30.
    signed: u64,
    cut: HashMap<String, u64>,
}

impl Counts {
    /// Counts a stack. Returns whether each frame that is not guessed is one of those that the program has.
    fn add(&mut self, words: &EncodedStack, end: End, want: &[u64]) -> bool {
        let (got, guessed) = (words.words(), words.guessed());
        let certain = if guessed == 0 { got } else { &got[..guessed] };
        match end {
            End::Complete if guessed == 0 => self.complete += 1,
            End::Complete if got == want => self.guessed += 1,
            End::Complete => self.wrongly_guessed += 1,
            end => *self.cut.entry(format!("{end:?}")).or_default() += 1,
        }
        want.starts_with(certain) && (end != End::Complete || guessed != 0 || got == want)
    }
}

/// Walks the stack of a program in a state. Returns its frames, and how it ends.
fn walk(target: &Target, state: State) -> (EncodedStack, End) {
    let mut walk = Walk {
        target,
        state,
        words: EncodedStack::default(),
    };
    let [.., fp, _link, sp, ip] = state;
    let word = 8;
    let registers = Registers { ip, sp, fp, word };
    let end = by_rules(&ARM64, registers, target, &mut walk, USER_END);
    (walk.words, end)
}

/// Returns the stack of main(), which three functions of libc call: where it returns to is like an instruction of the first one.
fn stack_of_main(target: &Target, mut state: State) -> Vec<Pushed> {
    state[32] = state[30];
    let (words, end) = walk(target, state);
    assert_eq!((words.frames(), end), (3, End::Complete));
    let outer = words.words().iter().rev().map(|ip| Pushed {
        ip: *ip,
        sp: target.stack,
        is_signal: false,
    });
    outer.collect()
}

/// Steps a program. Panics if a stack has a frame that the program does not have there.
fn step(program: &Path) -> Counts {
    let mut target = Target::start(program);
    let mut counts = Counts::default();
    let mut signal = SIGTRAP;
    let mut state = target.state();
    let mut shadow = stack_of_main(&target, state);
    for _ in 0..MAX {
        let [.., sp, pc] = state;
        let (words, end) = walk(&target, state);
        let outer = shadow.iter().rev().map(|pushed| pushed.ip);
        let want: Vec<u64> = [pc].into_iter().chain(outer).collect();
        let is_right = counts.add(&words, end, &want);
        assert!(
            is_right,
            "{}: {:x?} {end:?}, guessed from {}, not {want:x?}: {state:x?}",
            program.display(),
            words.words(),
            words.guessed()
        );
        counts.signed += u64::from(state[30] >> 48 != 0);
        let code = target.instruction(pc);
        let is_return = code == SVC && state[8] == SIGRETURN;
        let signalled = signal;
        let Some(next) = target.step(signal) else {
            return counts;
        };
        signal = next;
        state = target.state();
        let [.., new_sp, new_pc] = state;
        // QEMU also steps what follows a system call.
        let (pc, code) = match code == SVC && !is_return && new_pc != pc + 4 {
            true => (pc + 4, target.instruction(pc + 4)),
            false => (pc, code),
        };
        let link = state[30];
        if signalled != SIGTRAP {
            target.returns = link;
            shadow.push(Pushed {
                ip: pc,
                sp,
                is_signal: true,
            });
            shadow.push(Pushed {
                ip: link,
                sp: new_sp,
                is_signal: false,
            });
        } else if is_return {
            while !shadow.pop().expect("no signal").is_signal {}
        } else if code & 0xfc00_0000 == 0x9400_0000 || code & 0xfe60_0000 == 0xd620_0000 {
            shadow.push(Pushed {
                ip: pc + 4,
                sp,
                is_signal: false,
            });
        } else if code & 0xfe60_0000 == 0xd640_0000 {
            let nr = shadow
                .iter()
                .rposition(|pushed| pushed.ip == new_pc && !pushed.is_signal);
            shadow.truncate(nr.unwrap_or(shadow.len()));
            if shadow.len() < 3 {
                return counts;
            }
        }
        // Left by a jump.
        while shadow.last().is_some_and(|pushed| new_sp > pushed.sp) {
            shadow.pop();
        }
    }
    panic!("{}: more than {MAX} instructions", program.display());
}

/// Builds steps/steps.c.
fn built(name: &str, flags: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join(format!("arm64-{name}"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/steps/steps.c");
    let status = Command::new("aarch64-linux-gnu-gcc")
        .args(["-static", "-O2", "-w", "-o"])
        .args([&program, Path::new(source)])
        .args(flags)
        .status();
    assert!(status.unwrap().success());
    program
}

#[test]
#[ignore = "wants qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"]
fn programs_of_arm64_have_their_stacks_at_each_instruction() {
    for (name, flags) in [
        ("plain", &[][..]),
        ("signed", &["-mbranch-protection=standard"]),
        ("no-fp", &["-fomit-frame-pointer"]),
        ("O0", &["-O0"]),
        (
            "no-cfi",
            &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
        ),
        (
            "no-cfi-signed",
            &[
                "-fno-asynchronous-unwind-tables",
                "-fno-unwind-tables",
                "-mbranch-protection=standard",
            ],
        ),
    ] {
        let counts = step(&built(name, flags));
        println!("{name}: {counts:?}");
        let cut: u64 = counts.cut.values().sum();
        let is_good = match name.starts_with("no-cfi") {
            // main() is called by a pointer, and so are handlers: they are cut, or guessed once they have called.
            true => counts.guessed > 1000 && counts.guessed > 3 * cut && counts.complete == 0,
            false => counts.complete > 1000 && cut + counts.guessed == 0,
        };
        let is_signed = counts.signed > 0;
        assert!(
            is_good && counts.wrongly_guessed == 0 && is_signed == name.ends_with("signed"),
            "{name}: {counts:?}"
        );
    }
}
