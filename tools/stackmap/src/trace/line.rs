// SPDX-License-Identifier: MIT OR Apache-2.0

//! One line of a trace.
//!
//! ```text
//! comm-pid   (tgid) [cpu] flags timestamp: event: fields
//! comm-pid           cpuflags   timestamp: event: fields      (latency-format, trace-cmd -l)
//! ```
//!
//! What stands in parentheses and the flags may be missing. A comm may hold spaces, dashes and
//! brackets. It is padded to 16 columns; where it is not, it ends where the rest begins to fit.
//!
//! Names may also hold newlines, which nothing here can tell from the kernel's own.

/// A CPU number above this is no CPU number.
const MAX_CPU: u32 = 1 << 16;

/// How wide names of tasks are printed.
const COMM_WIDTH: usize = 16;

/// When something happened.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Time {
    /// In nanoseconds of the trace's clock.
    Nanos(u64),
    /// What a clock that does not count time says: an event counter, a cycle counter.
    Ticks(u64),
}

impl Time {
    /// Reads `3.319031`, `20741us!` or `123`.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if let Some((micros, _mark)) = text.split_once("us") {
            return Some(Time::Nanos(micros.parse::<u64>().ok()?.checked_mul(1000)?));
        }
        let Some((secs, fraction)) = text.split_once('.') else {
            return Some(Time::Ticks(parse_digits(text.as_bytes())?));
        };
        let digits = u32::try_from(fraction.len()).ok()?;
        if !(1..=9).contains(&digits) {
            return None;
        }
        let secs = parse_digits(secs.as_bytes())?.checked_mul(1_000_000_000)?;
        let fraction = parse_digits(fraction.as_bytes())? * 10u64.pow(9 - digits);
        Some(Time::Nanos(secs.checked_add(fraction)?))
    }

    /// As it is printed, in microseconds, or in millionths of a tick.
    pub fn micros(self) -> u128 {
        match self {
            Time::Nanos(nanos) => rounded(nanos).into(),
            Time::Ticks(ticks) => u128::from(ticks) * 1_000_000,
        }
    }

    /// The number, in whatever unit it is.
    pub fn value(self) -> u64 {
        match self {
            Time::Nanos(value) | Time::Ticks(value) => value,
        }
    }
}

/// Nanoseconds in microseconds, as traces print them.
fn rounded(nanos: u64) -> u64 {
    nanos.saturating_add(500) / 1000
}

/// As traces print it.
impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Time::Nanos(nanos) => {
                let micros = rounded(*nanos);
                let (secs, micros) = (micros / 1_000_000, micros % 1_000_000);
                write!(f, "{secs}.{micros:06}")
            }
            Time::Ticks(ticks) => write!(f, "{ticks}"),
        }
    }
}

/// The part of a line after its timestamp.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Body<'a> {
    /// An event, and its fields.
    Event {
        /// Its name.
        name: &'a [u8],
        /// The rest.
        fields: &'a [u8],
    },
    /// The beginning or the end of a system call, which has its name nowhere in the text.
    Syscall {
        /// The name of the system call.
        name: &'a [u8],
        /// Whether it begins.
        enter: bool,
        /// Its arguments, or what it returned.
        fields: &'a [u8],
    },
    /// A call that the function tracer saw: the function, and its caller.
    Function {
        /// The function.
        name: &'a [u8],
        /// Who called it.
        caller: &'a [u8],
    },
    /// A stack that was recorded as an id.
    StackId(u32, UserSide),
    /// A full stack; its frames are on the lines that follow.
    KernelStack,
    /// A stack of user space; its frames are on the lines that follow.
    UserStack,
    /// The id of a stack of user space; 0: it is not kept.
    UserStackId {
        /// The id.
        id: u32,
        /// The entry into the kernel that it belongs to.
        cookie: Cookie,
    },
}

/// The number of an entry into the kernel: that of the CPU below, a count above.
pub type Cookie = u64;

/// What is said of the user stack of an event.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum UserSide {
    /// There is none.
    #[default]
    None,
    /// Its id.
    Id(u32),
    /// Only the entry into the kernel: an event of its own has the id.
    Cookie(Cookie),
}

/// A line of a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Line<'a> {
    /// The name of the task.
    pub comm: &'a [u8],
    /// The id of the task.
    pub pid: u32,
    /// The id of its process, if the trace has it.
    pub tgid: Option<u32>,
    /// The CPU.
    pub cpu: u32,
    /// Interrupts, preemption and so on, a letter each; empty if the trace is without.
    pub flags: &'a [u8],
    /// When.
    pub time: Time,
    /// What.
    pub body: Body<'a>,
}

impl<'a> Line<'a> {
    /// Reads a line without its newline; [`None`]: it is none of a trace.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        if let Some(parsed) = Self::parse_padded(line) {
            return Some(parsed);
        }
        let line = line.trim_ascii_start();
        let mut from = 0;
        while let Some(dash) = find(&line[from..], b'-') {
            let dash = from + dash;
            if let Some(parsed) = Self::parse_behind(&line[..dash], &line[dash + 1..]) {
                return Some(parsed);
            }
            from = dash + 1;
        }
        None
    }

    /// Reads a line as the kernel and trace-cmd print it, with a name that was padded: where it ends
    /// does not depend on what is in it.
    pub fn parse_padded(line: &'a [u8]) -> Option<Self> {
        match line.get(COMM_WIDTH) {
            Some(b'-') => {
                let comm = line[..COMM_WIDTH].trim_ascii_start();
                Self::parse_behind(comm, &line[COMM_WIDTH + 1..])
            }
            _ => None,
        }
    }

    /// Reads what follows `comm-`.
    fn parse_behind(comm: &'a [u8], rest: &'a [u8]) -> Option<Self> {
        let (pid, rest) = take_number(rest)?;
        let rest = take_spaces(rest)?;
        let (tgid, rest) = take_tgid(rest)?;
        let (cpu, flags, rest) = take_cpu(rest)?;
        let colon = find(rest, b':')?;
        let time = Time::parse(&rest[..colon])?;
        let body = rest[colon + 1..].strip_prefix(b" ")?;
        Some(Self {
            comm,
            pid,
            tgid,
            cpu,
            flags,
            time,
            body: Body::parse(body),
        })
    }
}

impl<'a> Body<'a> {
    /// `sys_read(fd: 3, ...)` or `sys_read -> 0x10`
    fn syscall(body: &'a [u8]) -> Option<Self> {
        let rest = body.strip_prefix(b"sys_")?;
        let word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let (name, rest) = rest.split_at(rest.iter().take_while(word).count());
        let enter = rest.strip_prefix(b"(");
        let (enter, fields) = match (enter, rest.strip_prefix(b" -> ")) {
            (Some(fields), _) => (true, fields.strip_suffix(b")").unwrap_or(fields)),
            (None, Some(fields)) => (false, fields),
            (None, None) => return None,
        };
        (!name.is_empty()).then_some(Body::Syscall {
            name,
            enter,
            fields,
        })
    }

    fn parse(body: &'a [u8]) -> Self {
        // trace-cmd puts the names of events before all of them.
        let (name, fields) = match find(body, b':') {
            Some(colon) if !body[..colon].iter().any(|byte| b" <".contains(byte)) => {
                (&body[..colon], body[colon + 1..].trim_ascii_start())
            }
            _ => (&b""[..], body),
        };
        // What stands for a stack is all that its line says.
        match (name, fields.trim_ascii_end()) {
            (b"" | b"kernel_stack", b"<stack trace>" | b"<stack trace >") => {
                return Body::KernelStack
            }
            (b"" | b"user_stack", b"<user stack trace>" | b"<user stack trace >") => {
                return Body::UserStack
            }
            (b"" | b"stack_id" | b"stack_id_user", fields) if fields.starts_with(STACK_ID) => {
                if let Some((0, end, id)) = find_stack_id(fields) {
                    if let Some(user) = user_side(&fields[end..]) {
                        return Body::StackId(id, user);
                    }
                }
            }
            (b"" | b"user_stack_id", fields) => {
                if let Some((id, cookie)) = bind(fields) {
                    return Body::UserStackId { id, cookie };
                }
            }
            _ => {}
        }
        if let Some(syscall) = Self::syscall(body) {
            return syscall;
        }
        if let Some(at) = find_slice(body, b" <-") {
            if name.is_empty() && !body[..at].contains(&b' ') {
                return Body::Function {
                    name: &body[..at],
                    caller: &body[at + 3..],
                };
            }
        }
        Body::Event { name, fields }
    }
}

/// How the id of a kernel stack begins.
const STACK_ID: &[u8] = b"<stack_id ";

/// What follows the id of a kernel stack: nothing, ` <user_stack_id N>`, or ` <user A:B>`.
fn user_side(text: &[u8]) -> Option<UserSide> {
    if text.is_empty() {
        return Some(UserSide::None);
    }
    let text = text.strip_prefix(b" <")?.strip_suffix(b">")?;
    match text.strip_prefix(b"user_stack_id ") {
        Some(id) => Some(UserSide::Id(number(id)?)),
        None => Some(UserSide::Cookie(cookie(text.strip_prefix(b"user ")?)?)),
    }
}

/// The id and the cookie of `<user_stack_id N> for A:B`.
fn bind(text: &[u8]) -> Option<(u32, Cookie)> {
    let (id, rest) = take_number(text.strip_prefix(b"<user_stack_id ")?)?;
    Some((id, cookie(rest.strip_prefix(b"> for ")?)?))
}

/// The cookie `A:B`.
fn cookie(text: &[u8]) -> Option<Cookie> {
    let colon = find(text, b':')?;
    let [cpu, count] = [&text[..colon], &text[colon + 1..]].map(number);
    Some(u64::from(count?) << 32 | u64::from(cpu?))
}

/// The first `<stack_id N>` in a text: where it begins, where it ends, and N.
pub fn find_stack_id(text: &[u8]) -> Option<(usize, usize, u32)> {
    let mut from = 0;
    while let Some(at) = find_slice(&text[from..], STACK_ID) {
        let start = from + at;
        let digits = start + STACK_ID.len();
        if let Some((id, rest)) = take_number(&text[digits..]) {
            if rest.first() == Some(&b'>') {
                return Some((start, text.len() - rest.len() + 1, id));
            }
        }
        from = digits;
    }
    None
}

fn find(text: &[u8], byte: u8) -> Option<usize> {
    memchr::memchr(byte, text)
}

fn find_slice(text: &[u8], slice: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, slice)
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

/// `(  123) ` or `(-----) ` or nothing.
fn take_tgid(text: &[u8]) -> Option<(Option<u32>, &[u8])> {
    let Some(inner) = text.strip_prefix(b"(") else {
        return Some((None, text));
    };
    let inner = inner.trim_ascii_start();
    let close = find(inner, b')')?;
    let rest = take_spaces(&inner[close + 1..])?;
    match take_number(&inner[..close]) {
        Some((tgid, b"")) => Some((Some(tgid), rest)),
        None if inner[..close].iter().all(|byte| *byte == b'-') => Some((None, rest)),
        _ => None,
    }
}

/// `[001] d..1. ` or `[001] ` or `1d..1. `: the CPU, the flags, and what follows.
fn take_cpu(text: &[u8]) -> Option<(u32, &[u8], &[u8])> {
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
    let word = find(rest, b' ').unwrap_or(rest.len());
    if rest[..word].ends_with(b":") {
        // Already the timestamp.
        return text.starts_with(b"[").then_some((cpu, &[][..], rest));
    }
    Some((cpu, &rest[..word], take_spaces(&rest[word..])?))
}

#[cfg(test)]
mod tests;
