// SPDX-License-Identifier: MIT OR Apache-2.0

//! The text of a trace, out of the records of the ring buffer: what the kernel would print, with
//! the stacks in it, and with nothing in a name that could end a line or control a terminal.

use super::{Form, Resolver, User, STEP};
use crate::{
    error::Result,
    output::Progress,
    ring::{
        decode::Trace,
        fields::escape,
        format::{Head, Special},
        stream::{Pages, Records},
    },
    trace::Binds,
};
use std::{
    fmt::Write as _,
    io::{Read, Write},
};

const HEADER: &str = "\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  EVENT
#              | |         |   |||||     |         |
";

impl Resolver<'_> {
    /// Writes the records of `pages`, which have `size` bytes, to `out`.
    pub fn records(
        &mut self,
        trace: &Trace,
        pages: Pages<impl Read>,
        size: u64,
        binds: &Binds,
        out: &mut impl Write,
    ) -> Result {
        let mut records = Records::new(pages);
        let mut progress = Progress::bytes("resolving", Some(size));
        out.write_all(HEADER.as_bytes())?;
        let mut nr_records = 0u64;
        let mut line = String::new();
        let mut ips = Vec::new();
        while let Some((cpu, time, data)) = records.next_record()? {
            line.clear();
            self.record(trace, (cpu, time, data), binds, &mut line, &mut ips, out)?;
            nr_records += 1;
            if nr_records.is_multiple_of(STEP) {
                progress.set(records.offset());
            }
        }
        self.notes.losses.lost = records.lost;
        Ok(out.flush()?)
    }

    fn record(
        &mut self,
        trace: &Trace,
        (cpu, time, data): (u32, u64, &[u8]),
        binds: &Binds,
        line: &mut String,
        ips: &mut Vec<u64>,
        out: &mut impl Write,
    ) -> Result {
        let formats = &trace.about.formats;
        let Some(head) = formats.head(data) else {
            return Ok(());
        };
        context(trace, &head, cpu, time, line);
        let format = trace.format(&head);
        let symbols = &self.loaded.symbols;
        match (format, format.map(|format| format.special)) {
            (Some(format), Some(Special::StackId)) => {
                let [id, cookie] = format.special_numbers(data);
                let form = self.form(Form::Kernel);
                let user = binds.user(head.pid as u32, time, cookie);
                let id = id.unwrap_or_default() as u32;
                self.stack(line.as_bytes(), id, User::Known(user), form, out)?;
                return Ok(out.write_all(b"\n")?);
            }
            (Some(format), Some(Special::KernelStack)) => {
                formats.frames(format, data, ips);
                self.begin(line.as_bytes(), 0, Form::Kernel);
                self.frames(ips, Form::Kernel);
                out.write_all(&self.text)?;
                return Ok(out.write_all(b"\n")?);
            }
            (Some(format), Some(Special::UserStackId)) => {
                let [id, cookie] = format.special_numbers(data).map(Option::unwrap_or_default);
                let (cpu, count) = (cookie as u32, cookie >> 32);
                // Writing into a string does not fail.
                let _ = writeln!(line, "<user_stack_id {id}> for {cpu}:{count}");
                return Ok(out.write_all(line.as_bytes())?);
            }
            (Some(format), Some(Special::Function)) => {
                let [ip, _] = format.special_numbers(data);
                crate::ring::fields::function(symbols, ip.unwrap_or_default(), false, line);
                line.push_str(" <-");
            }
            (Some(format), _) => {
                line.push_str(&format.name);
                line.push_str(": ");
            }
            // Writing into a string does not fail.
            (None, _) => drop(write!(line, "event_{}: ", head.id)),
        }
        line.push_str(&trace.fields(&head, data.to_vec()).text(symbols));
        line.push('\n');
        Ok(out.write_all(line.as_bytes())?)
    }
}

/// What stands before an event: its task, its CPU, its flags and its time.
fn context(trace: &Trace, head: &Head, cpu: u32, time: u64, line: &mut String) {
    let mut comm = String::new();
    let (name, _) = trace.tasks.comm(head.pid, time);
    escape(name.as_bytes(), false, &mut comm);
    let _ = write!(line, "{comm:>16}-{:<7} ", head.pid);
    if trace.tasks.has_tgids() {
        let _ = match trace.tasks.tgid(head.pid, time).0 {
            Some(tgid) => write!(line, "({tgid:>7}) "),
            None => write!(line, "(-------) "),
        };
    }
    let _ = write!(line, "[{cpu:03}] ");
    line.extend(flags(head));
    let _ = write!(line, " {:>12}: ", trace.time(time).to_string());
}

/// Interrupts and preemption as `trace` prints them.
fn flags(head: &Head) -> [char; 5] {
    const IRQS_OFF: u8 = 0x01;
    const NEED_RESCHED_LAZY: u8 = 0x02;
    const NEED_RESCHED: u8 = 0x04;
    const HARDIRQ: u8 = 0x08;
    const SOFTIRQ: u8 = 0x10;
    const PREEMPT_RESCHED: u8 = 0x20;
    const NMI: u8 = 0x40;
    const BH_OFF: u8 = 0x80;
    let is = |flag| head.flags & flag != 0;
    let level = |count: u8| match count {
        0 => '.',
        count => char::from_digit(count.into(), 16).unwrap_or('?'),
    };
    [
        match (is(IRQS_OFF), is(BH_OFF)) {
            (true, true) => 'D',
            (true, false) => 'd',
            (false, true) => 'b',
            (false, false) => '.',
        },
        match (is(NEED_RESCHED), is(NEED_RESCHED_LAZY), is(PREEMPT_RESCHED)) {
            (true, true, true) => 'B',
            (true, false, true) => 'N',
            (false, true, true) => 'L',
            (true, true, false) => 'b',
            (true, false, false) => 'n',
            (false, false, true) => 'p',
            (false, true, false) => 'l',
            (false, false, false) => '.',
        },
        match (is(NMI), is(HARDIRQ), is(SOFTIRQ)) {
            (true, true, _) => 'Z',
            (true, false, _) => 'z',
            (false, true, true) => 'H',
            (false, true, false) => 'h',
            (false, false, true) => 's',
            (false, false, false) => '.',
        },
        level(head.preempt_count & 0xf),
        level(head.preempt_count >> 4),
    ]
}
