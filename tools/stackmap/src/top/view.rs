// SPDX-License-Identifier: MIT OR Apache-2.0

//! How it is shown.

use super::{Model, Row, Sort};
use crate::{output::safe, symbols::frames::parts};
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row as Cells, Table, TableState},
    Frame,
};

const LABEL: Style = Style::new().add_modifier(Modifier::BOLD);
const HEADER: Style = Style::new().add_modifier(Modifier::REVERSED);
const SELECTED: Style = Style::new().bg(Color::Blue).fg(Color::White);
const WARNING: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
const HOT: Style = Style::new().fg(Color::Cyan);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Widths of the columns of numbers.
const WIDTHS: [u16; 5] = [9, 10, 6, 6, 11];
/// Fewer lines than this have no space for the frames of a stack.
const MIN_HEIGHT: u16 = 14;

/// How functions are called that record an event.
const EVENT: &str = "trace_event_raw_event_";

/// Shows `model` on the whole screen.
pub fn draw(model: &Model, frame: &mut Frame<'_>) {
    let height = frame.area().height;
    let detail = match height < MIN_HEIGHT {
        true => 0,
        false => (height / 3).clamp(5, 20),
    };
    let parts = [
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(detail),
        Constraint::Length(1),
    ];
    let [head, table, frames, foot] = Layout::vertical(parts).areas(frame.area());
    let rows = model.rows();
    let selected = model.selected_index(&rows);

    frame.render_widget(Paragraph::new(head_lines(model, rows.len())), head);
    draw_table(model, &rows, selected, table, frame);
    if detail > 0 {
        draw_frames(model, rows.get(selected), frames, frame);
    }
    frame.render_widget(Paragraph::new(foot_line(model)), foot);
}

fn head_lines(model: &Model, nr_shown: usize) -> Vec<Line<'static>> {
    let sample = &model.sample;
    let number = |key| sample.stat.number(key).unwrap_or(0);
    let capacity = sample.stat.capacity().unwrap_or(0);
    let mut first = vec![
        Span::styled("stackmap", LABEL),
        Span::raw(format!(
            "  stacks {} of {capacity}   ids {:.0}/s   events {}",
            number("entries"),
            sample.ids_per_second,
            number("successes"),
        )),
    ];
    let drops = number("drops");
    if drops > 0 {
        let text = format!("   full stacks {drops} ({:.0}/s)", sample.drops_per_second);
        first.push(Span::styled(text, WARNING));
    }
    let mut second = vec![Span::raw(format!("by {}, {nr_shown} shown", model.sort))];
    if !model.filter.is_empty() || model.typing {
        second.push(Span::raw(", filter "));
        second.push(Span::styled(safe(&model.filter).into_owned(), LABEL));
    }
    for (on, text) in [
        (!sample.stackmap, "options/stackmap is off"),
        (!sample.tracing, "tracing is off"),
        (model.paused, "paused"),
    ] {
        if on {
            second.push(Span::raw("   "));
            second.push(Span::styled(text, WARNING));
        }
    }
    vec![Line::from(first), Line::from(second)]
}

fn draw_table(model: &Model, rows: &[&Row], selected: usize, area: Rect, frame: &mut Frame<'_>) {
    let titles = [
        ("rate/s", Some(Sort::Rate)),
        ("total", Some(Sort::Total)),
        ("share", None),
        ("depth", Some(Sort::Depth)),
        ("id", Some(Sort::Id)),
    ];
    let titles = titles.iter().zip(WIDTHS).map(|((title, sort), width)| {
        let mark = if *sort == Some(model.sort) { "*" } else { "" };
        Cell::new(format!(
            "{:>width$}",
            format!("{mark}{title}"),
            width = width.into()
        ))
    });
    let header = Cells::new(titles.chain([Cell::new("stack, innermost first")])).style(HEADER);
    let sum: u64 = rows.iter().map(|row| u64::from(row.total)).sum();
    // Only the rows near the visible part are laid out.
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let from = (selected + 1).saturating_sub(height);
    let cells = rows.iter().skip(from).take(height).map(|row| {
        let share = f64::from(row.total) * 100.0 / sum.max(1) as f64;
        let numbers = [
            (
                format!("{:.0}", row.rate),
                if row.rate >= 0.5 { HOT } else { DIM },
            ),
            (row.total.to_string(), Style::new()),
            (format!("{share:.1}%"), Style::new()),
            (row.frames.len().to_string(), Style::new()),
            (row.id.to_string(), DIM),
        ];
        let numbers = numbers
            .into_iter()
            .zip(WIDTHS)
            .map(|((text, style), width)| {
                Cell::new(format!("{text:>width$}", width = width.into())).style(style)
            });
        let stack = Cell::new(one_line(row, model.plumbing, usize::from(area.width)));
        Cells::new(numbers.chain([stack]))
    });
    let widths = WIDTHS.map(Constraint::Length).into_iter();
    let table = Table::new(cells, widths.chain([Constraint::Min(10)]))
        .header(header)
        .row_highlight_style(SELECTED);
    let mut state = TableState::new();
    state.select((!rows.is_empty()).then_some(selected - from));
    frame.render_stateful_widget(table, area, &mut state);
}

/// The names of a stack's frames without their offsets, as many as there is space for. The frames
/// of tracing itself only tell the event.
fn one_line(row: &Row, plumbing: bool, width: usize) -> String {
    let name = |frame: &str| safe(parts(frame).0).into_owned();
    let event = row.frames.first().map(|frame| name(frame));
    let event = event.as_deref().and_then(|name| name.strip_prefix(EVENT));
    let mut line = match event {
        Some(event) if !plumbing => format!("{event}: "),
        _ => String::new(),
    };
    let mut separator = "";
    for (_, frame) in row.visible(plumbing) {
        if line.len() > width {
            break;
        }
        line.push_str(separator);
        line.push_str(&name(frame));
        separator = " < ";
    }
    line
}

fn draw_frames(model: &Model, row: Option<&&Row>, area: Rect, frame: &mut Frame<'_>) {
    let title = match row {
        Some(row) => format!(" stack_id {}, {} frames ", row.id, row.frames.len()),
        None => " no stack ".to_owned(),
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    let lines = row.iter().flat_map(|row| row.visible(model.plumbing));
    let lines = lines.map(|(index, frame)| {
        Line::from(vec![
            Span::styled(format!(" [{index}] "), DIM),
            Span::raw(safe(frame).into_owned()),
        ])
    });
    let lines: Vec<_> = lines.collect();
    let space = area.height.saturating_sub(1);
    let last = (lines.len() as u16).saturating_sub(space);
    let text = Paragraph::new(lines)
        .block(block)
        .scroll((model.scroll.min(last), 0));
    frame.render_widget(text, area);
}

fn foot_line(model: &Model) -> Line<'static> {
    let keys: &[(&str, &str)] = match model.typing {
        true => &[
            ("letters", "filter"),
            ("Enter", "done"),
            ("Esc", "no filter"),
        ],
        false => &[
            ("q", "quit"),
            ("s", "sort"),
            ("/", "filter"),
            ("p", "pause"),
            ("up/down", "select"),
            ("left/right", "scroll frames"),
        ],
    };
    let spans = keys.iter().flat_map(|(key, what)| {
        [
            Span::styled(format!(" {key} "), HEADER),
            Span::raw(format!(" {what}  ")),
        ]
    });
    Line::from_iter(spans)
}
