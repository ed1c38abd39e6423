// SPDX-License-Identifier: GPL-2.0

//! The rules of rows of call frame information by another reader, gimli.

use gimli::{
    AArch64, CfaRule, EhFrame, EndianSlice, LittleEndian, Operation, Register, RegisterRule,
    UnwindTableRow, Vendor, X86_64 as X86,
};
use stackmap_user::{
    cfi::{Computed, Machine, Value, ARM64, X86_64},
    rule::{Base, Rule, Saved},
};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// What the other reader calls the registers of a machine.
pub(crate) struct Names {
    pub(crate) machine: &'static Machine,
    pub(crate) vendor: Vendor,
    pub(crate) sp: Register,
    pub(crate) fp: Register,
    pub(crate) ra: Register,
    /// A call leaves the return address in that register.
    pub(crate) has_link: bool,
    /// The number of registers that can be bases.
    pub(crate) nr: u16,
    /// A function that restores the first one, and not the second one, passes values to a handler of an exception.
    pub(crate) handler: [Register; 2],
    pub(crate) name: fn(Register) -> Option<&'static str>,
}

pub(crate) const ALL: [Names; 2] = [
    Names {
        machine: &X86_64,
        vendor: Vendor::Default,
        sp: X86::RSP,
        fp: X86::RBP,
        ra: X86::RA,
        has_link: false,
        nr: 16,
        handler: [X86::RAX, X86::RCX],
        name: X86::register_name,
    },
    Names {
        machine: &ARM64,
        vendor: Vendor::AArch64,
        sp: AArch64::SP,
        fp: AArch64::X29,
        ra: AArch64::X30,
        has_link: true,
        nr: 32,
        handler: [AArch64::X0, AArch64::X4],
        name: AArch64::register_name,
    },
];

impl Names {
    pub(crate) fn enters_handler(&self, row: &Row) -> bool {
        let saved = self
            .handler
            .map(|of| matches!(row.register(of), Some(RegisterRule::Offset(_))));
        saved == [true, false]
    }

    /// Returns the number of a register that is known.
    pub(crate) fn known(&self, register: Register) -> Option<u8> {
        (register.0 < self.nr).then_some(register.0 as u8)
    }
}

pub(crate) type Row = UnwindTableRow<usize>;
pub(crate) type Section<'a> = EhFrame<Slice<'a>>;
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

/// Returns how the end of a frame is computed by the other reader.
fn end_of(names: &Names, row: &Row, section: &Section<'_>) -> Option<Value> {
    let known = |register| names.known(register);
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
            (Some(known(*register).filter(|nr| *nr < 16)?), rest)
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
pub(crate) fn computed(names: &Names, row: &Row, section: &Section<'_>) -> Option<Computed> {
    let known = |register| names.known(register);
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
            }] if register != names.fp => Some(Value {
                register: Some(known(register)?),
                offset: offset.try_into().ok()?,
                by: Some(0),
                ..END
            }),
            _ => None,
        },
        _ => None,
    };
    let end = end_of(names, row, section).filter(|_| !names.enters_handler(row));
    let same = |register| {
        Some(Value {
            register: Some(known(register)?),
            ..END
        })
    };
    Some(Computed {
        end: end?,
        ip: caller(names.ra, same(names.ra).filter(|_| names.has_link))?,
        sp: match row.register(names.sp) {
            Some(RegisterRule::ValOffset(0)) => END,
            _ => caller(names.sp, Some(END))?,
        },
        fp: caller(names.fp, same(names.fp))?,
    })
}

/// Returns where the caller's frame pointer is by the other reader, if rules can say that and where the return address is.
fn saved(names: &Names, row: &Row, section: &Section<'_>) -> Option<Saved> {
    let same = RegisterRule::SameValue;
    let [fp, ra] = [names.fp, names.ra].map(|of| row.register(of).unwrap_or(same.clone()));
    match (names.has_link, fp, ra) {
        (true, RegisterRule::SameValue, RegisterRule::SameValue) => Some(Saved::No),
        (true, RegisterRule::SameValue, RegisterRule::Offset(ra)) if ra < 0 => Some(Saved::At(-ra)),
        (true, RegisterRule::Offset(fp), RegisterRule::Offset(ra)) if fp < 0 && ra - fp == 8 => {
            Some(Saved::At(fp))
        }
        (false, RegisterRule::Offset(offset), RegisterRule::Offset(-8)) => Some(Saved::At(offset)),
        (false, RegisterRule::SameValue, RegisterRule::Offset(-8)) => Some(Saved::No),
        (false, RegisterRule::Expression(at), RegisterRule::Offset(-8)) => {
            let bytes = at.get(section).unwrap().0.slice();
            let empty = CfaRule::RegisterAndOffset {
                register: names.sp,
                offset: 8,
            };
            // breg6 N: where the frame is left, it is the caller's already.
            match bytes {
                [0x76, ..] if *row.cfa() == empty => Some(Saved::No),
                [0x76, 0] => Some(Saved::AtFp),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The rule of a row by the other reader. [`None`]: a rule of a call cannot express it.
pub(crate) fn expected(
    names: &Names,
    row: &Row,
    signal: bool,
    address: u64,
    section: &EhFrame<Slice<'_>>,
) -> Option<Rule> {
    let register = |register| row.register(register);
    let ra = register(names.ra);
    if ra == Some(RegisterRule::Undefined) {
        return Some(Rule::OUTERMOST);
    }
    let fp = register(names.fp);
    let is_end = matches!(
        register(names.sp),
        None | Some(RegisterRule::SameValue | RegisterRule::ValOffset(0))
    );
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
    if !is_end {
        return None;
    }
    let saved = saved(names, row, section)?;
    if names.enters_handler(row) {
        return Some(Rule::HANDLER);
    }
    let base = |register| match register {
        _ if register == names.sp => Some(Base::Sp),
        _ if register == names.fp => Some(Base::Fp),
        _ => None,
    };
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match base(*register) {
            Some(base) => Rule::call(base, *offset, saved),
            None if *register == names.ra => None,
            None => {
                let register = names.known(*register)?;
                Rule::tracked_call(*offset, saved).map(|_| Rule::tracked(register.into()))
            }
        },
        CfaRule::Expression(expression) => match bytes(expression)[..] {
            [0x77, 8, 0x80, 0, 0x3f, 0x1a, limit, 0x2a, 0x33, 0x24, 0x22] => {
                let pushed = address % 16 >= u64::from(limit) - 0x30;
                Rule::call(Base::Sp, 8 + 8 * i64::from(pushed), saved)
            }
            _ => match end_of(names, row, section)? {
                Value {
                    register: Some(nr),
                    index: None,
                    offset,
                    by,
                } => {
                    let base = base(Register(nr.into()))?;
                    Rule::aligned(base, offset.into(), by?.into(), saved)
                }
                _ => None,
            },
        },
    }
}

/// Returns why a rule cannot express a row.
pub(crate) fn cause(names: &Names, row: &Row, signal: bool) -> String {
    let base = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Ok((register.0, offset)),
        CfaRule::Expression(_) => Err("frame's end by an expression"),
    };
    let known = match (row.register(names.fp), base) {
        _ if signal => "another signal frame",
        _ if !names.has_link && row.register(names.ra) != Some(RegisterRule::Offset(-8)) => {
            "return address elsewhere"
        }
        (Some(RegisterRule::Expression(_)), _) => "frame pointer saved by an expression",
        (Some(RegisterRule::Register(_)), _) => "frame pointer in a register",
        (Some(RegisterRule::Undefined), _) => "frame pointer lost",
        (_, Err(cause)) => cause,
        (_, Ok((register, offset))) if register < names.nr => {
            match Rule::call(Base::Sp, offset, Saved::No) {
                None => "frame too large",
                Some(_) => "frame pointer saved too far away",
            }
        }
        (_, Ok((register, _))) => {
            let name = (names.name)(Register(register));
            return format!("frame's end by {}", name.unwrap_or("no register"));
        }
    };
    known.to_owned()
}
