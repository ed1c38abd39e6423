// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables that are filled row by row, and written column by column.

use crate::{
    error::{Error, Result},
    symbols::texts::number_of,
};
use indexmap::IndexSet;
use parquet::{
    basic::{Compression, Encoding},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::{parser::parse_message_type, types::ColumnPath},
};
use std::{
    fs::File,
    io::{self, Write},
    sync::Arc,
};

/// As many rows are written together at most. As the next bound, it is a smaller one in unit tests.
const MAX_ROWS: usize = if cfg!(test) { 1 << 9 } else { 1 << 19 };
/// What these rows take at most, in numbers of 8 bytes.
const MAX_SIZE: usize = if cfg!(test) { 1 << 16 } else { 8 << 20 };
/// Values that are encoded at a time.
const BATCH: usize = 1 << 14;
/// As many bytes of distinct texts are written once in a file.
const MAX_DICTIONARY: usize = 16 << 20;
/// Columns that grow a little from row to row.
const GROWING: [&str; 3] = ["number", "time", "real_time_ns"];

/// What a column holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A number of 32 bits, with a sign.
    Int,
    /// A number of 64 bits, with a sign.
    Long,
    /// A text.
    Text,
    /// Yes or no.
    Flag,
    /// Names with numbers of 64 bits.
    Numbers,
    /// Names with texts.
    Texts,
}

impl Kind {
    /// How it is declared.
    fn declare(self, name: &str) -> String {
        let of = match self {
            Kind::Int => return format!("optional int32 {name};"),
            Kind::Long => return format!("optional int64 {name};"),
            Kind::Text => return format!("optional binary {name} (STRING);"),
            Kind::Flag => return format!("optional boolean {name};"),
            Kind::Numbers => "int64 value",
            Kind::Texts => "binary value (STRING)",
        };
        format!(
            "required group {name} (MAP) {{ repeated group key_value {{ \
             required binary key (STRING); required {of}; }} }}"
        )
    }
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Number(i64),
    Text(&'a str),
    Flag(bool),
    Map(&'a [(&'a str, Cell<'a>)]),
}

/// The values of a column.
#[derive(Debug)]
enum Values {
    Numbers(Vec<i64>),
    Texts(Texts),
    Flags(Vec<bool>),
    Maps {
        names: Texts,
        values: Box<Values>,
        lens: Vec<usize>,
    },
}

impl Values {
    fn new(kind: Kind) -> Self {
        let maps = |values| Values::Maps {
            names: Texts::default(),
            values: Box::new(values),
            lens: Vec::new(),
        };
        match kind {
            Kind::Int | Kind::Long => Values::Numbers(Vec::new()),
            Kind::Text => Values::Texts(Texts::default()),
            Kind::Flag => Values::Flags(Vec::new()),
            Kind::Numbers => maps(Values::Numbers(Vec::new())),
            Kind::Texts => maps(Values::Texts(Texts::default())),
        }
    }

    /// Adds a value, and returns what it takes in memory, in numbers of 8 bytes. One of another kind is
    /// not added.
    fn push(&mut self, cell: Cell<'_>) -> Option<usize> {
        Some(match (self, cell) {
            (Values::Numbers(to), Cell::Number(number)) => {
                to.push(number);
                1
            }
            (Values::Texts(to), Cell::Text(text)) => to.push(text),
            (Values::Flags(to), Cell::Flag(flag)) => {
                to.push(flag);
                1
            }
            (
                Values::Maps {
                    names,
                    values,
                    lens,
                },
                Cell::Map(map),
            ) => {
                let mut size = 1;
                let mut len = 0;
                for (name, cell) in map {
                    if let Some(of_value) = values.push(*cell) {
                        size += of_value + names.push(name);
                        len += 1;
                    }
                }
                lens.push(len);
                size
            }
            _ => return None,
        })
    }
}

/// Texts, each once.
#[derive(Debug, Default)]
struct Texts {
    texts: IndexSet<Box<str>>,
    which: Vec<u32>,
}

impl Texts {
    /// Adds a text, and returns what it takes in memory, in numbers of 8 bytes.
    fn push(&mut self, text: &str) -> usize {
        let nr_known = self.texts.len();
        // It is often that of the row before.
        let last = self.which.last().copied();
        let last = last.filter(|last| &*self.texts[*last as usize] == text);
        let number = last.unwrap_or_else(|| number_of(&mut self.texts, text));
        self.which.push(number);
        match self.texts.len() == nr_known {
            true => 1,
            // The text, and what it takes to find it.
            false => 9 + text.len() / 8,
        }
    }
}

/// A column.
#[derive(Debug)]
struct Column {
    kind: Kind,
    values: Values,
    /// For each row, 1 if it has a value.
    present: Vec<i16>,
}

/// The file of a table, with the rows that are not written yet.
pub(super) struct Table {
    columns: Vec<Column>,
    nr_rows: usize,
    /// What the values take, in numbers of 8 bytes.
    size: usize,
    writer: SerializedFileWriter<io::BufWriter<File>>,
    /// What the file is called in errors.
    path: String,
}

impl Table {
    /// Begins a table without rows.
    pub(super) fn new(
        (file, path): (File, String),
        columns: &[(&'static str, Kind)],
    ) -> Result<Self> {
        let declared = columns.iter().map(|(name, kind)| kind.declare(name));
        let schema = format!("message stackmap {{ {} }}", declared.collect::<String>());
        let file = io::BufWriter::with_capacity(256 << 10, file);
        let writer = parse_message_type(&schema).and_then(|schema| {
            SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties(columns)))
        });
        let columns = columns.iter().map(|(_, kind)| Column {
            kind: *kind,
            values: Values::new(*kind),
            present: Vec::new(),
        });
        Ok(Self {
            columns: columns.collect(),
            nr_rows: 0,
            size: 0,
            writer: writer.map_err(|error| failed(&path, error))?,
            path,
        })
    }

    /// Adds a row: a cell for each column, or none for one without a value; a map is then empty.
    pub(super) fn row<'c>(&mut self, cells: impl IntoIterator<Item = Option<Cell<'c>>>) -> Result {
        self.nr_rows += 1;
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            let size = cell.and_then(|cell| column.values.push(cell));
            column.present.push(size.is_some().into());
            self.size += size.unwrap_or(0);
            if let Values::Maps { lens, .. } = &mut column.values {
                lens.resize(self.nr_rows, 0);
            }
        }
        // Whether a value is there takes a quarter of such a number.
        let size = self.size + self.nr_rows * self.columns.len() / 4;
        match self.nr_rows >= MAX_ROWS || size >= MAX_SIZE {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// Writes the rows, and forgets them.
    fn write(&mut self) -> Result {
        let columns = &mut self.columns;
        let written = self.writer.next_row_group().and_then(|mut rows| {
            for column in columns {
                column.write(&mut rows)?;
                column.present.clear();
                column.values = Values::new(column.kind);
            }
            rows.close()
        });
        written.map_err(|error| failed(&self.path, error))?;
        self.nr_rows = 0;
        self.size = 0;
        Ok(())
    }

    /// Writes what is left, and ends the file.
    pub(super) fn finish(mut self) -> Result {
        if self.nr_rows > 0 {
            self.write()?;
        }
        let written = self.writer.into_inner();
        let flushed = written.and_then(|mut file| Ok(file.flush()?));
        flushed.map_err(|error| failed(&self.path, error))
    }
}

fn properties(columns: &[(&'static str, Kind)]) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("stackmap ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::SNAPPY)
        .set_dictionary_page_size_limit(MAX_DICTIONARY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_statistics_truncate_length(Some(64))
        .set_max_row_group_row_count(None);
    for (name, _) in columns {
        if GROWING.contains(name) {
            let path = ColumnPath::from(*name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    properties.build()
}

impl Column {
    fn write(&self, rows: &mut Rows<'_>) -> Result<(), ParquetError> {
        let (present, kind) = (&self.present, self.kind);
        match &self.values {
            Values::Maps {
                names,
                values,
                lens,
            } => {
                let (present, repeated) = levels(lens);
                write_texts(rows, names, &present, Some(&repeated))?;
                write_values(rows, values, kind, &present, Some(&repeated))
            }
            values => write_values(rows, values, kind, present, None),
        }
    }
}

/// Returns the levels of maps with `lens` entries: whether an entry is there, and whether it is not the first one.
fn levels(lens: &[usize]) -> (Vec<i16>, Vec<i16>) {
    let (mut present, mut repeated) = (Vec::new(), Vec::new());
    for len in lens {
        for index in 0..(*len).max(1) {
            present.push(i16::from(*len > 0));
            repeated.push(i16::from(index > 0));
        }
    }
    (present, repeated)
}

type Rows<'a> = SerializedRowGroupWriter<'a, io::BufWriter<File>>;

fn write_values(
    rows: &mut Rows<'_>,
    values: &Values,
    kind: Kind,
    present: &[i16],
    repeated: Option<&[i16]>,
) -> Result<(), ParquetError> {
    match values {
        Values::Numbers(values) if kind == Kind::Int => {
            let narrow = |value: &i64| *value as i32;
            write::<Int32Type, _>(rows, values, present, repeated, narrow)
        }
        Values::Numbers(values) => {
            write::<Int64Type, _>(rows, values, present, repeated, |value| *value)
        }
        Values::Texts(texts) => write_texts(rows, texts, present, repeated),
        Values::Flags(values) => {
            write::<BoolType, _>(rows, values, present, repeated, |value| *value)
        }
        Values::Maps { .. } => Err(ParquetError::NYI("maps of maps".to_owned())),
    }
}

fn write_texts(
    rows: &mut Rows<'_>,
    texts: &Texts,
    present: &[i16],
    repeated: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let all = texts.texts.iter();
    let all: Vec<_> = all.map(|text| ByteArray::from(&**text)).collect();
    write::<ByteArrayType, _>(rows, &texts.which, present, repeated, |which| {
        all[*which as usize].clone()
    })
}

/// Writes the values of the next column.
fn write<T: DataType, V>(
    rows: &mut Rows<'_>,
    values: &[V],
    present: &[i16],
    repeated: Option<&[i16]>,
    convert: impl Fn(&V) -> T::T,
) -> Result<(), ParquetError> {
    let Some(mut column) = rows.next_column()? else {
        return Err(ParquetError::General("no such column".to_owned()));
    };
    let mut values = values.iter();
    let mut batch = Vec::with_capacity(BATCH);
    let mut at = 0;
    while at < present.len() {
        // A map is not divided.
        let mut end = present.len().min(at + BATCH);
        while repeated.is_some_and(|repeated| repeated.get(end) == Some(&1)) {
            end += 1;
        }
        let present = &present[at..end];
        let nr = present.iter().filter(|present| **present == 1).count();
        batch.clear();
        batch.extend(values.by_ref().take(nr).map(&convert));
        let repeated = repeated.map(|repeated| &repeated[at..end]);
        column
            .typed::<T>()
            .write_batch(&batch, Some(present), repeated)?;
        at = end;
    }
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
