// SPDX-License-Identifier: MIT OR Apache-2.0

//! The fields of events, as `events/*/*/format` describes them.

use super::{
    page::LONG,
    show::{self, Show},
    Damage,
};
use std::rc::Rc;

/// More than any event's description has, in bytes.
pub const MAX_FORMAT: u64 = 256 << 10;
/// No event is larger than a page of the ring buffer.
const MAX_EVENT: usize = 1 << 24;

/// What a field holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A number.
    Number,
    /// Characters up to a zero.
    Text,
    /// Numbers of this size, one after the other.
    Array(usize),
    /// Bytes of which nothing more is known.
    Bytes,
}

/// Where a field is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// Where the format says.
    Fixed,
    /// From where the format says to the end of the event.
    Rest,
    /// Where a word says (`__data_loc`): low 16 bits the offset from the start of the event, high
    /// 16 bits the length.
    Elsewhere,
    /// The same, but the offset is from the end of the word (`__rel_loc`).
    Behind,
}

/// A field of an event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// Where.
    pub place: Place,
    /// Whether its numbers have a sign.
    pub signed: bool,
    /// How it is shown.
    pub show: Show,
    offset: usize,
    size: usize,
}

impl Field {
    /// How many bits its number has; [`None`]: it holds something else.
    pub fn number_bits(&self) -> Option<u8> {
        let is_number = self.kind == Kind::Number && self.place == Place::Fixed;
        let bits = matches!(self.size, 1 | 2 | 4 | 8).then(|| 8 * self.size as u8);
        bits.filter(|_| is_number)
    }

    /// Whether its numbers have 64 bits.
    pub fn holds_double(&self) -> bool {
        match self.kind {
            Kind::Array(size) => size == 8,
            _ => self.size == 8,
        }
    }
}

/// A value of a field.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value<'a> {
    /// A number without a sign.
    Unsigned(u64),
    /// A number with one.
    Signed(i64),
    /// A text without its zero.
    Text(&'a [u8]),
    /// Numbers.
    Array(Numbers<'a>),
    /// Bytes.
    Bytes(&'a [u8]),
}

impl Value<'_> {
    /// How many bytes of its event it was made of, if it is more than a number.
    pub fn size(&self) -> usize {
        match self {
            Value::Unsigned(_) | Value::Signed(_) => 0,
            Value::Array(Numbers { bytes, .. }) | Value::Text(bytes) | Value::Bytes(bytes) => {
                bytes.len()
            }
        }
    }
}

/// Numbers, one after the other. They are decoded one by one: an event may have millions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Numbers<'a> {
    bytes: &'a [u8],
    size: usize,
    signed: bool,
}

impl<'a> Numbers<'a> {
    /// Each as a value.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Value<'a>> {
        let chunks = self.bytes.chunks_exact(self.size);
        chunks.map(move |bytes| number(bytes, self.signed))
    }

    /// Their bytes, if each is one.
    pub fn bytes(self) -> Option<&'a [u8]> {
        (self.size == 1).then_some(self.bytes)
    }
}

/// Returns the number in 1, 2, 4 or 8 bytes; one with a sign is extended to 64 bits.
fn extended(bytes: &[u8], signed: bool) -> u64 {
    let number = super::number(bytes).unwrap_or_default();
    let unused = 64 - 8 * bytes.len() as u32;
    match signed {
        true => ((number << unused) as i64 >> unused) as u64,
        false => number,
    }
}

/// Returns that number as a value.
fn number<'a>(bytes: &[u8], signed: bool) -> Value<'a> {
    match signed {
        true => Value::Signed(extended(bytes, true) as i64),
        false => Value::Unsigned(extended(bytes, false)),
    }
}

/// Events that are more than their fields.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Special {
    /// Any other event.
    #[default]
    None,
    /// A call that the function tracer saw.
    Function,
    /// A stack that is in the map.
    StackId,
    /// A full stack.
    KernelStack,
    /// A stack of user space.
    UserStack,
    /// The id of a stack of user space.
    UserStackId,
    /// A text that was written to trace_marker.
    Print,
    /// A text of the kernel: the address of a format, and what it prints.
    BinaryPrint,
    /// A text of the kernel, by its address.
    Puts,
}

impl Special {
    /// What an event of this name is.
    pub fn of(system: &str, name: &str) -> Self {
        match (system, name) {
            ("ftrace", "function") => Self::Function,
            ("ftrace", "stack_id" | "stack_id_user") => Self::StackId,
            ("ftrace", "kernel_stack") => Self::KernelStack,
            ("ftrace", "user_stack") => Self::UserStack,
            ("ftrace", "user_stack_id") => Self::UserStackId,
            ("ftrace", "print") => Self::Print,
            ("ftrace", "bprint") => Self::BinaryPrint,
            ("ftrace", "bputs") => Self::Puts,
            _ => Self::None,
        }
    }

    /// The names of its numbers that [`Format::special_numbers`] returns.
    fn numbers(self) -> [&'static str; 2] {
        match self {
            Self::Function => ["ip", "parent_ip"],
            Self::StackId => ["stack_id", "cookie"],
            Self::UserStackId => ["user_stack_id", "cookie"],
            _ => [""; 2],
        }
    }

    /// Returns whether it is no event, but the stack of one.
    pub fn is_stack(self) -> bool {
        matches!(
            self,
            Self::StackId | Self::KernelStack | Self::UserStack | Self::UserStackId
        )
    }
}

/// An event's description.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Format {
    /// The number that its records carry.
    pub id: u16,
    /// `sched` of `sched:sched_switch`.
    pub system: String,
    /// `sched_switch` of it.
    pub name: Rc<str>,
    /// Whether it is one of the special events.
    pub special: Special,
    /// Its own fields.
    pub fields: Vec<Field>,
    /// The indices of the fields that [`Format::special_numbers`] reads.
    numbers: [Option<usize>; 2],
}

impl Format {
    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns the numbers of an event that is special: of [`Special::Function`] the function and its caller, of the
    /// others the id of the stack and the cookie.
    #[inline]
    pub fn special_numbers(&self, data: &[u8]) -> [Option<u64>; 2] {
        self.numbers
            .map(|index| self.fields.get(index?)?.number(data))
    }

    /// Sets how the fields are shown by their `print fmt`.
    fn set_shows(&mut self, print: &str) {
        for (name, show) in show::parse(print) {
            let field = self.fields.iter_mut().find(|field| {
                field.name == name && !matches!(field.kind, Kind::Text | Kind::Bytes)
            });
            if let Some(field) = field {
                // Names say more than digits.
                if !matches!(field.show, Show::Name(_) | Show::Flags(..)) {
                    field.show = show;
                }
            }
        }
    }
}

/// The fields that every event has in its first [`COMMON_LEN`] bytes, and their sizes.
const COMMON: [(&str, usize); 4] = [
    ("common_type", 2),
    ("common_flags", 1),
    ("common_preempt_count", 1),
    ("common_pid", 4),
];
/// How many bytes of an event have its common fields.
pub const COMMON_LEN: usize = 8;

/// The common fields of every event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// The event's number.
    pub id: u16,
    /// Interrupts, rescheduling.
    pub flags: u8,
    /// How often preemption was disabled.
    pub preempt_count: u8,
    /// The task.
    pub pid: i32,
}

/// The descriptions of all events of a trace.
#[derive(Debug, Default)]
pub struct Formats {
    /// By how many bits the word of the common fields is shifted to get each of them.
    common: Option<[u32; 4]>,
    by_id: Vec<Option<Rc<Format>>>,
}

impl Formats {
    /// Adds the description of an event of `system`; returns its number.
    pub fn add(&mut self, system: &str, text: &str) -> Result<u16, Damage> {
        let (format, common) = self.parse(system, text)?;
        let id = format.id;
        if self.common.get_or_insert(common) != &common {
            return Err(Damage("events differ in their common fields"));
        }
        let index = usize::from(id);
        if index >= self.by_id.len() {
            self.by_id.resize(index + 1, None);
        }
        self.by_id[index] = Some(Rc::new(format));
        Ok(id)
    }

    /// The description of the events with this number.
    pub fn get(&self, id: u16) -> Option<&Rc<Format>> {
        self.by_id.get(usize::from(id))?.as_ref()
    }

    /// Whether there is an event of this kind.
    pub fn have(&self, special: Special) -> bool {
        self.iter().any(|format| format.special == special)
    }

    /// All descriptions.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Format>> {
        self.by_id.iter().flatten()
    }

    /// The common fields of an event; [`None`]: it is too short, or there is no format yet.
    pub fn head(&self, data: &[u8]) -> Option<Head> {
        let common = *data.first_chunk::<COMMON_LEN>()?;
        let common = u64::from_le_bytes(common);
        let [kind, flags, preempt_count, pid] = self.common?.map(|shift| common >> shift);
        Some(Head {
            id: kind as u16,
            flags: flags as u8,
            preempt_count: preempt_count as u8,
            pid: pid as i32,
        })
    }

    /// The number in a field of the event `data`.
    pub fn number(&self, format: &Format, name: &str, data: &[u8]) -> Option<u64> {
        format.field(name)?.number(data)
    }

    /// The frames of a full stack, innermost first.
    pub fn frames(&self, format: &Format, data: &[u8], ips: &mut Vec<u64>) {
        ips.clear();
        let caller = format.field("caller").map(Field::to_the_end);
        let frames = caller.as_ref().and_then(|caller| self.value(caller, data));
        let Some(Value::Array(frames)) = frames else {
            return;
        };
        let numbers = frames.iter().filter_map(|frame| match frame {
            Value::Unsigned(ip) => Some(ip),
            _ => None,
        });
        let size = self.number(format, "size", data).unwrap_or(u64::MAX);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        // This value marks the end of a stack that is shorter than its field.
        ips.extend(numbers.take(size).take_while(|ip| *ip != u64::MAX));
    }

    /// The value of a field of the event `data`; [`None`]: the event is too short for it.
    pub fn value<'a>(&self, field: &Field, data: &'a [u8]) -> Option<Value<'a>> {
        let bytes = field.bytes(data)?;
        Some(match field.kind {
            Kind::Number => number(bytes, field.signed),
            Kind::Text => {
                let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
                Value::Text(&bytes[..end])
            }
            Kind::Array(size) => Value::Array(Numbers {
                bytes,
                size,
                signed: field.signed,
            }),
            Kind::Bytes => Value::Bytes(bytes),
        })
    }

    fn parse(&self, system: &str, text: &str) -> Result<(Format, [u32; 4]), Damage> {
        let after = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let name = after("name: ").map(str::trim).filter(|name| is_name(name));
        let name = name.ok_or(Damage("an event without a name"))?;
        let id = after("ID: ").and_then(|id| id.trim().parse().ok());
        let id = id.ok_or(Damage("an event without a number"))?;
        let mut format = Format {
            id,
            system: system.to_owned(),
            name: name.into(),
            special: Special::of(system, name),
            fields: Vec::new(),
            numbers: [None; 2],
        };
        let mut common = [None; 4];
        for line in text.lines() {
            let Some(line) = line.trim_start().strip_prefix("field:") else {
                continue;
            };
            let field = self.field(line)?;
            let (offset, size) = (field.offset, field.size);
            match COMMON.iter().position(|(name, _)| *name == field.name) {
                Some(at) if size == COMMON[at].1 && offset + size <= COMMON_LEN => {
                    common[at] = Some(8 * offset as u32);
                }
                Some(_) => return Err(Damage("a common field is not where all kernels have it")),
                None if field.name.starts_with("common_") => {}
                None => format.fields.push(field),
            }
        }
        let [Some(kind), Some(flags), Some(preempt_count), Some(pid)] = common else {
            return Err(Damage("an event lacks a common field"));
        };
        let fields = &format.fields;
        format.numbers = format
            .special
            .numbers()
            .map(|name| fields.iter().position(|field| field.name == name));
        if let Some((_, print)) = text.split_once("\nprint fmt: ") {
            format.set_shows(print);
        }
        Ok((format, [kind, flags, preempt_count, pid]))
    }

    /// Reads `TYPE NAME;\toffset:8;\tsize:4;\tsigned:1;`.
    fn field(&self, line: &str) -> Result<Field, Damage> {
        const WRONG: Damage = Damage("the description of a field is not valid");
        let mut parts = line.split(';').map(str::trim);
        let declaration = parts.next().ok_or(WRONG)?;
        let (mut offset, mut size, mut signed) = (None, None, false);
        for part in parts {
            match part.split_once(':') {
                Some(("offset", number)) => offset = number.parse::<usize>().ok(),
                Some(("size", number)) => size = number.parse::<usize>().ok(),
                Some(("signed", number)) => signed = number == "1",
                _ => {}
            }
        }
        let sane = |number: &usize| *number <= MAX_EVENT;
        let offset = offset.filter(sane).ok_or(WRONG)?;
        let size = size.filter(sane).ok_or(WRONG)?;
        let (ty, name) = declaration.rsplit_once(' ').ok_or(WRONG)?;
        let name = name.trim_start_matches('*');
        let (name, array) = match name.split_once('[') {
            Some((name, len)) => (name, Some(len.trim_end_matches(']'))),
            None => (name, None),
        };
        if !is_name(name) {
            return Err(WRONG);
        }
        let mut field = Field {
            name: name.to_owned(),
            kind: Kind::Number,
            place: Place::Fixed,
            signed,
            show: Show::Decimal,
            offset,
            size,
        };
        if ty.contains('*') {
            field.show = Show::Hex;
        }
        let elsewhere = [
            ("__data_loc ", Place::Elsewhere),
            ("__rel_loc ", Place::Behind),
        ];
        let elsewhere = elsewhere
            .iter()
            .find_map(|(prefix, place)| Some((ty.strip_prefix(prefix)?, *place)));
        let element = match (elsewhere, array) {
            (Some((ty, place)), _) => {
                if size != 4 {
                    return Err(WRONG);
                }
                field.place = place;
                Some((ty.trim_end_matches("[]"), None))
            }
            (None, Some(len)) => {
                if size == 0 {
                    field.place = Place::Rest;
                }
                let len = len.parse::<usize>().ok().filter(|len| *len > 0);
                Some((ty, len.map(|len| size / len)))
            }
            (None, None) => None,
        };
        if let Some((ty, size)) = element {
            let size = size.or_else(|| self.size_of(ty));
            field.kind = match size {
                _ if ty == "char" => Kind::Text,
                Some(size @ (1 | 2 | 4 | 8)) => Kind::Array(size),
                _ => Kind::Bytes,
            };
        } else if !matches!(size, 1 | 2 | 4 | 8) {
            field.kind = Kind::Bytes;
        }
        Ok(field)
    }

    /// The size of a type.
    fn size_of(&self, ty: &str) -> Option<usize> {
        let ty = ty.trim_start_matches("const ").trim();
        let plain = ty
            .trim_start_matches("unsigned ")
            .trim_start_matches("signed ");
        Some(match plain {
            _ if ty.ends_with('*') => LONG,
            "char" | "u8" | "s8" | "__u8" | "__s8" | "uint8_t" | "bool" | "unsigned" => 1,
            "short" | "u16" | "s16" | "__u16" | "__s16" | "uint16_t" | "__le16" | "__be16" => 2,
            "int" | "u32" | "s32" | "__u32" | "__s32" | "uint32_t" | "__le32" | "__be32" => 4,
            "long" | "size_t" | "ssize_t" => LONG,
            "long long" | "u64" | "s64" | "__u64" | "__s64" | "uint64_t" | "__le64" | "__be64" => 8,
            _ => return None,
        })
    }
}

/// Whether an event or a field may be called so.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Field {
    /// The field, extended to the end of its event: the format names a fixed number of frames, the
    /// event has more or fewer.
    fn to_the_end(&self) -> Self {
        Self {
            place: Place::Rest,
            ..self.clone()
        }
    }

    /// Its number in the event `data`.
    #[inline]
    fn number(&self, data: &[u8]) -> Option<u64> {
        let bytes = self.bytes(data)?;
        (self.kind == Kind::Number).then(|| extended(bytes, self.signed))
    }

    /// The bytes of the field in the event `data`.
    fn bytes<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        let own = || data.get(self.offset..self.offset + self.size);
        let from = match self.place {
            Place::Fixed => return own(),
            Place::Rest => return data.get(self.offset..),
            Place::Elsewhere => 0,
            Place::Behind => self.offset + 4,
        };
        let word = super::number(own()?)? as usize;
        let start = from + (word & 0xffff);
        data.get(start..start + (word >> 16))
    }
}

#[cfg(test)]
pub(crate) mod tests;
