// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names in `.gopclntab`, the table of functions that Go's linker writes for the runtime's own tracebacks. It stays in
//! a stripped program. The table is that of Go 1.18 and later, with pointers of 64 bits, little-endian.

/// What the table begins with, without the sizes of an instruction and a pointer.
const GO_1_18: [u8; 6] = [0xf0, 0xff, 0xff, 0xff, 0, 0];
const GO_1_20: [u8; 6] = [0xf1, 0xff, 0xff, 0xff, 0, 0];

/// The offset of the address where the code begins.
pub(super) const TEXT: usize = 3 * 8;

/// A function of the table.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct GoFunction {
    /// Its first address.
    pub(super) start: u64,
    /// How long it is, in bytes.
    pub(super) size: u64,
    /// The offset of its name in [`names`].
    pub(super) name: u32,
}

/// Returns the functions of a table, of code that begins at `text`; 0: the table says where. [`None`]: it is another table, or
/// says nothing of that.
pub(super) fn functions(table: &[u8], text: u64) -> Option<impl Iterator<Item = GoFunction> + '_> {
    if !matches!(table.first_chunk()?, &GO_1_18 | &GO_1_20) || table.get(7) != Some(&8) {
        return None;
    }
    let nr = usize::try_from(word(table, 1)?).ok()?;
    let text = [text, word(table, TEXT / 8)?]
        .into_iter()
        .find(|text| *text != 0)?;
    let rest = part(table, 8)?;
    let entries = rest.get(..nr.checked_mul(8)?.checked_add(4)?)?;
    let start = |entry: usize| half(entries, 8 * entry);
    Some((0..nr).filter_map(move |entry| {
        let function = half(entries, 8 * entry + 4)? as usize;
        Some(GoFunction {
            start: text.checked_add(start(entry)?.into())?,
            size: start(entry + 1)?.checked_sub(start(entry)?)?.into(),
            name: half(rest, function.checked_add(4)?)?,
        })
    }))
}

/// Returns the names of a table, each with a zero at its end.
pub(super) fn names(table: &[u8]) -> Option<&[u8]> {
    part(table, 4)
}

/// Returns what follows the offset that a word of the header is.
fn part(table: &[u8], at: usize) -> Option<&[u8]> {
    table.get(usize::try_from(word(table, at)?).ok()?..)
}

fn word(table: &[u8], at: usize) -> Option<u64> {
    let bytes = table.get(8 * at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn half(table: &[u8], at: usize) -> Option<u32> {
    let bytes = table.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of two functions.
    fn table() -> Vec<u8> {
        let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        for word in [2_u64, 0, 0x40_1000, 72, 0, 0, 0, 104] {
            table.extend(word.to_le_bytes());
        }
        table.extend(b"\0main.main\0runtime.goexit\0");
        table.resize(104, 0);
        for half in [0_u32, 20, 0x40, 28, 0x60, 0, 1, 0x40, 11] {
            table.extend(half.to_le_bytes());
        }
        table
    }

    #[test]
    fn functions_have_the_names_of_the_table() {
        let table = table();
        let found: Vec<_> = functions(&table, 0).unwrap().collect();
        let function = |start, size, name| GoFunction { start, size, name };
        let wanted = [function(0x40_1000, 0x40, 1), function(0x40_1040, 0x20, 11)];
        assert_eq!(found, wanted);
        assert!(names(&table).unwrap()[11..].starts_with(b"runtime.goexit\0"));
    }

    #[test]
    fn a_table_that_is_cut_has_fewer_functions() {
        let table = table();
        for len in 0..table.len() {
            let nr = functions(&table[..len], 0).map_or(0, Iterator::count);
            assert!(nr < 2, "{len} bytes");
        }
    }

    #[test]
    fn a_table_of_another_kind_has_no_functions() {
        for (at, byte) in [
            (0, 0xfb),
            (4, 1),
            (7, 4),
            (8 + 7, 0xff),
            (25, 0),
            (64 + 7, 1),
        ] {
            let mut table = table();
            table[at] = byte;
            if at == 25 {
                table[26] = 0;
            }
            assert!(functions(&table, 0).is_none(), "byte {at}");
        }
    }
}
