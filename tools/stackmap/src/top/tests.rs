// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is shown after which keys.

use super::*;
use crate::{
    source::SymbolFiles,
    stack_map_bin::{self, LoadId, Order, Stack},
    stat::Stat,
    tracefs::Tracefs,
};
use ratatui::{
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    Terminal,
};
use std::fs;

fn model() -> Model {
    let row = |id, total, rate, frames: &[&str]| Row {
        id,
        total,
        rate,
        frames: frames.iter().map(|frame| (*frame).to_owned()).collect(),
    };
    let mut model = Model::default();
    model.update(Sample {
        rows: vec![
            row(7, 100, 0.0, &["foo+0x1/0x2", "bar+0x3/0x4 [mod]"]),
            row(
                5,
                10,
                20.0,
                &["baz+0x1/0x2", "bar+0x3/0x4 [mod]", "end+0x1/0x2"],
            ),
            row(
                9,
                1,
                3.0,
                &[
                    "trace_event_raw_event_kfree+0x1/0x2",
                    "__traceiter_kfree+0x3/0x5",
                    "foo+0x1/0x2",
                ],
            ),
        ],
        stat: Stat::parse("entries: 3 / 16384\nsuccesses: 111\ndrops: 2\n"),
        ids_per_second: 23.0,
        drops_per_second: 0.0,
        stackmap: true,
        tracing: true,
    });
    model
}

fn press(model: &mut Model, codes: &[KeyCode]) -> Reaction {
    let mut reaction = Reaction::Show;
    for code in codes {
        reaction = model.key(KeyEvent::new(*code, KeyModifiers::NONE));
    }
    reaction
}

fn ids(model: &Model) -> Vec<u32> {
    model.rows().iter().map(|row| row.id).collect()
}

fn screen(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(model, frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn new_stacks_have_rates_as_known_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).unwrap();
    let count_of_load = |load, counts: &[(u32, u32)]| {
        let stacks = counts.iter().map(|(id, ref_count)| Stack {
            id: *id,
            ref_count: *ref_count,
            ips: &[],
        });
        let mut bin = Vec::new();
        stack_map_bin::write_user(&mut bin, Order::Little, LoadId::new(load), stacks).unwrap();
        put("stack_map_user_bin", &bin);
    };
    let count = |counts: &[(u32, u32)]| count_of_load(1, counts);
    fs::create_dir(dir.path().join("options")).unwrap();
    for name in ["options/stackmap", "options/stackmap-user", "tracing_on"] {
        put(name, b"1\n");
    }
    for name in ["trace", "stack_map_user_stat", "stack_map_binaries"] {
        put(name, b"");
    }
    count(&[(7, 100)]);
    let tracefs = Tracefs::find(Some(dir.path())).unwrap();
    let mut sampler = Sampler::new(tracefs, true, SymbolFiles::default()).unwrap();
    assert_eq!(sampler.sample().unwrap().rows[0].rate, 0.0);
    count(&[(7, 106), (9, 3)]);
    let rows = sampler.sample().unwrap().rows;
    let twice = rows.iter().find(|row| row.id == 7).unwrap();
    let new = rows.iter().find(|row| row.id == 9).unwrap();
    assert!(new.rate > 0.0);
    assert_eq!(twice.rate / new.rate, 2.0);
    // In another load, an id is of another stack.
    count_of_load(2, &[(7, 3)]);
    assert!(sampler.sample().unwrap().rows[0].rate > 0.0);
    // Of a counter that was not known, no rate is.
    put("stack_map_user_stat", b"hits: 50\n");
    assert_eq!(sampler.sample().unwrap().ids_per_second, 0.0);
    put("stack_map_user_stat", b"hits: 60\n");
    assert!(sampler.sample().unwrap().ids_per_second > 0.0);
}

#[test]
fn keys_sort() {
    let mut model = model();
    assert_eq!(ids(&model), [5, 9, 7]);
    press(&mut model, &[KeyCode::Char('s')]);
    assert_eq!(ids(&model), [7, 5, 9]);
    press(&mut model, &[KeyCode::Char('s')]);
    assert_eq!(ids(&model), [5, 9, 7]);
    press(&mut model, &[KeyCode::Char('s')]);
    assert_eq!(ids(&model), [5, 7, 9]);
    assert_eq!(press(&mut model, &[KeyCode::Char('q')]), Reaction::Quit);
}

#[test]
fn a_filter_applies_while_it_is_typed() {
    let mut model = model();
    press(&mut model, &[KeyCode::Char('/'), KeyCode::Char('B')]);
    assert_eq!(ids(&model), [5, 7]);
    press(&mut model, &[KeyCode::Char('a'), KeyCode::Char('z')]);
    assert_eq!(ids(&model), [5]);
    // While it is typed, letters are no commands.
    assert_eq!(press(&mut model, &[KeyCode::Char('q')]), Reaction::Show);
    assert!(ids(&model).is_empty());
    press(&mut model, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!(ids(&model), [5]);
    press(&mut model, &[KeyCode::Esc]);
    assert_eq!(ids(&model).len(), 3);
}

#[test]
fn alt_is_escape() {
    let mut model = model();
    press(&mut model, &[KeyCode::Char('/'), KeyCode::Char('x')]);
    model.key(KeyEvent::new(KeyCode::Char('p'), KeyModifiers::ALT));
    assert!(model.paused && !model.typing && model.filter.is_empty());
}

#[test]
fn the_selection_stays_with_its_stack() {
    let mut model = model();
    press(&mut model, &[KeyCode::Down]);
    assert_eq!(model.selected, Some(9));
    press(&mut model, &[KeyCode::Char('s')]);
    assert_eq!(model.selected_index(&model.rows()), 2);
    press(&mut model, &[KeyCode::Home]);
    assert_eq!(model.selected, Some(7));
    press(&mut model, &[KeyCode::End, KeyCode::PageDown]);
    assert_eq!(model.selected, Some(9));
    let mut empty = Model::default();
    press(&mut empty, &[KeyCode::Down, KeyCode::End]);
    assert_eq!(empty.selected, None);
}

#[test]
fn a_pause_keeps_the_present_rows() {
    let mut model = model();
    press(&mut model, &[KeyCode::Char('p')]);
    model.update(Sample::default());
    assert_eq!(ids(&model).len(), 3);
    press(&mut model, &[KeyCode::Char('p')]);
    model.update(Sample::default());
    assert!(ids(&model).is_empty());
}

#[test]
fn the_screen() {
    let want = r#"
"stackmap  stacks 3 of 16384   ids 23/s   events 111   full stacks 2 (0/s)       "
"by rate, 3 shown                                                                "
"  *rate/s      total  share  depth          id stack, innermost first           "
"       20         10   9.0%      3           5 baz < bar < end                  "
"        3          1   0.9%      3           9 kfree: foo                       "
"        0        100  90.1%      2           7 foo < bar                        "
"                                                                                "
"                                                                                "
" stack_id 5, 3 frames ──────────────────────────────────────────────────────────"
" [0] baz+0x1/0x2                                                                "
" [1] bar+0x3/0x4 [mod]                                                          "
" [2] end+0x1/0x2                                                                "
"                                                                                "
" q  quit   s  sort   /  filter   p  pause   up/down  select   left/right  scroll"
"#;
    assert_eq!(format!("\n{}", screen(&model(), 80, 14)), want);
}

#[test]
fn any_size_of_screen_works() {
    let mut model = model();
    model.filter = "ö\x1b[31m".to_owned();
    for (width, height) in [(1, 1), (2, 3), (10, 5), (80, 1), (300, 100)] {
        screen(&model, width, height);
        screen(&Model::default(), width, height);
    }
    assert!(!screen(&model, 80, 24).contains('\x1b'));
}
