// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of stacks and of their frames.

use super::table::{Cell, Kind, Table};
use crate::{
    error::Result,
    export::json::UserFields,
    flame::UNKNOWN,
    folded::frame_text,
    source::Loaded,
    stable::Identity,
    symbols::{Frame, Place},
    user::UserFrame,
};
use std::borrow::Cow;

/// The columns of `stacks`, and where they are.
pub(super) const STACKS: [(&str, Kind); 6] = [
    ("stack_id", Kind::Text),
    ("side", Kind::Text),
    ("stable", Kind::Flag),
    ("frames", Kind::Int),
    ("ends", Kind::Text),
    ("folded", Kind::Text),
];

/// The columns of `frames`.
pub(super) const FRAMES: [(&str, Kind); 12] = [
    ("stack_id", Kind::Text),
    ("depth", Kind::Int),
    ("function", Kind::Text),
    ("module", Kind::Text),
    ("path", Kind::Text),
    ("build_id", Kind::Text),
    ("function_offset", Kind::Long),
    ("file_offset", Kind::Long),
    ("address", Kind::Text),
    ("source_file", Kind::Text),
    ("source_line", Kind::Int),
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
        [stacks, frames]: [&mut Table; 2],
    ) -> Result {
        let id = identity.stable_id.to_string();
        let rows: Vec<Row<'_>> = match self {
            Stack::Kernel(ips) => {
                let all = loaded.symbols.stack(ips);
                let all = all.flat_map(|at| loaded.symbols.frames(at.ip, at.exact));
                all.map(|frame| of_kernel(&frame, addresses)).collect()
            }
            Stack::User(words) => {
                let all = loaded.user.stack(words);
                let all = all.flat_map(|which| loaded.user.frames(which));
                all.map(|frame| of_user(&frame, loaded)).collect()
            }
        };
        let names = rows.iter().rev().map(|row| frame_text(&row.name));
        let folded = names.collect::<Vec<_>>().join(";");
        let (side, ends) = match self {
            Stack::User(words) => ("user", Some(loaded.user.end(words).to_string())),
            _ => ("kernel", None),
        };
        stacks.row([
            Some(Cell::Text(&id)),
            Some(Cell::Text(side)),
            Some(Cell::Flag(identity.stable)),
            Some(Cell::Number(rows.len() as i64)),
            ends.as_deref().map(Cell::Text),
            Some(Cell::Text(&folded)),
        ])?;
        for (depth, row) in rows.iter().enumerate() {
            let number = |number: Option<u64>| number.map(|number| Cell::Number(number as i64));
            frames.row([
                Some(Cell::Text(&id)),
                Some(Cell::Number(depth as i64)),
                row.function.map(Cell::Text),
                row.module.map(Cell::Text),
                row.path.as_deref().map(Cell::Text),
                row.build_id.map(Cell::Text),
                number(row.function_offset),
                number(row.file_offset),
                row.address.as_deref().map(Cell::Text),
                row.source.map(|(file, _)| Cell::Text(file)),
                number(row.source.map(|(_, line)| line.into())),
                Some(Cell::Flag(row.inlined)),
            ])?;
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

fn of_user<'a>(frame: &UserFrame<'a>, loaded: &'a Loaded) -> Row<'a> {
    let fields = UserFields::new(frame, &loaded.user);
    Row {
        name: frame.plain(),
        function: fields.function,
        path: fields.path.map(Cow::into_owned),
        build_id: fields.build_id,
        function_offset: fields.offset,
        file_offset: fields.file_offset,
        address: fields.address,
        source: fields.file.zip(fields.line),
        inlined: fields.inlined,
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::{SourceLine, Symbol};

    #[test]
    fn inlined_frames_of_the_kernel_have_lines_and_no_offsets() {
        let symbol = Symbol {
            name: "f",
            module: Some("m"),
            offset: 5,
            size: Some(9),
        };
        let source = SourceLine {
            file: "a.c".into(),
            line: 7,
        };
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
}
