// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is done with hostile inputs, by the fuzzers and by the tests that replay their corpus.
//!
//! Nothing may panic or take memory that the input does not account for; and what holds of every
//! input is asserted.

use stackmap::{
    capture::{member, Capture, Described},
    events,
    export::trace_dat,
    notes::Notes,
    resolve::{Format, Resolver},
    ring::{
        decode::Trace, fields::About, format::Formats, page::Layout, printk::Texts, stream::Pages,
        tasks::Tasks,
    },
    source::Loaded,
    stack_map_bin::{self, Order, Stack},
    stacks::Stacks,
    stat::Stat,
    symbols::{kallsyms::Kallsyms, modules::Modules, Symbols},
    trace::{Binds, Event, Sides},
    user::names::Places,
};
use std::{
    io::{Cursor, Read},
    rc::Rc,
};

/// A map: a map that is written reads back the same.
pub(crate) fn stack_map_bin(data: &[u8]) {
    let Ok(stacks) = Stacks::read(data, "input") else {
        return;
    };
    let frames: usize = stacks.iter().map(|stack| stack.ips.len()).sum();
    assert_eq!(data.len(), 16 + 16 * stacks.len() + 8 * frames);
    for order in [Order::Little, Order::Big] {
        let mut written = Vec::new();
        stack_map_bin::write(&mut written, order, stacks.load_id(), stacks.iter()).unwrap();
        let again = Stacks::read(&written[..], "again").unwrap();
        assert!(stacks.iter().eq(again.iter()));
        assert_eq!(stacks.load_id(), again.load_id());
    }
}

/// A table of names, and a list of modules: nothing is before the symbol that it is said to be in.
pub(crate) fn kallsyms(data: &[u8]) {
    let modules = Modules::parse(&String::from_utf8_lossy(data));
    let Ok(table) = Kallsyms::parse(data.to_vec(), &modules, "input") else {
        return;
    };
    let ips = [0, 1, 0x7fff_ffff, 0xffff_ffff_8100_0000, u64::MAX];
    // Addresses near those of the table.
    let text = String::from_utf8_lossy(data);
    let near = text.lines().filter_map(|line| {
        let digits = line.split_ascii_whitespace().next()?;
        u64::from_str_radix(digits, 16).ok()
    });
    let near: Vec<_> = near
        .take(64)
        .flat_map(|ip| [ip, ip.wrapping_add(1)])
        .collect();
    let frames: Vec<_> = ips
        .into_iter()
        .chain(near)
        .flat_map(|ip| [(ip, true), (ip, false)])
        .collect();
    let slim = table.slim(frames.iter().copied());
    let slim = Kallsyms::parse(slim.into_bytes(), &modules, "slim").unwrap();
    for (ip, first) in frames {
        let symbol = table.symbol(ip, first);
        if let Some(symbol) = symbol {
            assert!(symbol.offset <= ip);
            assert!(symbol.size.is_none_or(|size| symbol.offset <= size));
        }
        assert_eq!(symbol, slim.symbol(ip, first));
    }
}

/// A trace: what has no ids is copied as it is, but for what controls terminals.
pub(crate) fn trace(data: &[u8]) {
    let mut stacks = Stacks::default();
    for (id, ips) in [(1, &[0x1000, 0x2000][..]), (50407, &[])] {
        let ref_count = 1;
        stacks.push(Stack { id, ref_count, ips }).unwrap();
    }
    let loaded = || Loaded {
        stacks: {
            let mut copy = Stacks::default();
            stacks.iter().for_each(|stack| copy.push(stack).unwrap());
            copy
        },
        slot_bits: Some(15),
        ..Loaded::default()
    };
    for inline in [false, true] {
        let format = Format {
            inline,
            offsets: inline,
        };
        let mut reload = || Ok(None);
        let mut resolver = Resolver::new(loaded(), format, &mut reload);
        let mut out = Vec::new();
        resolver.run(data, None, "input", &mut out).unwrap();
        if memchr::memmem::find(data, b"<stack_id ").is_none() {
            let is_harmless = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
            assert!(out == data || !data.iter().all(is_harmless));
            assert!(out
                .iter()
                .all(|byte| is_harmless(byte) || *byte == b'\r' || *byte > 0x7f));
        }
    }
    let _ = Stat::parse(&String::from_utf8_lossy(data)).drops();
}

/// Up to a zero the description of an event, then the pages of a ring buffer: every record comes out
/// in its order, and whatever is in it stays on its line.
pub(crate) fn ring(data: &[u8]) {
    let zero = data.iter().position(|byte| *byte == 0);
    let (text, pages) = data.split_at(zero.unwrap_or(data.len()));
    let text = String::from_utf8_lossy(text);
    let pages = pages.get(1..).unwrap_or_default();
    let loaded = Loaded::default();
    let layout = Layout::parse(HEADER_PAGE).unwrap();
    let mut formats = Formats::default();
    for system in ["ftrace", "sys"] {
        let _ = formats.add(system, &text);
    }
    let trace = Trace {
        about: Rc::new(About {
            formats,
            texts: Texts::parse(&text),
        }),
        tasks: Tasks::new(&[1].into(), data, &text, |_| None, |_| None),
        nanos: true,
    };
    let pages = || Pages::new(pages, layout, "input");
    let mut notes = Notes::default();
    let mut count = 0;
    let mut writer = trace_dat::Writer::new(&loaded, layout, &trace.about.formats).unwrap();
    let mut out = |event: &Event, sides: Sides<'_>| {
        count += 1;
        writer.event(event, sides).unwrap();
        let text = event.fields.text(&loaded.symbols);
        assert!(!text.contains(char::is_control), "{text:?}");
        let _ = event
            .fields
            .values(false)
            .map(|values| serde_json::to_string(&values));
        Ok(())
    };
    let size = data.len() as u64;
    let binds = trace.binds(pages(), None).unwrap_or_default();
    let read =
        events::for_each_record(&trace, pages(), size, &binds, &loaded, &mut notes, &mut out);
    let mut reload = || Ok(None);
    let mut resolver = Resolver::new(Loaded::default(), Format::default(), &mut reload);
    let mut out = Vec::new();
    let resolved = resolver.records(&trace, pages(), size, &binds, &mut out);
    assert_eq!(read.is_ok(), resolved.is_ok());
    let mut file = Vec::new();
    writer
        .finish(&Described::default(), &trace.tasks, &mut file)
        .unwrap();
    assert!(file.len().is_multiple_of(layout.page_size()));
    assert!(count <= data.len() / 4);
}

const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;
\tfield: local_t commit;\toffset:8;\tsize:8;
\tfield: char data;\toffset:16;\tsize:4080;
";

/// A capture: all of its members.
pub(crate) fn capture(data: &[u8]) {
    let Ok(mut capture) = Capture::new(Cursor::new(data.to_vec()), "input".to_owned()) else {
        return;
    };
    let _ = capture.stat();
    let stacks = capture.stacks().unwrap_or_default();
    let symbols = Symbols {
        kallsyms: capture.kallsyms().ok(),
        ..Symbols::default()
    };
    let manifest = capture.manifest().clone();
    let loaded = Loaded {
        stacks,
        symbols,
        slot_bits: manifest.slot_bits,
        trace_load: manifest.load_id,
        manifest: Some(manifest),
        ..Loaded::default()
    };
    let mut notes = Notes::default();
    let described = capture.described().unwrap_or_default();
    if let Ok((trace, layout)) = capture.ring() {
        let mut writer = trace_dat::Writer::new(&loaded, layout, &trace.about.formats).unwrap();
        let mut out = |event: &Event, sides: Sides<'_>| {
            let _ = event.fields.text(&loaded.symbols);
            writer.event(event, sides)
        };
        if let Ok(member) = capture.member(member::PAGES) {
            let pages = Pages::new(member.take(1 << 20), layout, "input");
            let binds = Binds::default();
            let _ =
                events::for_each_record(&trace, pages, 0, &binds, &loaded, &mut notes, &mut out);
        }
        let mut file = Vec::new();
        writer.finish(&described, &trace.tasks, &mut file).unwrap();
    }
    let _ = notes.lines(Some(&loaded));
    if let Ok(mut user) = capture.user(Places::default(), false) {
        user.prime(&mut |_| {});
        for stack in user.stacks.iter() {
            let frames = user.stack(stack.ips).flat_map(|which| user.frames(which));
            frames.for_each(|frame| drop(frame.to_string()));
        }
    }
}
