// SPDX-License-Identifier: GPL-2.0

//! BTF, in which a kernel describes its own types: what a function takes and what it returns.
//!
//! The description is read where it lies. Nothing in it is trusted: [`Btf::new`] walks it once from
//! its start to its end and refuses what does not fit together. Nothing here panics or allocates,
//! and the time that it takes is bounded by the length of the description. All of it is in the byte
//! order of the machine.
//!
//! C header: [`include/uapi/linux/btf.h`](srctree/include/uapi/linux/btf.h)

use core::fmt;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// A header without a section of layouts, and one with it.
const HEADER_LEN: usize = 24;
const LAYOUT_HEADER_LEN: usize = 32;
/// What every type begins with, and what of a parameter is there.
const TYPE_LEN: usize = 12;
const PARAM_LEN: usize = 8;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

const INT_SIGNED: u32 = 1 << 24;
const INT_BOOL: u32 = 1 << 26;
/// Bits of an integer that do not begin at its start.
const INT_OFFSET: u32 = 0xff << 16;
const INT_BITS: u32 = 0xff;

/// More names for a type than any type has.
const MAX_NAMES: usize = 32;
/// Types whose offsets are remembered, evenly among all.
const MARKS: usize = 64;
/// Parameters that a signature tells apart; of more, only how many.
const MAX_PARAMS: usize = 12;

/// What is wrong with a description.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// It is something else, or in another byte order.
    Magic,
    /// It is of a version that nobody knew when this was written.
    Version(u8),
    /// It ends too early.
    Truncated,
    /// It has a kind of type whose length is not known.
    Kind(u32),
    /// A type refers to one that is not there, that is none, or to itself.
    Reference(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("it has another magic number"),
            Self::Version(version) => write!(f, "it has version {version}"),
            Self::Truncated => f.write_str("it is truncated"),
            Self::Kind(kind) => write!(f, "it has a type of unknown kind {kind}"),
            Self::Reference(id) => write!(f, "it has a wrong reference to type {id}"),
        }
    }
}

/// A type, as far as calling a function depends on it. Integers have their number of bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Type {
    /// Nothing.
    Void,
    /// True or false, in a byte.
    Bool,
    /// A pointer to whatever.
    Pointer,
    /// An integer with a sign.
    Signed(u32),
    /// An integer without.
    Unsigned(u32),
    /// An enumeration.
    Enum(u32),
    /// Any number of any parameters: C's `...`.
    Variadic,
    /// Something else: what it is called.
    Other(&'static str),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Void => f.write_str("void"),
            Self::Bool => f.write_str("bool"),
            Self::Pointer => f.write_str("ptr"),
            Self::Signed(bits) => write!(f, "s{bits:02}"),
            Self::Unsigned(bits) => write!(f, "u{bits:02}"),
            Self::Enum(bits) => write!(f, "e{bits:02}"),
            Self::Variadic => f.write_str("..."),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// What a function takes and what it returns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Signature {
    returned: Type,
    nr_params: usize,
    /// Those after `nr_params` are [`Type::Void`].
    params: [Type; MAX_PARAMS],
}

impl Signature {
    /// Makes the prototype of a function that returns and takes these.
    pub fn new(returned: Type, params: &[Type]) -> Self {
        let mut signature = Self {
            returned,
            nr_params: 0,
            params: [Type::Void; MAX_PARAMS],
        };
        for param in params {
            signature.push(*param);
        }
        signature
    }

    fn push(&mut self, param: Type) {
        if let Some(slot) = self.params.get_mut(self.nr_params) {
            *slot = param;
        }
        self.nr_params += 1;
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (index, param) in self.params.iter().take(self.nr_params).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{param}")?;
        }
        match self.nr_params.saturating_sub(MAX_PARAMS) {
            0 => {}
            more => write!(f, ", and {more} more")?,
        }
        write!(f, ") -> {}", self.returned)
    }
}

/// A type as it lies there.
struct Raw<'a> {
    name: u32,
    kind: u32,
    /// The size of what it describes, or the type that it refers to.
    size_or_type: u32,
    /// What follows it.
    more: &'a [u8],
}

/// A description of types.
///
/// # Invariants
///
/// [`Self::read`] succeeds at offset 0 of `types` and wherever the type before ends, but at the
/// end. `marks[i]` is the offset of type `1 + (i << shift)`, for all of these up to type `nr`.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    layouts: &'a [u8],
    nr: usize,
    shift: u32,
    marks: [usize; MARKS],
}

impl<'a> Btf<'a> {
    /// Looks at a description from its start to its end.
    pub fn new(data: &'a [u8]) -> Result<Self, Error> {
        let magic = data.first_chunk().ok_or(Error::Truncated)?;
        if u16::from_ne_bytes(*magic) != MAGIC {
            return Err(Error::Magic);
        }
        match data.get(2) {
            Some(&VERSION) => {}
            Some(version) => return Err(Error::Version(*version)),
            None => return Err(Error::Truncated),
        }
        let header_len = word(data, 4)? as usize;
        if header_len < HEADER_LEN {
            return Err(Error::Truncated);
        }
        let body = data.get(header_len..).ok_or(Error::Truncated)?;
        let section = |at| {
            let start = word(data, at)? as usize;
            let len = word(data, at + 4)? as usize;
            let section = body.get(start..).and_then(|section| section.get(..len));
            section.ok_or(Error::Truncated)
        };
        let layouts = match header_len {
            LAYOUT_HEADER_LEN.. => section(24)?,
            _ => &[],
        };
        // INVARIANT: There is no mark yet; `index()` reads all types, and marks what it should.
        let mut btf = Self {
            types: section(8)?,
            strings: section(16)?,
            layouts,
            nr: 0,
            shift: 0,
            marks: [0; MARKS],
        };
        btf.index()?;
        Ok(btf)
    }

    /// Finds the types: how many there are, and where some of them are.
    fn index(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while at < self.types.len() {
            if self.nr >> self.shift == MARKS {
                // Every other mark goes; the others are the first half.
                for i in 0..MARKS / 2 {
                    self.marks[i] = self.marks[2 * i];
                }
                self.shift += 1;
            }
            let (mark, distance) = self.mark(self.nr);
            if distance == 0 {
                self.marks[mark] = at;
            }
            (_, at) = self.read(at)?;
            self.nr += 1;
        }
        Ok(())
    }

    /// Returns the mark before a type, and how far after it the type is.
    fn mark(&self, index: usize) -> (usize, usize) {
        let mark = index >> self.shift;
        (mark, index - (mark << self.shift))
    }

    /// Reads the type at an offset. Returns it, and where the next one is.
    fn read(&self, at: usize) -> Result<(Raw<'a>, usize), Error> {
        let types = self.types.get(at..).ok_or(Error::Truncated)?;
        let (head, more) = types
            .split_first_chunk::<TYPE_LEN>()
            .ok_or(Error::Truncated)?;
        let (name, info, size_or_type) = (word(head, 0)?, word(head, 4)?, word(head, 8)?);
        let (kind, nr) = (info >> 24 & 0x7f, (info & 0xff_ffff) as usize);
        let (once, each) = match kind {
            PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => (0, 0),
            INT | VAR | DECL_TAG => (4, 0),
            ARRAY => (12, 0),
            ENUM | FUNC_PROTO => (0, PARAM_LEN),
            STRUCT | UNION | DATASEC | ENUM64 => (0, 12),
            _ => self.layout(kind)?,
        };
        let len = nr.checked_mul(each).and_then(|len| len.checked_add(once));
        let len = len.ok_or(Error::Truncated)?;
        let raw = Raw {
            name,
            kind,
            size_or_type,
            more: more.get(..len).ok_or(Error::Truncated)?,
        };
        Ok((raw, at + TYPE_LEN + len))
    }

    /// Returns the number of bytes that follow a type of a kind that came later: once, and for each of its members.
    fn layout(&self, kind: u32) -> Result<(usize, usize), Error> {
        // Two bytes, and two of flags.
        let layout = self.layouts.chunks_exact(4).nth(kind as usize);
        match layout {
            Some([once, each, ..]) if kind > ENUM64 => Ok(((*once).into(), (*each).into())),
            _ => Err(Error::Kind(kind)),
        }
    }

    /// Returns a type by its number, not 0.
    fn get(&self, id: u32) -> Result<Raw<'a>, Error> {
        let index = (id as usize).wrapping_sub(1);
        if index >= self.nr {
            return Err(Error::Reference(id));
        }
        let (mark, distance) = self.mark(index);
        let mut at = *self.marks.get(mark).ok_or(Error::Reference(id))?;
        for _ in 0..distance {
            (_, at) = self.read(at)?;
        }
        Ok(self.read(at)?.0)
    }

    /// Returns whether the string at an offset is this one.
    fn is_named(&self, at: u32, name: &[u8]) -> bool {
        let string = self.strings.get(at as usize..);
        string
            .and_then(|string| string.strip_prefix(name))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Returns what functions take and what they return; [`None`] for a name that no function has.
    ///
    /// Names must not become a part of the code: tests replace them in the module.
    #[inline(never)]
    pub fn functions<const N: usize>(
        &self,
        names: [&[u8]; N],
    ) -> [Result<Option<Signature>, Error>; N] {
        let mut prototypes = [None; N];
        let mut at = 0;
        // By the invariant, only the end cannot be read.
        while let Ok((raw, next)) = self.read(at) {
            if raw.kind == FUNC {
                for (name, prototype) in names.iter().zip(&mut prototypes) {
                    if prototype.is_none() && self.is_named(raw.name, name) {
                        *prototype = Some(raw.size_or_type);
                    }
                }
            }
            at = next;
        }
        prototypes.map(|id| id.map(|id| self.signature(id)).transpose())
    }

    fn signature(&self, id: u32) -> Result<Signature, Error> {
        let proto = self.get(id)?;
        if proto.kind != FUNC_PROTO {
            return Err(Error::Reference(id));
        }
        let mut signature = Signature::new(self.plain(proto.size_or_type)?, &[]);
        let params = proto.more.chunks_exact(PARAM_LEN);
        let nr_params = params.len();
        for param in params.take(MAX_PARAMS) {
            signature.push(match (word(param, 0)?, word(param, 4)?) {
                (0, 0) => Type::Variadic,
                (_, id) => self.plain(id)?,
            });
        }
        signature.nr_params = nr_params;
        Ok(signature)
    }

    /// Returns a type without the names that it has and what it is qualified by.
    fn plain(&self, mut id: u32) -> Result<Type, Error> {
        for _ in 0..MAX_NAMES {
            if id == 0 {
                return Ok(Type::Void);
            }
            let raw = self.get(id)?;
            let bits = raw.size_or_type.saturating_mul(8);
            return Ok(match raw.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG | DECL_TAG => {
                    id = raw.size_or_type;
                    continue;
                }
                INT => integer(word(raw.more, 0)?, bits),
                PTR => Type::Pointer,
                ENUM | ENUM64 => Type::Enum(bits),
                ARRAY => Type::Other("array"),
                STRUCT => Type::Other("struct"),
                UNION => Type::Other("union"),
                FLOAT => Type::Other("float"),
                FWD => Type::Other("incomplete"),
                _ => return Err(Error::Reference(id)),
            });
        }
        Err(Error::Reference(id))
    }
}

/// Returns how an integer is encoded, and the bits of the memory that it is in.
fn integer(encoding: u32, bits: u32) -> Type {
    if encoding & INT_OFFSET != 0 || encoding & INT_BITS != bits {
        Type::Other("bits")
    } else if encoding & INT_BOOL != 0 {
        if bits == 8 {
            Type::Bool
        } else {
            Type::Other("wide bool")
        }
    } else if encoding & INT_SIGNED != 0 {
        Type::Signed(bits)
    } else {
        Type::Unsigned(bits)
    }
}

/// Returns the word at an offset.
fn word(data: &[u8], at: usize) -> Result<u32, Error> {
    let bytes = data.get(at..).and_then(|data| data.first_chunk());
    bytes
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(Error::Truncated)
}
