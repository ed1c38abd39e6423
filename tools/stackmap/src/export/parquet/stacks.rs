// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of stacks and of their frames.

use super::{
    table::{Cell, Kind},
    Files,
};
use crate::{
    error::Result,
    export::whole_frame,
    flame::UNKNOWN,
    folded::frame_text,
    source::Loaded,
    stable::Identity,
    symbols::{frames::parts, Frame, Place},
    user::{words::At, UserFrame},
};

/// The columns of `stacks`, and where they are.
pub(super) const STACKS: [(&str, Kind); 6] = [
    ("stack_id", Kind::Text),
    ("side", Kind::Text),
    ("stable", Kind::Flag),
    ("frames", Kind::INT),
    ("ends", Kind::Text),
    ("folded", Kind::Text),
];

/// The columns of `frames`.
pub(super) const FRAMES: [(&str, Kind); 12] = [
    ("stack_id", Kind::Text),
    ("depth", Kind::INT),
    ("function", Kind::Text),
    ("module", Kind::Text),
    ("path", Kind::Text),
    ("build_id", Kind::Text),
    ("function_offset", Kind::LONG),
    ("file_offset", Kind::LONG),
    ("address", Kind::Text),
    ("source_file", Kind::Text),
    ("source_line", Kind::INT),
    ("inlined", Kind::Flag),
];

/// A frame, and what it is called in a folded stack.
#[derive(Default)]
struct Row<'a> {
    name: String,
    function: Option<&'a str>,
    module: Option<&'a str>,
    path: Option<String>,
    build_id: Option<&'a str>,
    function_offset: Option<u64>,
    file_offset: Option<u64>,
    address: Option<String>,
    source: Option<(&'a str, u32)>,
    inlined: bool,
}

/// A stack that is written.
pub(super) enum Stack<'a> {
    /// One of the kernel, with its addresses.
    Kernel(&'a [u64]),
    /// One of the kernel, as text.
    Text(&'a [String]),
    /// A user stack, with its words.
    User(&'a [u64]),
}

impl Stack<'_> {
    /// Adds the stack and its frames to their tables.
    pub(super) fn write(
        &self,
        identity: Identity,
        loaded: &Loaded,
        addresses: bool,
        [stacks, frames]: [&mut Files; 2],
        dir: &mut crate::output::Directory,
    ) -> Result {
        let id = identity.stable_id.to_string();
        let rows: Vec<Row<'_>> = match self {
            Stack::Kernel(ips) => {
                let all = loaded.symbols.stack(ips);
                let all = all.flat_map(|at| loaded.symbols.frames(at.ip, at.exact));
                all.map(|frame| of_kernel(&frame, addresses)).collect()
            }
            Stack::Text(texts) => {
                let texts = loaded.symbols.visible(texts).iter();
                texts.map(|text| of_text(text, addresses)).collect()
            }
            Stack::User(words) => {
                let all = loaded.user.stack(words);
                let all = all.flat_map(|which| loaded.user.frames(which));
                all.map(|frame| of_user(&frame, loaded)).collect()
            }
        };
        let names = rows.iter().rev().map(|row| frame_text(&row.name));
        let folded = names.collect::<Vec<_>>().join(";");
        let table = &mut stacks.table;
        table.set(0, Cell::Text(&id));
        let side = match self {
            Stack::User(_) => "user",
            _ => "kernel",
        };
        table.set(1, Cell::Text(side));
        table.set(2, Cell::Flag(identity.stable));
        table.set(3, Cell::Number(rows.len() as i128));
        if let Stack::User(words) = self {
            table.set(4, Cell::Text(&loaded.user.end(words).to_string()));
        }
        table.set(5, Cell::Text(&folded));
        stacks.end_row(dir)?;
        for (depth, row) in rows.iter().enumerate() {
            let table = &mut frames.table;
            let mut text = |column, text: Option<&str>| {
                if let Some(text) = text {
                    table.set(column, Cell::Text(text));
                }
            };
            text(0, Some(&id));
            text(2, row.function);
            text(3, row.module);
            text(4, row.path.as_deref());
            text(5, row.build_id);
            text(8, row.address.as_deref());
            text(9, row.source.map(|(file, _)| file));
            let mut number = |column, number: Option<u64>| {
                if let Some(number) = number {
                    table.set(column, Cell::Number(number.into()));
                }
            };
            number(1, Some(depth as u64));
            number(6, row.function_offset);
            number(7, row.file_offset);
            number(10, row.source.map(|(_, line)| line.into()));
            table.set(11, Cell::Flag(row.inlined));
            frames.end_row(dir)?;
        }
        Ok(())
    }
}

fn of_kernel<'a>(frame: &Frame<'a>, addresses: bool) -> Row<'a> {
    Row {
        name: match frame.place {
            Place::Unknown if !addresses => UNKNOWN.to_owned(),
            _ => frame.plain().to_string(),
        },
        function: frame.name(),
        module: frame.module(),
        function_offset: frame.offset(),
        address: addresses.then(|| format!("0x{:x}", frame.ip)),
        source: frame.source.map(|source| (&source.file[..], source.line)),
        inlined: frame.inlined,
        ..Row::default()
    }
}

fn of_text(text: &str, addresses: bool) -> Row<'_> {
    let shown = whole_frame(text, addresses);
    let (function, module) = parts(text);
    // With the option sym-addr the kernel prints the address behind the name.
    let function = function.split_once(" <").map_or(function, |(name, _)| name);
    let is_named = whole_frame(text, false) != UNKNOWN;
    let name = match module {
        _ if !is_named => shown.into_owned(),
        Some(module) => format!("{function} [{module}]"),
        None => parts(&shown).0.to_owned(),
    };
    let function = is_named.then_some(function);
    Row {
        name,
        function,
        module: module.filter(|_| is_named),
        ..Row::default()
    }
}

fn of_user<'a>(frame: &UserFrame<'a>, loaded: &'a Loaded) -> Row<'a> {
    let user = &loaded.user;
    let (index, file_offset, address) = match frame.at {
        At::File { index, offset } => (Some(index), Some(offset), None),
        At::Address { address, .. } => (None, None, Some(address)),
    };
    let binary = index.and_then(|index| user.binaries.get(index));
    let named = frame.named.filter(|named| !named.inlined);
    Row {
        name: frame.plain(),
        function: frame.function(),
        path: binary.map(|binary| binary.path.to_string_lossy().into_owned()),
        build_id: index.and_then(|index| user.build_id(index)),
        function_offset: named.map(|named| named.offset),
        file_offset,
        address: address.map(|address| format!("0x{address:x}")),
        source: frame.source().map(|source| (&source.file[..], source.line)),
        inlined: frame.named.is_some_and(|named| named.inlined),
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        symbols::{SourceLine, Symbol},
        user::{names::Named, WhichFrame},
    };

    fn line() -> SourceLine {
        SourceLine {
            file: "a.c".into(),
            line: 7,
        }
    }

    #[test]
    fn inlined_frames_of_the_kernel_have_lines_and_no_offsets() {
        let symbol = Symbol {
            name: "f",
            module: Some("m"),
            offset: 5,
            size: Some(9),
        };
        let source = line();
        for (inlined, offset) in [(true, None), (false, Some(5))] {
            let frame = Frame {
                ip: u64::MAX << 12,
                place: Place::Symbol(symbol),
                inlined,
                source: Some(&source),
            };
            let row = of_kernel(&frame, false);
            assert_eq!((row.inlined, row.function_offset), (inlined, offset));
            assert_eq!((row.function, row.module), (Some("f"), Some("m")));
            assert_eq!((row.source, row.address), (Some(("a.c", 7)), None));
        }
        let frame = Frame {
            ip: u64::MAX << 12,
            place: Place::Unknown,
            inlined: false,
            source: None,
        };
        for (addresses, name, address) in [
            (false, UNKNOWN, None),
            (true, "0xfffffffffffff000", Some("0xfffffffffffff000")),
        ] {
            let row = of_kernel(&frame, addresses);
            assert_eq!((&row.name[..], row.address.as_deref()), (name, address));
        }
    }

    #[test]
    fn inlined_user_frames_have_lines_and_no_offsets() {
        let loaded = Loaded::default();
        let at = At::File {
            index: 2,
            offset: 16,
        };
        let which = WhichFrame { at, exact: true };
        for (inlined, offset) in [(true, None), (false, Some(5))] {
            let named = Named {
                function: Some("f".into()),
                offset: 5,
                size: Some(9),
                inlined,
                source: Some(line()),
                place: at,
            };
            let mut frame = loaded.user.frames(which).next().unwrap();
            frame.named = Some(&named);
            let row = of_user(&frame, &loaded);
            assert_eq!((row.inlined, row.function_offset), (inlined, offset));
            assert_eq!((row.function, row.source), (Some("f"), Some(("a.c", 7))));
            assert_eq!((row.file_offset, row.address), (Some(16), None));
        }
    }

    #[test]
    fn texts_are_functions_or_addresses_that_are_hidden() {
        let address = "0xffffffffc0123456";
        for (text, addresses, name, function, module) in [
            ("f+0x1/0x2 [m]", false, "f [m]", Some("f"), Some("m")),
            ("f+0x1/0x2", true, "f", Some("f"), None),
            (
                "f <ffffffff81000000>",
                false,
                "f <(address)>",
                Some("f"),
                None,
            ),
            (address, false, UNKNOWN, None, None),
            (address, true, address, None, None),
        ] {
            let row = of_text(text, addresses);
            assert_eq!(row.name, name);
            assert_eq!((row.function, row.module), (function, module), "{text}");
        }
    }
}
