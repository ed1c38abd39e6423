// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables that are filled row by row, and written column by column.

use crate::error::{Error, Result};
use parquet::{
    basic::{Compression, Encoding},
    data_type::{
        BoolType, ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType,
        Int32Type, Int64Type,
    },
    errors::ParquetError,
    file::{
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::{parser::parse_message_type, types::ColumnPath},
};
use std::{collections::HashMap, fmt::Write, fs::File, io, rc::Rc, sync::Arc};

/// So many values are encoded at a time.
const BATCH: usize = 1 << 14;
/// As many bytes of distinct texts are written once in a file.
const MAX_DICTIONARY: usize = 16 << 20;
/// Columns that grow a little from row to row, which no field has.
const GROWING: [&str; 3] = ["number", "time", "real_time_ns"];
/// A decimal number of 20 digits has so many bytes.
const WIDE: usize = 9;
/// What a value takes in memory, at most, in numbers of 8 bytes.
const CELL: usize = 2;

/// What a column holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A number of so many bits, 8 to 64.
    Number { bits: u8, signed: bool },
    /// A number of 64 bits, with and without a sign: in decimal.
    Wide,
    /// A text.
    Text,
    /// Yes or no.
    Flag,
    /// Names with values.
    Map,
}

impl Kind {
    /// A number of 32 bits, with a sign.
    pub(super) const INT: Self = Kind::Number {
        bits: 32,
        signed: true,
    };
    /// One of 64 bits.
    pub(super) const LONG: Self = Kind::Number {
        bits: 64,
        signed: true,
    };

    /// What holds the numbers of both.
    pub(super) fn widened(self, other: Self) -> Self {
        let (one, two) = match (self, other) {
            (
                Kind::Number { bits, signed },
                Kind::Number {
                    bits: others,
                    signed: other_signed,
                },
            ) => match (signed, other_signed) {
                (true, false) => (bits, others * 2),
                (false, true) => (bits * 2, others),
                _ => (bits, others),
            },
            (one, other) if one == other => return one,
            _ => return Kind::Wide,
        };
        let signed = |kind| matches!(kind, Kind::Number { signed: true, .. });
        match one.max(two) {
            bits @ ..=64 => Kind::Number {
                bits,
                signed: signed(self) || signed(other),
            },
            _ => Kind::Wide,
        }
    }

    /// How it is declared.
    fn declare(self, name: &str, out: &mut String) {
        // Writing into a string does not fail.
        let _ = match self {
            Kind::Number {
                bits: 32,
                signed: true,
            } => write!(out, "optional int32 {name};"),
            Kind::Number {
                bits: 64,
                signed: true,
            } => write!(out, "optional int64 {name};"),
            Kind::Number { bits, signed } => {
                let of = if bits == 64 { "int64" } else { "int32" };
                write!(out, "optional {of} {name} (INTEGER({bits},{signed}));")
            }
            Kind::Wide => write!(
                out,
                "optional fixed_len_byte_array({WIDE}) {name} (DECIMAL(20,0));"
            ),
            Kind::Text => write!(out, "optional binary {name} (STRING);"),
            Kind::Flag => write!(out, "optional boolean {name};"),
            Kind::Map => write!(
                out,
                "required group {name} (MAP) {{ repeated group key_value {{ \
                 required binary key (STRING); required binary value (STRING); }} }}"
            ),
        };
    }
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Number(i128),
    Text(&'a str),
    Flag(bool),
    Map(&'a [(String, String)]),
}

/// The values of a column.
#[derive(Debug)]
enum Values {
    Numbers(Vec<i64>),
    Wide(Vec<i128>),
    Texts(Texts),
    Flags(Vec<bool>),
    Maps(Vec<Vec<(String, String)>>),
}

impl Values {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Number { .. } => Values::Numbers(Vec::new()),
            Kind::Wide => Values::Wide(Vec::new()),
            Kind::Text => Values::Texts(Texts::default()),
            Kind::Flag => Values::Flags(Vec::new()),
            Kind::Map => Values::Maps(Vec::new()),
        }
    }
}

/// Texts, each once.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<Rc<str>, u32>,
    texts: Vec<Rc<str>>,
    which: Vec<u32>,
}

impl Texts {
    /// Adds a text, and returns how many bytes were not there yet.
    fn push(&mut self, text: &str) -> usize {
        // It is often that of the row before.
        if let Some(last) = self.which.last() {
            if &*self.texts[*last as usize] == text {
                self.which.push(*last);
                return 0;
            }
        }
        if let Some(number) = self.numbers.get(text) {
            self.which.push(*number);
            return 0;
        }
        let (number, text): (_, Rc<str>) = (self.texts.len() as u32, text.into());
        self.texts.push(text.clone());
        self.which.push(number);
        let len = text.len();
        self.numbers.insert(text, number);
        len
    }
}

/// A column.
#[derive(Debug)]
struct Column {
    name: String,
    kind: Kind,
    values: Values,
    /// For each row, 1 if it has a value.
    present: Vec<i16>,
}

/// Rows that are not written yet.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<Column>,
    nr_rows: usize,
    /// What the texts take, in numbers of 8 bytes.
    nr_words: usize,
}

impl Table {
    /// One without rows. No name is there twice.
    pub(super) fn new(columns: impl IntoIterator<Item = (String, Kind)>) -> Self {
        let columns = columns.into_iter().map(|(name, kind)| Column {
            name,
            kind,
            values: Values::new(kind),
            present: Vec::new(),
        });
        Self {
            columns: columns.collect(),
            nr_rows: 0,
            nr_words: 0,
        }
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> usize {
        self.nr_rows
    }

    /// How much memory they take, in numbers of 8 bytes.
    pub(super) fn size(&self) -> usize {
        self.nr_rows * self.columns.len() * CELL + self.nr_words
    }

    /// Sets a column of the row that is being made. A cell of another kind than its column is none.
    pub(super) fn set(&mut self, column: usize, cell: Cell<'_>) {
        let column = &mut self.columns[column];
        if column.present.len() > self.nr_rows {
            return;
        }
        match (&mut column.values, cell) {
            (Values::Numbers(to), Cell::Number(number)) => to.push(number as i64),
            (Values::Wide(to), Cell::Number(number)) => to.push(number),
            (Values::Texts(to), Cell::Text(text)) => {
                let new = to.push(text);
                if new > 0 {
                    // The text, and what it takes to find it.
                    self.nr_words += 8 + new / 8;
                }
            }
            (Values::Flags(to), Cell::Flag(flag)) => to.push(flag),
            (Values::Maps(to), Cell::Map(map)) => to.push(map.to_vec()),
            _ => return,
        }
        column.present.push(1);
    }

    /// Ends the row. What was not set has no value.
    pub(super) fn end_row(&mut self) {
        self.nr_rows += 1;
        for column in &mut self.columns {
            column.present.resize(self.nr_rows, 0);
        }
    }

    /// Writes the rows to a file of their own, and forgets them.
    pub(super) fn write(&mut self, file: File, path: &str) -> Result {
        let failed = |error| failed(path, error);
        let mut schema = "message stackmap {".to_owned();
        for column in &self.columns {
            column.kind.declare(&column.name, &mut schema);
        }
        schema.push('}');
        let schema = parse_message_type(&schema).map_err(failed)?;
        let file = io::BufWriter::with_capacity(256 << 10, file);
        let properties = Arc::new(self.properties());
        let mut writer =
            SerializedFileWriter::new(file, Arc::new(schema), properties).map_err(failed)?;
        let mut rows = writer.next_row_group().map_err(failed)?;
        for column in &mut self.columns {
            column.write(&mut rows).map_err(failed)?;
            column.present.clear();
            column.values = Values::new(column.kind);
        }
        rows.close().map_err(failed)?;
        writer.close().map_err(failed)?;
        self.nr_rows = 0;
        self.nr_words = 0;
        Ok(())
    }

    fn properties(&self) -> WriterProperties {
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("stackmap ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Compression::SNAPPY)
            .set_dictionary_page_size_limit(MAX_DICTIONARY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_statistics_truncate_length(Some(64))
            .set_max_row_group_row_count(None);
        for column in &self.columns {
            if GROWING.contains(&&column.name[..]) {
                let path = ColumnPath::from(column.name.clone());
                properties = properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
            }
        }
        properties.build()
    }
}

impl Column {
    fn write(&self, rows: &mut Rows<'_>) -> Result<(), ParquetError> {
        let present = &self.present;
        match &self.values {
            Values::Numbers(values) => match self.kind {
                Kind::Number { bits: 64, .. } => {
                    write::<Int64Type, _>(rows, values, present, |value| *value)
                }
                _ => write::<Int32Type, _>(rows, values, present, |value| *value as i32),
            },
            Values::Wide(values) => {
                write::<FixedLenByteArrayType, _>(rows, values, present, |value| {
                    let bytes = value.to_be_bytes();
                    FixedLenByteArray::from(bytes[bytes.len() - WIDE..].to_vec())
                })
            }
            Values::Texts(texts) => {
                let all = texts.texts.iter();
                let all: Vec<_> = all.map(|text| ByteArray::from(&**text)).collect();
                write::<ByteArrayType, _>(rows, &texts.which, present, |which| {
                    all[*which as usize].clone()
                })
            }
            Values::Flags(values) => write::<BoolType, _>(rows, values, present, |value| *value),
            Values::Maps(maps) => {
                write_map(rows, maps, |(name, _)| name)?;
                write_map(rows, maps, |(_, value)| value)
            }
        }
    }
}

type Rows<'a> = SerializedRowGroupWriter<'a, io::BufWriter<File>>;

/// Writes the values of the next column.
fn write<T: DataType, V>(
    rows: &mut Rows<'_>,
    values: &[V],
    present: &[i16],
    convert: impl Fn(&V) -> T::T,
) -> Result<(), ParquetError> {
    let Some(mut column) = rows.next_column()? else {
        return Err(ParquetError::General("no such column".to_owned()));
    };
    let mut values = values.iter();
    let mut batch = Vec::with_capacity(BATCH);
    for present in present.chunks(BATCH) {
        let nr = present.iter().filter(|present| **present == 1).count();
        batch.clear();
        batch.extend(values.by_ref().take(nr).map(&convert));
        column
            .typed::<T>()
            .write_batch(&batch, Some(present), None)?;
    }
    column.close()
}

/// Writes the names or the values of a column of maps.
fn write_map(
    rows: &mut Rows<'_>,
    maps: &[Vec<(String, String)>],
    part: impl Fn(&(String, String)) -> &String,
) -> Result<(), ParquetError> {
    let Some(mut column) = rows.next_column()? else {
        return Err(ParquetError::General("no such column".to_owned()));
    };
    let (mut values, mut present, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    for map in maps {
        for (index, entry) in map.iter().enumerate() {
            values.push(ByteArray::from(&part(entry)[..]));
            present.push(1);
            repeated.push(i16::from(index > 0));
        }
        if map.is_empty() {
            present.push(0);
            repeated.push(0);
        }
    }
    let column_of_texts = column.typed::<ByteArrayType>();
    column_of_texts.write_batch(&values, Some(&present), Some(&repeated))?;
    column.close()
}

fn failed(path: &str, error: ParquetError) -> Error {
    let error = match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    };
    Error::io(format!("write {path}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_widen_to_what_holds_both() {
        let number = |bits, signed| Kind::Number { bits, signed };
        for (one, other, want) in [
            (number(32, true), number(32, true), number(32, true)),
            (number(8, false), number(64, false), number(64, false)),
            (number(16, true), number(8, true), number(16, true)),
            (number(32, false), number(32, true), number(64, true)),
            (number(8, false), number(64, true), number(64, true)),
            (number(16, false), number(8, true), number(32, true)),
            (number(64, false), number(8, true), Kind::Wide),
            (Kind::Wide, number(8, true), Kind::Wide),
            (Kind::Wide, Kind::Wide, Kind::Wide),
        ] {
            assert_eq!(one.widened(other), want, "{one:?} {other:?}");
            assert_eq!(other.widened(one), want, "{other:?} {one:?}");
        }
    }
}
