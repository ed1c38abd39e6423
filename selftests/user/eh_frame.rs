// SPDX-License-Identifier: GPL-2.0

//! Rules of user stacks against another reader of call frame information, for every row of real
//! programs. `STACKMAP_BINARIES` names the files, with a colon between them; `selftests/cfi-count` those
//! of many packages, and reads what is printed.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, LittleEndian, Operation, RegisterRule,
    UnwindContext, UnwindSection, UnwindTableRow, X86_64 as REGISTERS,
};
use object::{Object, ObjectSection, ObjectSegment};
use stackmap_user::{
    cfi::{Computed, Elf, Unknown, Value, X86_64},
    rule::{Base, Kind, Rule, Saved},
    Bytes,
};
use std::{collections::BTreeMap, env, fs, path::Path};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Returns whether a function passes values to a handler of an exception: it restores `rax`, and not `rcx`.
fn enters_handler(row: &UnwindTableRow<usize>) -> bool {
    let is_saved = |of| matches!(row.register(of), Some(RegisterRule::Offset(_)));
    is_saved(REGISTERS::RAX) && !is_saved(REGISTERS::RCX)
}

type Row = UnwindTableRow<usize>;
type Section<'a> = EhFrame<Slice<'a>>;
type Op<'a> = Operation<Slice<'a>>;

/// Returns the operations of an expression that the other reader finds.
fn operations<'a>(
    section: &Section<'a>,
    expression: &gimli::UnwindExpression<usize>,
) -> Vec<Op<'a>> {
    let encoding = gimli::Encoding {
        format: gimli::Format::Dwarf32,
        version: 5,
        address_size: 8,
    };
    let mut operations = expression.get(section).unwrap().operations(encoding);
    std::iter::from_fn(|| operations.next().unwrap()).collect()
}

/// The end of a frame.
const END: Value = Value {
    register: None,
    index: None,
    offset: 0,
    by: None,
};

/// Returns the number of a register that is known.
fn known(register: gimli::Register) -> Option<u8> {
    (register.0 < 16).then_some(register.0 as u8)
}

/// Returns how the end of a frame is computed by the other reader.
fn end_of(row: &Row, section: &Section<'_>) -> Option<Value> {
    let expression = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            return Some(Value {
                register: Some(known(register)?),
                offset: offset.try_into().ok()?,
                ..END
            });
        }
        CfaRule::Expression(ref expression) => operations(section, expression),
    };
    let [Op::RegisterOffset {
        register, offset, ..
    }, rest @ ..] = &expression[..]
    else {
        return None;
    };
    let (index, rest) = match rest {
        [Op::RegisterOffset {
            register,
            offset: 0,
            ..
        }, Op::UnsignedConstant { value: 8 }, Op::Mul, Op::Plus, rest @ ..] => {
            (Some(known(*register)?), rest)
        }
        _ => (None, rest),
    };
    let by = match rest {
        [Op::Deref { size: 8, .. }] => 0,
        [Op::Deref { size: 8, .. }, Op::PlusConstant { value }] => (*value).try_into().ok()?,
        _ => return None,
    };
    Some(Value {
        register: Some(known(*register)?),
        index,
        offset: (*offset).try_into().ok()?,
        by: Some(by),
    })
}

/// Returns how the caller's registers are computed by the other reader.
fn computed(row: &Row, section: &Section<'_>) -> Option<Computed> {
    let caller = |of, same: Option<Value>| match row.register(of) {
        Some(RegisterRule::SameValue) | None => same,
        Some(RegisterRule::Offset(offset)) => Some(Value {
            offset: offset.try_into().ok()?,
            by: Some(0),
            ..END
        }),
        Some(RegisterRule::Register(register)) => Some(Value {
            register: Some(known(register)?),
            ..END
        }),
        Some(RegisterRule::Expression(at)) => match operations(section, &at)[..] {
            [Op::RegisterOffset {
                register, offset, ..
            }] if register != REGISTERS::RBP => Some(Value {
                register: Some(known(register)?),
                offset: offset.try_into().ok()?,
                by: Some(0),
                ..END
            }),
            _ => None,
        },
        _ => None,
    };
    let end = end_of(row, section).filter(|_| !enters_handler(row));
    Some(Computed {
        end: end?,
        ip: caller(REGISTERS::RA, None)?,
        sp: caller(REGISTERS::RSP, Some(END))?,
        fp: caller(
            REGISTERS::RBP,
            Some(Value {
                register: Some(6),
                ..END
            }),
        )?,
    })
}

/// The rule of a row by the other reader. [`None`]: a rule of a call cannot express it.
fn expected(
    row: &UnwindTableRow<usize>,
    signal: bool,
    address: u64,
    section: &EhFrame<Slice<'_>>,
) -> Option<Rule> {
    let register = |register| row.register(register);
    let ra = register(REGISTERS::RA);
    if ra == Some(RegisterRule::Undefined) {
        return Some(Rule::OUTERMOST);
    }
    let fp = register(REGISTERS::RBP);
    let bytes = |expression: &gimli::UnwindExpression<usize>| {
        expression.get(section).unwrap().0.slice().to_vec()
    };
    if signal {
        // breg7 160, deref; breg7 168; breg7 120.
        let CfaRule::Expression(frame) = row.cfa() else {
            return None;
        };
        let (Some(RegisterRule::Expression(ra)), Some(RegisterRule::Expression(fp))) = (&ra, &fp)
        else {
            return None;
        };
        let known = bytes(frame) == [0x77, 0xa0, 1, 6]
            && bytes(ra) == [0x77, 0xa8, 1]
            && bytes(fp) == [0x77, 0xf8, 0];
        return known.then_some(Rule::SIGNAL);
    }
    if ra != Some(RegisterRule::Offset(-8)) {
        return None;
    }
    let saved = match fp {
        Some(RegisterRule::Offset(offset)) => Saved::At(offset),
        Some(RegisterRule::SameValue) | None => Saved::No,
        // breg6 N: where the frame is left, it is the caller's already.
        Some(RegisterRule::Expression(ref at)) if bytes(at).first() == Some(&0x76) => {
            let empty = CfaRule::RegisterAndOffset {
                register: REGISTERS::RSP,
                offset: 8,
            };
            match bytes(at)[..] {
                _ if *row.cfa() == empty => Saved::No,
                [_, 0] => Saved::AtFp,
                _ => return None,
            }
        }
        _ => return None,
    };
    if enters_handler(row) {
        return Some(Rule::HANDLER);
    }
    let base = |register: u16| match register {
        7 => Some(Base::Sp),
        6 => Some(Base::Fp),
        _ => None,
    };
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match register.0 {
            register @ (6 | 7) => Rule::call(base(register)?, *offset, saved),
            register @ 0..=15 => {
                Rule::tracked_call(*offset, saved).map(|_| Rule::tracked(register.into()))
            }
            _ => None,
        },
        CfaRule::Expression(expression) => match bytes(expression)[..] {
            [0x77, 8, 0x80, 0, 0x3f, 0x1a, limit, 0x2a, 0x33, 0x24, 0x22] => {
                let pushed = address % 16 >= u64::from(limit) - 0x30;
                Rule::call(Base::Sp, 8 + 8 * i64::from(pushed), saved)
            }
            _ => match end_of(row, section)? {
                Value {
                    register: Some(register),
                    index: None,
                    offset,
                    by,
                } => Rule::aligned(base(register.into())?, offset.into(), by?.into(), saved),
                _ => None,
            },
        },
    }
}

/// Returns why a rule cannot express a row.
fn cause(row: &UnwindTableRow<usize>, signal: bool) -> String {
    let base = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Ok((register.0, offset)),
        CfaRule::Expression(_) => Err("frame's end by an expression"),
    };
    let known = match (row.register(REGISTERS::RBP), base) {
        _ if signal => "another signal frame",
        _ if row.register(REGISTERS::RA) != Some(RegisterRule::Offset(-8)) => {
            "return address elsewhere"
        }
        (Some(RegisterRule::Expression(_)), _) => "frame pointer saved by an expression",
        (Some(RegisterRule::Register(_)), _) => "frame pointer in a register",
        (Some(RegisterRule::Undefined), _) => "frame pointer lost",
        (_, Err(cause)) => cause,
        (_, Ok((0..=15, offset))) => match Rule::call(Base::Sp, offset, Saved::No) {
            None => "frame too large",
            Some(_) => "frame pointer saved too far away",
        },
        (_, Ok((register, _))) => {
            let name = REGISTERS::register_name(gimli::Register(register));
            return format!("frame's end by {}", name.unwrap_or("no register"));
        }
    };
    known.to_owned()
}

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
    /// And of these, there is no rule, by the cause.
    unknown: BTreeMap<String, u64>,
}

/// Compares where the registers are saved that are tracked, and which one has to be for a rule.
fn compare_tracked(
    elf: &Elf,
    file: &Bytes<&Vec<u8>>,
    offset: u64,
    row: &UnwindTableRow<usize>,
    rule: Option<Rule>,
    computed: Option<Computed>,
) -> Result<(), String> {
    for register in (0..16).filter(|register| *register != 6) {
        let Ok(tracked) = elf.track(file, &X86_64, offset, register) else {
            continue;
        };
        let want = match row.register(gimli::Register(register as u16)) {
            _ if enters_handler(row) => None,
            Some(RegisterRule::Offset(offset)) => Some(Saved::At(offset)),
            Some(RegisterRule::SameValue) | None => Some(Saved::No),
            _ => None,
        };
        let is_base = rule == Some(Rule::tracked(register))
            || rule == Some(Rule::HANDLER)
                && matches!(*row.cfa(), CfaRule::RegisterAndOffset { register: base, .. }
                            if u64::from(base.0) == register);
        let same = match register {
            7 => computed.is_none() || tracked.computed == computed,
            _ => tracked.rule.is_some() == is_base && tracked.computed.is_none(),
        };
        if tracked.saved != want || !same {
            return Err(format!("{offset:#x}: {register}: {tracked:?}: {row:?}"));
        }
    }
    Ok(())
}

/// Compares all rows of a file; what is not the same is an error.
fn compare(path: &Path, counts: &mut Counts) -> Result<(), String> {
    let data = fs::read(path).map_err(|error| error.to_string())?;
    let object = object::File::parse(&*data).map_err(|error| error.to_string())?;
    let Some(section) = object.section_by_name(".eh_frame") else {
        return Ok(());
    };
    let eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let offset_of = |address: u64| {
        let mut segments = object.segments();
        let segment = segments
            .find(|segment| address.wrapping_sub(segment.address()) < segment.file_range().1);
        segment.map(|segment| segment.file_range().0 + address - segment.address())
    };
    let file = Bytes(&data);
    let elf = Elf::read(&file, &X86_64).map_err(|error| format!("{error:?}"))?;
    let searched = elf.without_table();
    let mut context = UnwindContext::new();
    let mut entries = eh_frame.entries(&bases);
    while let Some(entry) = entries.next().map_err(|error| error.to_string())? {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial
            .parse(EhFrame::cie_from_offset)
            .map_err(|error| error.to_string())?;
        let signal = fde.cie().is_signal_trampoline();
        // A search takes long: some functions do.
        let is_searched = fde.offset() % 16 == 0;
        if let Some(offset) = offset_of(fde.initial_address()).filter(|_| is_searched) {
            let searched = searched.learn(&file, &X86_64, offset);
            let found = elf.learn(&file, &X86_64, offset);
            if searched != Err(Unknown::TooLong) && found != searched {
                return Err(format!("{offset:#x}: {found:?}, searched: {searched:?}"));
            }
        }
        let mut rows = fde
            .rows(&eh_frame, &bases, &mut context)
            .map_err(|error| error.to_string())?;
        let mut next = fde.initial_address();
        loop {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                // From here on, the program has no meaning for this module either.
                Err(error) => {
                    let left = next..fde.end_address();
                    for address in left.clone() {
                        let offset = offset_of(address).ok_or("not in the file")?;
                        let got = elf.learn(&file, &X86_64, offset);
                        if got != Err(Unknown::Damaged) {
                            return Err(format!("{address:#x}: {got:?}, not {error}"));
                        }
                    }
                    counts.addresses += left.end - left.start;
                    *counts.unknown.entry(error.to_string()).or_default() += left.end - left.start;
                    break;
                }
            };
            let (start, end) = (row.start_address(), row.end_address());
            next = end;
            let all = matches!(row.cfa(), CfaRule::Expression(_));
            let step = if all {
                1
            } else {
                (end - start).saturating_sub(1).max(1)
            };
            for address in (start..end).step_by(step as usize) {
                let Some(offset) = offset_of(address) else {
                    continue;
                };
                let by = computed(row, &eh_frame);
                let computed = by.filter(|_| !signal).map(|_| Rule::COMPUTED);
                let want = expected(row, signal, address, &eh_frame).or(computed);
                let got = elf.learn(&file, &X86_64, offset);
                // It stands for those up to the next one.
                let all = step.min(end - address);
                counts.lookups += 1;
                counts.addresses += all;
                if address == start && !signal {
                    compare_tracked(&elf, &file, offset, row, want, by)?;
                }
                let cause = match (got, want) {
                    (Ok(got), Some(want)) if got == want => {
                        counts.rules += 1;
                        counts.tracked += match got.kind() {
                            Kind::Tracked(_) | Kind::Computed => all,
                            _ => 0,
                        };
                        continue;
                    }
                    (Err(Unknown::TooLong), _) => TOO_LONG.to_owned(),
                    (Err(Unknown::Inexpressible), None) => cause(row, signal),
                    _ => return Err(format!("{address:#x}: {got:?}, not {want:?}: {row:?}")),
                };
                *counts.unknown.entry(cause).or_default() += all;
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
