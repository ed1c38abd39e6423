// SPDX-License-Identifier: MIT OR Apache-2.0

//! The fields of an event. They are decoded on demand, because most of them are never shown.

use super::{
    format::{Field, Format, Formats, Special, Value},
    printk::Texts,
    show::Show,
};
use crate::{
    address::{may_be_address, without_addresses, HIDDEN},
    symbols::{Frame, Symbols},
};
use serde::{
    ser::{SerializeMap, SerializeSeq},
    Serialize, Serializer,
};
use std::{borrow::Cow, fmt::Write, rc::Rc};

/// No event's fields take more as a text, in bytes: a text may be far longer than what it is of.
const MAX_TEXT: usize = 4 << 20;
/// What stands for the rest.
const MORE: &str = "...";

/// The fields of an event as it was recorded, and what describes them.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    pub(super) about: Rc<About>,
    pub(super) format: Option<Rc<Format>>,
    pub(super) data: Vec<u8>,
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data && self.format == other.format
    }
}

impl Eq for Fields {}

/// What describes all events of a trace.
#[derive(Debug, Default)]
pub struct About {
    /// Their fields.
    pub formats: Formats,
    /// The kernel's own texts.
    pub texts: Texts,
}

impl Fields {
    /// The system of the event, if that is known.
    pub fn system(&self) -> Option<&str> {
        self.format.as_ref().map(|format| &format.system[..])
    }

    /// The fields as text for people: `name=value`, with control characters and line ends escaped.
    pub fn text(&self, symbols: &Symbols) -> String {
        let mut text = String::new();
        self.write(symbols, true, &mut text);
        text
    }

    /// The record.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The number in the field of this name, if it was recorded and is one. A sign is extended.
    pub fn number(&self, name: &str) -> Option<u64> {
        let format = self.format.as_ref()?;
        self.about.formats.number(format, name, &self.data)
    }

    /// The same with its sign, by the name that the field is shown with, too.
    pub fn signed(&self, name: &str) -> Option<i128> {
        match self.value(self.field(name)?)? {
            Value::Unsigned(number) => Some(number.into()),
            Value::Signed(number) => Some(number.into()),
            _ => None,
        }
    }

    /// The value of such a field, as it is shown.
    pub fn shown_value(&self, name: &str, symbols: &Symbols) -> Option<String> {
        let field = self.field(name)?;
        let mut text = String::new();
        write_value(&self.value(field)?, &field.show, symbols, &mut text);
        Some(text)
    }

    /// The names of the fields that are numbers, as they are shown.
    pub fn numbers(&self) -> Vec<&str> {
        self.names_of(|value| matches!(value, Some(Value::Unsigned(_) | Value::Signed(_))))
    }

    /// The names of the fields that have a value, as they are shown.
    pub fn names(&self) -> Vec<&str> {
        self.names_of(|value| value.is_some())
    }

    fn names_of(&self, is_one: impl Fn(Option<Value<'_>>) -> bool) -> Vec<&str> {
        let fields = self.format.iter();
        let fields = fields.flat_map(|format| shown(&format.fields));
        let fields = fields.filter(|field| is_one(self.value(field)));
        fields.map(|field| shown_name(&field.name)).collect()
    }

    /// The text in the field of this name, if it was recorded and is one.
    pub fn string(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.value(self.format.as_ref()?.field(name)?)? {
            Value::Text(text) => Some(String::from_utf8_lossy(text)),
            _ => None,
        }
    }

    /// What describes them, if that is known.
    pub fn format(&self) -> Option<&Format> {
        self.format.as_deref()
    }

    /// The number in the field at this index of the format, for an export: kernel addresses only if
    /// `addresses`.
    pub fn exported(&self, index: usize, addresses: bool) -> Option<i128> {
        let field = self.format.as_ref()?.fields.get(index)?;
        let value = self.value(field)?;
        match value {
            _ if !addresses && has_address(field, &value) => None,
            Value::Unsigned(number) => Some(number.into()),
            Value::Signed(number) => Some(number.into()),
            _ => None,
        }
    }

    /// The fields as text for an export: kernel addresses only if `addresses`.
    pub fn export(&self, symbols: &Symbols, addresses: bool) -> String {
        if addresses {
            return self.text(symbols);
        }
        let mut text = String::new();
        self.write(symbols, false, &mut text);
        // Texts may have some, too.
        without_addresses(&text).into_owned()
    }

    /// Gives `out` each field as it is shown, by name: a number that stands for nothing else stays
    /// one. Where a text says more, it is the field `fields`. Kernel addresses only
    /// if `addresses`.
    pub fn each(&self, symbols: &Symbols, addresses: bool, out: &mut dyn FnMut(&str, Said<'_>)) {
        let plain = self.format.as_ref();
        let Some(format) = plain.filter(|format| format.special == Special::None) else {
            let text = self.export(symbols, addresses);
            if !text.is_empty() {
                out("fields", Said::Text(text.into()));
            }
            return;
        };
        for (field, value) in self.shown_values(shown(&format.fields)) {
            let is_symbol = matches!(field.show, Show::Symbol(_));
            let is_number = matches!(field.show, Show::Decimal | Show::Hex | Show::Octal);
            let said = match &value {
                value if !addresses && !is_symbol && has_address(field, value) => {
                    Said::Text(Cow::Borrowed(HIDDEN))
                }
                Value::Unsigned(number) if is_number => Said::Unsigned(*number),
                Value::Signed(number) if is_number => Said::Signed(*number),
                value => {
                    let text = match value {
                        Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        value => {
                            let mut text = String::new();
                            write_value(value, &field.show, symbols, &mut text);
                            text
                        }
                    };
                    Said::Text(match addresses {
                        true => Cow::Owned(text),
                        // Texts may have some, too.
                        false => Cow::Owned(without_addresses(&text).into_owned()),
                    })
                }
            };
            out(shown_name(&field.name), said);
        }
    }

    /// The fields as values for programs: numbers stay numbers; kernel addresses only if
    /// `addresses`. [`None`]: they are not described.
    pub fn values(&self, addresses: bool) -> Option<impl Serialize + use<'_>> {
        self.format.as_ref().map(|_| Values {
            fields: self,
            addresses,
        })
    }
}

/// What a field says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Said<'a> {
    /// A number without a sign.
    Unsigned(u64),
    /// A number with one.
    Signed(i64),
    /// Anything else.
    Text(Cow<'a, str>),
}

impl Fields {
    /// The field of this name, or the one that is shown with it.
    fn field(&self, name: &str) -> Option<&Field> {
        let mut fields = self.format.as_ref()?.fields.iter();
        fields.find(|field| field.name == name || shown_name(&field.name) == name)
    }

    fn value<'a>(&'a self, field: &Field) -> Option<Value<'a>> {
        self.about.formats.value(field, &self.data)
    }

    /// `fields` with their values. Those of a kernel's event do not overlap, and so have no more
    /// bytes than the event: what has is not believed any further.
    fn shown_values<'a>(
        &'a self,
        fields: impl Iterator<Item = &'a Field>,
    ) -> impl Iterator<Item = (&'a Field, Value<'a>)> {
        let mut left = self.data.len();
        fields
            .filter_map(|field| Some((field, self.value(field)?)))
            .map_while(move |(field, value)| {
                left = left.checked_sub(value.size())?;
                Some((field, value))
            })
    }

    fn write(&self, symbols: &Symbols, addresses: bool, out: &mut String) {
        let Some(format) = &self.format else {
            return;
        };
        match format.special {
            Special::Function => {
                return function(
                    symbols,
                    self.number("parent_ip").unwrap_or_default(),
                    false,
                    out,
                );
            }
            Special::Print => {
                if let Some(Value::Text(text)) =
                    format.field("buf").and_then(|field| self.value(field))
                {
                    return escape(text.trim_ascii_end(), false, out);
                }
            }
            Special::BinaryPrint | Special::Puts => {
                let name = match format.special {
                    Special::Puts => "str",
                    _ => "fmt",
                };
                if let Some(text) = self.about.texts.get(self.number(name).unwrap_or_default()) {
                    escape(text.trim_end().as_bytes(), false, out);
                    if format.special == Special::Puts {
                        return;
                    }
                    out.push(' ');
                }
            }
            _ => {}
        }
        let mut separator = "";
        for (field, value) in self.shown_values(shown(&format.fields)) {
            if out.len() > MAX_TEXT {
                return out.push_str(MORE);
            }
            let name = shown_name(&field.name);
            out.push_str(separator);
            out.push_str(name);
            out.push('=');
            match addresses || matches!(field.show, Show::Symbol(_)) || !has_address(field, &value)
            {
                true => write_value(&value, &field.show, symbols, out),
                false => out.push_str(HIDDEN),
            }
            separator = " ";
        }
    }
}

/// The fields that are shown: not the number of a system call, which its name tells, and not a
/// pointer whose target is a field of its own.
fn shown(fields: &[Field]) -> impl Iterator<Item = &Field> {
    fields.iter().filter(|field| {
        field.name != "__syscall_nr"
            && !fields
                .iter()
                .any(|other| shown_name(&other.name) == field.name && other.name != field.name)
    })
}

/// `filename` of `__filename_val`.
fn shown_name(name: &str) -> &str {
    let inner = name
        .strip_prefix("__")
        .and_then(|name| name.strip_suffix("_val"));
    inner.unwrap_or(name)
}

fn write_value(value: &Value<'_>, show: &Show, symbols: &Symbols, out: &mut String) {
    let (number, signed) = match value {
        Value::Unsigned(number) => (*number, false),
        Value::Signed(number) => (*number as u64, true),
        Value::Text(text) => return escape(text, true, out),
        Value::Array(values) => {
            out.push('{');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                if out.len() > MAX_TEXT {
                    out.push_str(MORE);
                    break;
                }
                write_value(&value, show, symbols, out);
            }
            return out.push('}');
        }
        Value::Bytes(bytes) => return hex(bytes, out),
    };
    match show {
        Show::Symbol(offset) => function(symbols, number, *offset, out),
        // Writing into a string does not fail.
        show => drop(show.number(out, number, signed)),
    }
}

/// Whether a value may hold a kernel address. Texts are checked by [`without_addresses`].
fn has_address(field: &Field, value: &Value<'_>) -> bool {
    match value {
        Value::Unsigned(number) => may_be_address(*number),
        // A number of less than 64 bits is no address; sign extension would make it look like one.
        Value::Signed(number) => field.holds_double() && may_be_address(*number as u64),
        Value::Text(_) => false,
        Value::Array(values) => match values.bytes() {
            Some(bytes) => have_address(bytes),
            None => values.iter().any(|value| has_address(field, &value)),
        },
        Value::Bytes(bytes) => have_address(bytes),
    }
}

fn have_address(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|bytes| {
        let bytes = bytes.try_into().unwrap_or_default();
        may_be_address(u64::from_le_bytes(bytes)) || may_be_address(u64::from_be_bytes(bytes))
    })
}

/// The function at an address, or the address.
pub(crate) fn function(symbols: &Symbols, ip: u64, offset: bool, out: &mut String) {
    let frame = Frame {
        ip,
        place: symbols.place(ip, true),
        inlined: false,
        source: None,
    };
    let _ = match offset {
        true => write!(out, "{frame}"),
        false => write!(out, "{}", frame.plain()),
    };
}

fn hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
}

/// Writes a text of any content, escaped. `quoted`: in quotes unless it is a single plain word.
pub(crate) fn escape(text: &[u8], quoted: bool, out: &mut String) {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\=".contains(byte);
    if !text.is_empty() && text.iter().all(plain) {
        return out.push_str(&String::from_utf8_lossy(text));
    }
    if quoted {
        out.push('"');
    }
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                ' ' | '\'' => out.push(c),
                '"' | '\\' if quoted => out.extend(['\\', c]),
                '"' => out.push(c),
                c => out.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    if quoted {
        out.push('"');
    }
}

/// Fields as a map.
struct Values<'a> {
    fields: &'a Fields,
    addresses: bool,
}

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let format = self.fields.format.iter();
        let fields = format.flat_map(|format| &format.fields);
        for (field, value) in self.fields.shown_values(fields) {
            match value {
                value if self.addresses => map.serialize_entry(&field.name, &value)?,
                value if has_address(field, &value) => {
                    map.serialize_entry(&field.name, HIDDEN)?;
                }
                Value::Text(text) => {
                    let text = String::from_utf8_lossy(text);
                    map.serialize_entry(&field.name, &without_addresses(&text))?;
                }
                value => map.serialize_entry(&field.name, &value)?,
            }
        }
        map.end()
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Unsigned(number) => serializer.serialize_u64(*number),
            Value::Signed(number) => serializer.serialize_i64(*number),
            Value::Text(text) => serializer.serialize_str(&String::from_utf8_lossy(text)),
            Value::Array(values) => {
                let values = values.iter();
                let mut seq = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    seq.serialize_element(&value)?;
                }
                seq.end()
            }
            Value::Bytes(bytes) => {
                let mut text = String::new();
                hex(bytes, &mut text);
                serializer.serialize_str(&text)
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
