// SPDX-License-Identifier: GPL-2.0

//! Rules of user stacks against another reader of call frame information, for every row of real
//! programs, of x86-64 and arm64. `STACKMAP_BINARIES` names the files, with a colon between them; `selftests/cfi-count` those
//! of many packages, and reads what is printed.

mod reader;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection,
};
use object::{Object, ObjectSection, ObjectSegment};
use reader::{cause, computed, expected, Names, Row, Section, ALL};
use stackmap_user::{
    cfi::{Computed, Elf, Tracked, Unknown, ARM64, X86_64},
    decode::arm64,
    encoded::End,
    frame::{Code, Frame, Memory, Unreadable},
    rule::{Rule, RuleKind, Saved},
    Bytes,
};
use std::{collections::BTreeMap, env, fs, ops::Range, path::Path};

/// Callers for which the CFI of a file may say something else than its code: seen are 4 in ld.so.
const OTHERS_MAX: u64 = 4;

/// The cause where there may be a rule.
const TOO_LONG: &str = "more than 10,000 steps";

#[derive(Default)]
struct Counts {
    /// Addresses that were looked up.
    lookups: u64,
    rules: u64,
    /// All addresses of the rows: each byte of code is one.
    addresses: u64,
    /// Of these, the frame's end is at an offset from a register that is tracked, or the caller's registers are computed.
    tracked: u64,
    /// Lookups on arm64 that found the rule of a call, those for which decoding finds the same caller, and another one.
    decoded: [u64; 3],
    /// Addresses without a rule, there is no rule, by the cause.
    unknown: BTreeMap<String, u64>,
}

/// Compares where the registers are saved that are tracked, and which one has to be for a rule.
fn compare_tracked(
    names: &Names,
    elf: &Elf,
    file: &Bytes<&[u8]>,
    offset: u64,
    row: &Row,
    rule: Option<Rule>,
    computed: Option<Computed>,
) -> Result<(), String> {
    let others = (0..names.nr).map(Register);
    for of in others.filter(|of| ![names.fp, names.ra].contains(of)) {
        let register = of.0.into();
        let Ok(tracked) = elf.track(file, names.machine, offset, register) else {
            continue;
        };
        let want = match row.register(of) {
            _ if names.enters_handler(row) => None,
            Some(RegisterRule::Offset(offset)) => Some(Saved::At(offset)),
            Some(RegisterRule::SameValue) | None => Some(Saved::No),
            _ => None,
        };
        let is_base = rule == Some(Rule::tracked(register))
            || rule == Some(Rule::HANDLER)
                && matches!(*row.cfa(), CfaRule::RegisterAndOffset { register, .. } if register == of);
        let same = match of == names.sp {
            true => computed.is_none() || tracked.computed == computed,
            false => tracked.rule.is_some() == is_base && tracked.computed.is_none(),
        };
        if tracked.saved != want || !same {
            return Err(format!("{offset:#x}: {register}: {tracked:?}: {row:?}"));
        }
    }
    Ok(())
}

/// The code of a file of arm64 that has no rules, at its offsets, called by a function that is not in it.
struct WithoutRules<'a> {
    text: &'a [u8],
    /// A return address, and the call before it.
    called: (u64, u32),
    /// Words of the stack.
    words: [(u64, u64); 2],
}

impl Memory for WithoutRules<'_> {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        let word = self.words.iter().find(|(at, _)| *at == address);
        Ok(word.map_or(0x5151, |(_, word)| *word))
    }
}

impl Code for WithoutRules<'_> {
    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]> {
        if address == self.called.0 {
            return Some((u64::from(self.called.1) << 32).to_le_bytes());
        }
        let start = address.checked_sub(8)? as usize;
        self.text.get(start..start + 8)?.try_into().ok()
    }

    fn rule(&mut self, _address: u64) -> Option<Rule> {
        Some(Rule::UNKNOWN)
    }

    fn frames(&self) -> usize {
        unreachable!()
    }

    fn frame(&mut self, _ip: u64, _address: u64, _interrupted: bool) -> Result<Rule, End> {
        unreachable!()
    }

    fn register(&self, _register: u64) -> u64 {
        unreachable!()
    }

    fn track(&mut self, _address: u64, _register: u64) -> Option<Tracked> {
        unreachable!()
    }

    fn stack(&self) -> u64 {
        unreachable!()
    }

    fn instruction(&mut self, _address: u64) -> Option<([u8; 16], usize)> {
        unreachable!()
    }

    fn guess(&mut self) {
        unreachable!()
    }
}

/// Compares what decoding from the entry of a function on says of the caller with the rule of an address; both are offsets.
/// Returns whether it says something.
fn compare_decoded(text: &[u8], entry: u64, ip: u64, rule: Rule) -> Result<bool, String> {
    const SP: u64 = 0x7fff_0000;
    const FP: u64 = 0x8fff_0000;
    let ret = (entry & !0xfff) + (1 << 24);
    let call = 0x9400_0000 | (entry.wrapping_sub(ret - 4) >> 2) as u32 & 0x03ff_ffff;
    let size = rule.end(0, 0);
    let is_plain = rule.is_plain();
    // By the stack pointer, or by the frame pointer, above which the frame ends.
    let end = if is_plain {
        SP + size
    } else {
        FP.wrapping_add(size)
    };
    let (ra, fp) = (ARM64.ra_at(rule, end), ARM64.fp_at(rule, end));
    let words = [(ra.unwrap_or(0), ret), (fp.unwrap_or(0), FP)];
    let mut code = WithoutRules {
        text,
        called: (ret, call),
        words,
    };
    let memory = WithoutRules {
        called: (0, 0),
        ..code
    };
    let mut has_said = false;
    // By the register, which may have it still, and by the record, if x29 points to it.
    let record = if is_plain { fp } else { Some(FP) };
    for (link, at) in [(ret, FP), (0x7777, record.unwrap_or(0))] {
        let frame = Frame { ip, sp: SP, fp: at };
        let found = arm64::caller(&frame, Some(link), false, &memory, &mut code);
        let Some((caller, false)) = found else {
            continue;
        };
        // Where the function has set x29, that is not the caller's, as it is first; where it has not, it is, as then.
        if is_plain && at == FP && caller.sp.abs_diff(FP) < 1 << 20 {
            continue;
        }
        if (caller.ip, caller.sp) != (ret, end) || ![FP, at].contains(&caller.fp) {
            return Err(format!(
                "{ip:#x} of {entry:#x}, {link:#x}, {at:#x}: {caller:x?}, not {end:#x}"
            ));
        }
        has_said = true;
    }
    Ok(has_said)
}

/// A file whose rows are compared.
struct Compared<'a> {
    names: &'static Names,
    data: &'a [u8],
    object: object::File<'a>,
    elf: Elf,
    section: Section<'a>,
    counts: &'a mut Counts,
}

impl Compared<'_> {
    /// Returns the offset in the file of an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let mut segments = self.object.segments();
        let segment = segments
            .find(|segment| address.wrapping_sub(segment.address()) < segment.file_range().1);
        segment.map(|segment| segment.file_range().0 + address - segment.address())
    }

    fn learn(&self, elf: &Elf, offset: u64) -> Result<Rule, Unknown> {
        elf.learn(&Bytes(self.data), self.names.machine, offset)
    }

    /// Compares an address of a row, which stands for `all` addresses, of a function with this entry.
    fn address(
        &mut self,
        row: &Row,
        address: u64,
        all: u64,
        signal: bool,
        entry: u64,
    ) -> Result<(), String> {
        let Some(offset) = self.offset_of(address) else {
            return Ok(());
        };
        let (names, section) = (self.names, &self.section);
        let by = computed(names, row, section);
        let computed = by.filter(|_| !signal).map(|_| Rule::COMPUTED);
        let want = expected(names, row, signal, address, section).or(computed);
        let got = self.learn(&self.elf, offset);
        let entry = self.offset_of(entry).filter(|_| names.has_link);
        if address == row.start_address() && !signal {
            let file = Bytes(self.data);
            compare_tracked(names, &self.elf, &file, offset, row, want, by)?;
        }
        let counts = &mut *self.counts;
        counts.lookups += 1;
        counts.addresses += all;
        if let (Some(rule), Some(entry)) = (want, entry) {
            if rule.kind() == RuleKind::Call {
                let found = compare_decoded(self.data, entry, offset & !3, rule);
                let [calls, same, others] = &mut counts.decoded;
                *calls += 1;
                match found {
                    Ok(is_same) => *same += u64::from(is_same),
                    Err(text) => {
                        println!("{text}");
                        *others += 1;
                    }
                }
            }
        }
        let cause = match (got, want) {
            (Ok(got), Some(want)) if got == want => {
                counts.rules += 1;
                if let RuleKind::Tracked(_) | RuleKind::Computed = got.kind() {
                    counts.tracked += all;
                }
                return Ok(());
            }
            (Err(Unknown::TooLong), _) => TOO_LONG.to_owned(),
            (Err(Unknown::Inexpressible), None) => cause(names, row, signal),
            _ => return Err(format!("{address:#x}: {got:?}, not {want:?}: {row:?}")),
        };
        *counts.unknown.entry(cause).or_default() += all;
        Ok(())
    }

    /// Compares addresses whose program has no meaning for the other reader: it has none for this module either.
    fn damaged(&mut self, addresses: Range<u64>, error: gimli::Error) -> Result<(), String> {
        for address in addresses.clone() {
            let offset = self.offset_of(address).ok_or("not in the file")?;
            let got = self.learn(&self.elf, offset);
            if got != Err(Unknown::Damaged) {
                return Err(format!("{address:#x}: {got:?}, not {error}"));
            }
        }
        let all = addresses.end - addresses.start;
        self.counts.addresses += all;
        *self.counts.unknown.entry(error.to_string()).or_default() += all;
        Ok(())
    }
}

/// Compares all rows of a file; what is not the same is an error.
fn compare(path: &Path, counts: &mut Counts) -> Result<(), String> {
    let data = fs::read(path).map_err(|error| error.to_string())?;
    let object = object::File::parse(&*data).map_err(|error| error.to_string())?;
    let Some(section) = object.section_by_name(".eh_frame") else {
        return Ok(());
    };
    let names = match object.architecture() {
        object::Architecture::Aarch64 => &ALL[1],
        _ => &ALL[0],
    };
    let mut eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
    eh_frame.set_vendor(names.vendor);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let elf = Elf::read(&Bytes(&data), names.machine).map_err(|error| format!("{error:?}"))?;
    let searched = elf.without_table();
    let mut compared = Compared {
        names,
        data: &data,
        object,
        elf,
        section: eh_frame,
        counts,
    };
    let mut context = UnwindContext::new();
    let mut entries = eh_frame.entries(&bases);
    while let Some(entry) = entries.next().map_err(|error| error.to_string())? {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial
            .parse(EhFrame::cie_from_offset)
            .map_err(|error| error.to_string())?;
        let (signal, begin) = (fde.cie().is_signal_trampoline(), fde.initial_address());
        // A search takes long: some functions do.
        let is_searched = fde.offset() % 16 == 0;
        if let Some(offset) = compared.offset_of(begin).filter(|_| is_searched) {
            let searched = compared.learn(&searched, offset);
            let found = compared.learn(&compared.elf, offset);
            if searched != Err(Unknown::TooLong) && found != searched {
                return Err(format!("{offset:#x}: {found:?}, searched: {searched:?}"));
            }
        }
        let mut rows = fde
            .rows(&eh_frame, &bases, &mut context)
            .map_err(|error| error.to_string())?;
        let mut next = begin;
        loop {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(error) => {
                    compared.damaged(next..fde.end_address(), error)?;
                    break;
                }
            };
            let (start, end) = (row.start_address(), row.end_address());
            next = end;
            let step = match row.cfa() {
                CfaRule::Expression(_) => 1,
                _ => (end - start).saturating_sub(1).max(1),
            };
            for address in (start..end).step_by(step as usize) {
                // It stands for those up to the next one.
                compared.address(row, address, step.min(end - address), signal, begin)?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_row_has_the_rule_that_another_reader_finds() {
    // Without a list of files, this program and two that these tests need anyway.
    let own = env::current_exe().unwrap();
    let default = format!("/bin/bash:/bin/ls:{}", own.display());
    let named = env::var("STACKMAP_BINARIES");
    let mut wrong = Vec::new();
    for path in named.as_ref().unwrap_or(&default).split(':') {
        let mut counts = Counts::default();
        if let Err(error) = compare(Path::new(path), &mut counts) {
            println!("{path}: {error}");
            wrong.push(path);
            continue;
        }
        println!(
            "{path}: {} lookups, {} rules; {} addresses, {} tracked, without: {:?}",
            counts.lookups, counts.rules, counts.addresses, counts.tracked, counts.unknown
        );
        let [calls, same, others] = counts.decoded;
        if calls > 0 {
            println!("{path}: decoded: {calls} calls, {same} the same, {others} others");
        }
        // CFI is wrong in code of assemblers, and at one address in some functions of gcc.
        if others > OTHERS_MAX {
            wrong.push(path);
        }
        // Functions of more than 10,000 steps are rare.
        let long = counts.unknown.get(TOO_LONG).copied().unwrap_or(0);
        if named.is_err() && counts.addresses <= 100 * long {
            wrong.push(path);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// `STACKMAP_GO` names a program that Go has linked with `-compressdwarf=false`: its `.debug_frame` says the same.
/// `selftests/go-rules` does so.
#[test]
#[ignore = "takes a program that Go has built"]
fn every_row_of_go_has_the_depth_that_its_debug_information_says() {
    let path = env::var("STACKMAP_GO").expect("STACKMAP_GO names a program");
    let data = fs::read(path).unwrap();
    let object = object::File::parse(&*data).unwrap();
    let section = object.section_by_name(".debug_frame").unwrap();
    let frames = gimli::DebugFrame::new(section.data().unwrap(), LittleEndian);
    let file = Bytes(&data);
    let elf = Elf::read(&file, &X86_64).unwrap();
    let text = object.section_by_name(".text").unwrap();
    let (offset, _) = text.file_range().unwrap();
    let bases = BaseAddresses::default();
    let mut context = UnwindContext::new();
    let mut entries = frames.entries(&bases);
    let (mut same, mut outermost, mut unknown) = (0, 0, 0);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(gimli::DebugFrame::cie_from_offset).unwrap();
        let mut rows = fde.rows(&frames, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let CfaRule::RegisterAndOffset {
                register,
                offset: depth,
            } = row.cfa()
            else {
                panic!("{row:?}");
            };
            assert_eq!(register.0, 7);
            if row.start_address() >= row.end_address() {
                continue;
            }
            for address in [row.start_address(), row.end_address() - 1] {
                match elf.learn(&file, &X86_64, address - text.address() + offset) {
                    Ok(Rule::OUTERMOST) => outermost += 1,
                    Err(Unknown::Inexpressible) => unknown += 1,
                    Ok(rule) => {
                        assert_eq!(rule.end(0, 1 << 32), *depth as u64, "{address:#x}: {row:?}");
                        same += 1;
                    }
                    Err(error) => panic!("{address:#x}: {error:?}: {row:?}"),
                }
            }
        }
    }
    println!("{same} depths, {outermost} outermost, {unknown} without a rule");
    assert!(same > 1000 && outermost > 0 && same > 20 * unknown);
}
