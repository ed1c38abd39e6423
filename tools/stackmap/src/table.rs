// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables for people.

use crate::output::{safe, width};
use comfy_table::{presets, CellAlignment, ContentArrangement, Table};

/// How a column stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Column<'a> {
    /// Text, at the left.
    Text(&'a str),
    /// A number, at the right.
    Number(&'a str),
}

/// A table with a line of titles. On a terminal, long texts are broken where it ends.
pub fn table(columns: &[Column<'_>], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let titles = columns.iter().map(|column| match column {
        Column::Text(title) | Column::Number(title) => safe(title),
    });
    table.set_header(titles);
    for row in rows {
        table.add_row(row.iter().map(|cell| safe(cell).into_owned()));
    }
    for (index, column) in columns.iter().enumerate() {
        if let (Column::Number(_), Some(column)) = (column, table.column_mut(index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    match width().and_then(|width| u16::try_from(width).ok()) {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// `part` of `whole` in percent.
pub fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned() {
        let columns = [Column::Text("name"), Column::Number("n\t\x1b")];
        let rows = [["a", "5"], ["longer\x1b", "1234"]];
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec());
        let text = table(&columns, rows);
        assert_eq!(text, " name      n �\n a           5\n longer�  1234\n");
        assert_eq!(table(&columns, []), " name  n �\n");
    }

    #[test]
    fn shares_of_zero_are_zero() {
        assert_eq!(percent(1, 4), 25.0);
        assert_eq!(percent(0, 0), 0.0);
    }
}
