// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a field is shown: as in the `print fmt` of its event, if that is simple.
//!
//! A `print fmt` is C code: a format and arguments of the kernel's printf. It is not run. Only the
//! form of each field is taken from it: its base, a symbol, a name for a value, or names of flags.
//! A field that is printed in another way is shown as a plain number.

use std::fmt::{self, Write};

/// Deeper than any constant of a `print fmt` nests.
const MAX_DEPTH: u32 = 64;

/// How a number is shown.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Show {
    /// A decimal number.
    #[default]
    Decimal,
    /// A hexadecimal number.
    Hex,
    /// An octal number.
    Octal,
    /// The function at this address; `true`: with the offset into it.
    Symbol(bool),
    /// The name of the value.
    Name(Vec<(u64, String)>),
    /// The names of its bits, with what stands between them.
    Flags(String, Vec<(u64, String)>),
}

impl Show {
    /// Writes a number. Of [`Show::Symbol`] that is the address.
    pub fn number(&self, out: &mut String, number: u64, signed: bool) -> fmt::Result {
        match self {
            Show::Decimal if signed => write!(out, "{}", number as i64),
            Show::Decimal => write!(out, "{number}"),
            Show::Hex | Show::Symbol(_) => write!(out, "0x{number:x}"),
            Show::Octal => write!(out, "{number:#o}"),
            Show::Name(names) => match names.iter().find(|(value, _)| *value == number) {
                Some((_, name)) => out.write_str(name),
                None => write!(out, "0x{number:x}"),
            },
            Show::Flags(between, names) => flags(out, number, between, names),
        }
    }
}

fn flags(out: &mut String, mut left: u64, between: &str, names: &[(u64, String)]) -> fmt::Result {
    let all = left;
    let mut separator = "";
    for (mask, name) in names {
        if left & mask == *mask && *mask != 0 {
            left &= !mask;
            write!(out, "{separator}{name}")?;
            separator = between;
        }
    }
    match (left, all) {
        (0, 0) => match names.iter().find(|(mask, _)| *mask == 0) {
            Some((_, name)) => out.write_str(name),
            None => out.write_str("0"),
        },
        (0, _) => Ok(()),
        _ => write!(out, "{separator}0x{left:x}"),
    }
}

/// The fields that a `print fmt` shows in another form than as decimal numbers, by name, in the
/// order of its arguments.
pub(super) fn parse(print: &str) -> Vec<(&str, Show)> {
    let Some((text, arguments)) = split_text(print) else {
        return Vec::new();
    };
    let shown = conversions(&text).zip(arguments);
    shown
        .filter_map(|(conversion, argument)| {
            names(argument).or_else(|| Some((simple(argument)?, converted(conversion)?)))
        })
        .collect()
}

/// How a conversion shows a number; [`None`]: as a decimal number.
fn converted(conversion: &str) -> Option<Show> {
    Some(match conversion {
        "pS" | "pB" => Show::Symbol(true),
        "ps" | "pF" | "pf" => Show::Symbol(false),
        _ if conversion.starts_with('p') => Show::Hex,
        _ if conversion.ends_with(['x', 'X']) => Show::Hex,
        _ if conversion.ends_with('o') => Show::Octal,
        _ => return None,
    })
}

/// The text in quotes at the beginning, and the arguments after it.
fn split_text(print: &str) -> Option<(String, Vec<&str>)> {
    let mut text = String::new();
    let mut rest = print.trim_start();
    while let Some(inner) = rest.strip_prefix('"') {
        let end = end_of_text(inner)?;
        text.push_str(&inner[..end]);
        rest = inner[end + 1..].trim_start();
    }
    let rest = rest.strip_prefix(',')?;
    Some((text, split(rest)))
}

/// Where a text ends that begins with a quote before `text`.
fn end_of_text(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Splits at the commas that stand in no brackets and no text.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut quoted, mut escaped) = (0, 0i32, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// The conversions of a format: `d`, `lx`, `pS`, without flags and widths.
fn conversions(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || loop {
        let (_, behind) = rest.split_once('%')?;
        if let Some(behind) = behind.strip_prefix('%') {
            rest = behind;
            continue;
        }
        let body = behind.trim_start_matches(|c: char| "-+ #0123456789.".contains(c));
        let len = body.find(|c: char| !"hlLqjzt".contains(c))?;
        let end = match body[len..].starts_with('p') {
            // What kind of pointer it is: %pS, %ps.
            true => body[len + 1..]
                .find(|c: char| !c.is_ascii_alphanumeric())
                .map_or(body.len(), |more| len + 1 + more),
            false => len + body[len..].chars().next().map_or(0, char::len_utf8),
        };
        rest = &body[end..];
        return Some(match body[len..].starts_with('p') {
            true => &body[len..end],
            false => &body[..end],
        });
    })
}

/// The field of an argument that is nothing but one: `REC->name`, with casts and brackets.
fn simple(argument: &str) -> Option<&str> {
    let mut rest = argument.trim();
    for _ in 0..MAX_DEPTH {
        if let Some(name) = rest.strip_prefix("REC->") {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            return (!name.is_empty() && name.chars().all(word)).then_some(name);
        }
        let inner = rest.strip_prefix('(')?;
        let close = closing(inner)?;
        rest = match inner[close + 1..].trim() {
            "" => inner[..close].trim(),
            // A cast.
            behind if is_type(&inner[..close]) => behind,
            _ => return None,
        };
    }
    None
}

/// Whether this may stand in the brackets of a cast.
fn is_type(text: &str) -> bool {
    let text = text.trim();
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_ *".contains(c))
}

/// `__print_flags(field, "|", { value, "name" }, ...)` or `__print_symbolic(field, ...)` anywhere
/// in an argument.
fn names(argument: &str) -> Option<(&str, Show)> {
    const CALLS: [(&str, bool); 4] = [
        ("__print_flags(", true),
        ("__print_flags_u64(", true),
        ("__print_symbolic(", false),
        ("__print_symbolic_u64(", false),
    ];
    let (flags, inner) = CALLS.iter().find_map(|(call, flags)| {
        let (_, inner) = argument.split_once(call)?;
        Some((*flags, inner))
    })?;
    let inner = &inner[..closing(inner)?];
    let parts = split(inner);
    let name = simple(parts.first()?)?;
    let (between, entries) = match flags {
        true => (text_of(parts.get(1)?)?, &parts[2..]),
        false => (String::new(), &parts[1..]),
    };
    let mut table = Vec::new();
    for entry in entries {
        let inner = entry.strip_prefix('{')?.strip_suffix('}')?;
        let [value, name] = split(inner)[..] else {
            return None;
        };
        // The table of flags may end with one that has none.
        let Some(name) = text_of(name) else { continue };
        table.push((constant(value)?, name));
    }
    let show = match flags {
        true => Show::Flags(between, table),
        false => Show::Name(table),
    };
    Some((name, show))
}

/// Where the bracket closes that was opened before `text`, which may have texts in quotes.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0u32, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' => depth += 1,
            b')' if depth == 0 => return Some(at),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn text_of(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix('"')?;
    let end = end_of_text(inner)?;
    let shown = &inner[..end];
    let plain = inner[end + 1..].trim().is_empty() && !shown.contains(char::is_control);
    plain.then(|| shown.to_owned())
}

/// The value of a constant: numbers, brackets, casts, and operators on bits.
fn constant(text: &str) -> Option<u64> {
    let mut parser = Constant {
        rest: text,
        depth: 0,
    };
    let value = parser.or()?;
    parser.rest.trim().is_empty().then_some(value)
}

struct Constant<'a> {
    rest: &'a str,
    depth: u32,
}

impl Constant<'_> {
    fn or(&mut self) -> Option<u64> {
        let mut value = self.and()?;
        while self.take("|") {
            value |= self.and()?;
        }
        Some(value)
    }

    fn and(&mut self) -> Option<u64> {
        let mut value = self.shift()?;
        while self.take("&") {
            value &= self.shift()?;
        }
        Some(value)
    }

    fn shift(&mut self) -> Option<u64> {
        let mut value = self.sum()?;
        loop {
            if self.take("<<") {
                value = value.checked_shl(self.sum()?.try_into().ok()?)?;
            } else if self.take(">>") {
                value = value.checked_shr(self.sum()?.try_into().ok()?)?;
            } else {
                return Some(value);
            }
        }
    }

    fn sum(&mut self) -> Option<u64> {
        let mut value = self.unary()?;
        loop {
            if self.take("+") {
                value = value.wrapping_add(self.unary()?);
            } else if self.take("-") {
                value = value.wrapping_sub(self.unary()?);
            } else {
                return Some(value);
            }
        }
    }

    fn unary(&mut self) -> Option<u64> {
        self.depth += 1;
        let value = self.unary_within();
        self.depth -= 1;
        value
    }

    fn unary_within(&mut self) -> Option<u64> {
        if self.depth > MAX_DEPTH {
            return None;
        }
        if self.take("~") {
            return Some(!self.unary()?);
        }
        if self.take("-") {
            return Some(self.unary()?.wrapping_neg());
        }
        if self.take("(") {
            let close = closing(self.rest)?;
            if is_type(&self.rest[..close]) {
                self.rest = &self.rest[close + 1..];
                return self.unary();
            }
            let value = self.or()?;
            return self.take(")").then_some(value);
        }
        self.number()
    }

    fn number(&mut self) -> Option<u64> {
        let word = |c: char| c.is_ascii_alphanumeric();
        let text = self.rest.trim_start();
        let end = text.find(|c| !word(c)).unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        self.rest = rest;
        let number = number.trim_end_matches(['u', 'U', 'l', 'L']);
        match number
            .strip_prefix("0x")
            .or_else(|| number.strip_prefix("0X"))
        {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None if number.len() > 1 && number.starts_with('0') => {
                u64::from_str_radix(number, 8).ok()
            }
            None => number.parse().ok(),
        }
    }

    /// Whether this token is next; if so, it is consumed.
    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
