// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lines of the text of a trace that say the id of a stack, and nothing else.
//!
//! ```text
//! comm-pid   (tgid) [cpu] flags timestamp: event: fields
//! comm-pid           cpuflags   timestamp: event: fields      (latency-format, trace-cmd -l)
//! ```
//!
//! What stands in parentheses and the flags may be missing; `(+12)`, the time since the event before, may
//! follow the timestamp. A comm may hold spaces, dashes and
//! brackets. It is padded to 16 columns; where it is not, it ends where the rest begins to fit.
//!
//! Names may also hold newlines, which nothing here can tell from the kernel's own.

use crate::trace::Cookie;
use memchr::{memchr, memmem};

/// A CPU number above this is no CPU number.
const MAX_CPU: u32 = 1 << 16;

/// How wide names of tasks are printed.
const COMM_WIDTH: usize = 16;

/// How the id of a kernel stack begins.
const STACK_ID: &[u8] = b"<stack_id ";
/// How the id of a user stack begins.
const USER_STACK_ID: &[u8] = b"<user_stack_id ";

/// What a line says of stacks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ids {
    /// The id of a kernel stack, and the user stack of the event.
    Kernel(u32, UserSide),
    /// The id of a user stack, 0 if it is not kept, and the entry into the kernel that it belongs to.
    User(u32, Cookie),
}

/// What is said of the user stack of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum UserSide {
    /// There is none.
    None,
    /// Its id.
    Id(u32),
    /// Only the entry into the kernel: an event of its own has the id.
    Cookie(Cookie),
}

/// Returns the ids that are all that a line says, and where they begin in it.
pub(super) fn ids(line: &[u8]) -> Option<(usize, Ids)> {
    // Most lines have none, and reading them takes longer than this.
    match line.trim_ascii_end().last()? {
        b'>' => memmem::rfind(line, STACK_ID)?,
        byte if byte.is_ascii_digit() => memmem::rfind(line, USER_STACK_ID)?,
        _ => return None,
    };
    let body = body(line)?;
    // trace-cmd puts the names of events before all of them.
    let (name, text) = match memchr(b':', body) {
        Some(colon) if !body[..colon].iter().any(|byte| b" <".contains(byte)) => {
            (&body[..colon], body[colon + 1..].trim_ascii_start())
        }
        _ => (&b""[..], body),
    };
    let start = line.len() - text.len();
    let text = text.trim_ascii_end();
    let ids = match name {
        b"stack_id" | b"stack_id_user" => kernel(text),
        b"user_stack_id" => user(text),
        b"" => kernel(text).or_else(|| user(text)),
        _ => None,
    };
    Some((start, ids?))
}

/// What follows the timestamp; [`None`]: it is no line of a trace.
fn body(line: &[u8]) -> Option<&[u8]> {
    // As the kernel and trace-cmd print it, with a name that was padded: where it ends does not
    // depend on what is in it.
    if line.get(COMM_WIDTH) == Some(&b'-') {
        if let Some(body) = after_comm(&line[COMM_WIDTH + 1..]) {
            return Some(body);
        }
    }
    let dashes = memchr::memchr_iter(b'-', line);
    dashes
        .filter_map(|dash| after_comm(&line[dash + 1..]))
        .next()
}

/// The body, of what follows `comm-`.
fn after_comm(rest: &[u8]) -> Option<&[u8]> {
    let (_, rest) = take_number(rest)?;
    let rest = take_tgid(take_spaces(rest)?)?;
    let rest = take_cpu(rest)?;
    let colon = memchr(b':', rest)?;
    is_time(&rest[..colon]).then(|| rest[colon + 1..].strip_prefix(b" ").map(after_difference))?
}

/// Returns what follows `(+12)  `, the time since the event before, if the text begins with that.
fn after_difference(text: &[u8]) -> &[u8] {
    let difference = text.strip_prefix(b"(+").and_then(take_number);
    let rest = difference.and_then(|(_, rest)| take_spaces(rest.strip_prefix(b")")?));
    rest.unwrap_or(text)
}

/// Returns whether a line ends with an id, and is no line of a trace.
pub(super) fn is_unknown(line: &[u8]) -> bool {
    let text = line.trim_ascii_end();
    let at = memmem::rfind(text, STACK_ID).or_else(|| memmem::rfind(text, USER_STACK_ID));
    let ids = at.and_then(|at| kernel(&text[at..]).or_else(|| user(&text[at..])));
    ids.is_some() && body(line).is_none()
}

/// Whether this is a time: `3.319031`, `20741us!` or `123`.
fn is_time(text: &[u8]) -> bool {
    if let Some(us) = memmem::find(text, b"us") {
        return parse_digits(&text[..us]).is_some();
    }
    match memchr(b'.', text) {
        Some(point) => {
            let fraction = &text[point + 1..];
            let is_fraction = (1..=9).contains(&fraction.len()) && parse_digits(fraction).is_some();
            is_fraction && parse_digits(&text[..point]).is_some()
        }
        None => parse_digits(text).is_some(),
    }
}

/// `<stack_id N>`, and what may follow: ` <user_stack_id N>`, or ` <user A:B>`.
fn kernel(text: &[u8]) -> Option<Ids> {
    let (id, rest) = take_number(text.strip_prefix(STACK_ID)?)?;
    let side = match rest.strip_prefix(b">")? {
        b"" => UserSide::None,
        side => {
            let side = side.strip_prefix(b" ")?.strip_suffix(b">")?;
            match side.strip_prefix(USER_STACK_ID) {
                Some(id) => UserSide::Id(number(id)?),
                None => UserSide::Cookie(cookie(side.strip_prefix(b"<user ")?)?),
            }
        }
    };
    Some(Ids::Kernel(id, side))
}

/// `<user_stack_id N> for A:B`
fn user(text: &[u8]) -> Option<Ids> {
    let (id, rest) = take_number(text.strip_prefix(USER_STACK_ID)?)?;
    Some(Ids::User(id, cookie(rest.strip_prefix(b"> for ")?)?))
}

/// The cookie `A:B`.
fn cookie(text: &[u8]) -> Option<Cookie> {
    let colon = memchr(b':', text)?;
    let [cpu, count] = [&text[..colon], &text[colon + 1..]].map(number);
    Some(u64::from(count?) << 32 | u64::from(cpu?))
}

fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn number(digits: &[u8]) -> Option<u32> {
    u32::try_from(parse_digits(digits)?).ok()
}

fn take_number(text: &[u8]) -> Option<(u32, &[u8])> {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = parse_digits(&text[..len])?;
    Some((u32::try_from(number).ok()?, &text[len..]))
}

/// What follows at least one space.
fn take_spaces(text: &[u8]) -> Option<&[u8]> {
    let rest = text.trim_ascii_start();
    (rest.len() < text.len()).then_some(rest)
}

/// What follows `(  123) ` or `(-----) `, if that is there.
fn take_tgid(text: &[u8]) -> Option<&[u8]> {
    let Some(inner) = text.strip_prefix(b"(") else {
        return Some(text);
    };
    let inner = inner.trim_ascii_start();
    let close = memchr(b')', inner)?;
    let tgid = &inner[..close];
    let is_tgid = number(tgid).is_some() || tgid.iter().all(|byte| *byte == b'-');
    is_tgid.then(|| take_spaces(&inner[close + 1..]))?
}

/// What follows `[001] d..1. ` or `[001] ` or `1d..1. `.
fn take_cpu(text: &[u8]) -> Option<&[u8]> {
    let (cpu, rest) = match text.strip_prefix(b"[") {
        Some(text) => {
            let (cpu, rest) = take_number(text)?;
            (cpu, take_spaces(rest.strip_prefix(b"]")?)?)
        }
        // The first flag is no digit.
        None => take_number(text).filter(|(_, rest)| !rest.starts_with(b" "))?,
    };
    if cpu > MAX_CPU {
        return None;
    }
    let word = memchr(b' ', rest).unwrap_or(rest.len());
    if rest[..word].ends_with(b":") {
        // Already the timestamp.
        return text.starts_with(b"[").then_some(rest);
    }
    take_spaces(&rest[word..])
}

#[cfg(test)]
mod tests;
