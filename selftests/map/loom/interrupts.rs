// SPDX-License-Identifier: GPL-2.0

//! Inserts and control operations that are interrupted: NMI on top of IRQ on top of task.
//!
//! An interrupt comes in front of each step of an insert in turn, and runs to its end there.

use super::*;
use std::sync::atomic::AtomicBool;

/// Records `frames` and lets `handler` run in front of the step after `steps` more. Returns the
/// result, and whether the handler ran.
fn interrupted(
    map: &Arc<Map>,
    frames: Frames,
    steps: usize,
    handler: impl FnOnce(&Arc<Map>) + 'static,
) -> (Result<Lookup, Fallback>, bool) {
    let owner = Arc::clone(map);
    model::interrupt_after(steps, move || handler(&owner));
    let section = ReadSide::enter();
    // SAFETY: The handlers use other contexts; this is a read-side section.
    let result = unsafe { map.enter(section.inside(), 0) }.get_id(frames);
    (result, !model::cancel_interrupt())
}

/// Runs a model for each step before which an interrupt can run. `run` returns whether it has run.
fn at_each_step(name: &str, check: fn(&str, Box<dyn Fn() + Send + Sync>), run: fn(usize) -> bool) {
    for steps in 0.. {
        let has_run = std::sync::Arc::new(AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&has_run);
        check(
            &format!("{name} at step {steps}"),
            Box::new(move || {
                seen.fetch_or(run(steps), Ordering::Relaxed);
            }),
        );
        if !has_run.load(Ordering::Relaxed) {
            // No execution has this many steps.
            return;
        }
    }
}

/// P1: an insert is interrupted by an insert of the same stack, that one by a third.
#[test]
fn an_interrupt_inserts_the_same_stack() {
    at_each_step(
        "an_interrupt_inserts_the_same_stack",
        exhaustively,
        |steps| {
            let frames = stack_at(2, 0, 2, 0);
            let map = map(2, 3);
            let (result, has_run) = interrupted(&map, frames, steps, move |map| {
                let other = Arc::clone(map);
                model::interrupt_after(steps / 2, move || {
                    record_in_section(&other, 2, frames);
                });
                record_in_section(map, 1, frames);
                model::cancel_interrupt();
            });
            result.unwrap();
            // The end of a chunk was the leftover of one that has lost its race.
            assert_eq!(settle_but(&map, 1).len(), 1);
            has_run
        },
    );
}

/// P1: the same while another CPU inserts the stack too.
#[test]
fn an_interrupt_and_another_cpu_insert_the_same_stack() {
    at_each_step(
        "an_interrupt_and_another_cpu_insert_the_same_stack",
        |name, run| bounded(name, 1, Some(2), run),
        |steps| {
            let frames = stack_at(2, 0, 1, 0);
            let map = map(2, 3);
            let other = spawn(&map, move |map| id_unless_contended(map, 2, frames));
            let (result, has_run) = interrupted(&map, frames, steps, move |map| {
                record_in_section(map, 1, frames);
            });
            let (theirs, mine) = (other.join(), unless_contended(result));
            assert!(theirs.is_none() || mine.is_none() || theirs == mine);
            assert_eq!(settle(&map).len(), 1);
            has_run
        },
    );
}

/// P3: the interrupt takes the slot, the last entry and the words that the insert was about to
/// take.
#[test]
fn an_interrupt_inserts_another_stack() {
    at_each_step(
        "an_interrupt_inserts_another_stack",
        exhaustively,
        |steps| {
            let (one, two) = (stack_at(1, 0, 2, 0), stack_at(1, 0, 4, 0));
            let map = map(1, 3);
            let (result, has_run) = interrupted(&map, one, steps, move |map| {
                record_in_section(map, 1, two);
            });
            let id = result.unwrap().id;
            assert_eq!(read(&map, id), Some((one.to_vec(), 1)));
            assert_eq!(settle(&map).len(), 1 + usize::from(has_run));
            has_run
        },
    );
}

/// Runs a control operation with an interrupt in front of a step, which records a stack. Returns what became of the stack,
/// if the interrupt has run.
fn operate<R>(
    map: &Arc<Map>,
    steps: usize,
    frames: Frames,
    operation: impl FnOnce(&Map) -> R,
) -> (R, Option<Result<Lookup, Fallback>>) {
    let recorded = std::rc::Rc::new(std::cell::Cell::new(None));
    let (handler, owner) = (recorded.clone(), Arc::clone(map));
    model::interrupt_after(steps, move || {
        handler.set(Some(record(&owner, 1, frames)));
    });
    let result = operation(map);
    model::cancel_interrupt();
    (result, recorded.get())
}

/// A reset is interrupted: what is recorded before it goes, what is recorded after it stays, and meanwhile
/// nothing is.
#[test]
fn an_interrupt_inside_a_reset() {
    at_each_step("an_interrupt_inside_a_reset", exhaustively, |steps| {
        let (old, new) = (stack_at(1, 0, 1, 0), stack_at(1, 2, 1, 0));
        let map = map(1, 2);
        let before = id(&map, 0, old);
        let (reset, recorded) = operate(&map, steps, new, Map::reset);
        reset.unwrap();
        assert_eq!(read(&map, before), None);
        let kept = settle(&map);
        match recorded {
            Some(Ok(found)) => assert!(kept.is_empty() || kept[0].0 == found.id),
            Some(Err(reason)) => assert_eq!((reason, kept.len()), (Fallback::Resetting, 0)),
            None => assert!(kept.is_empty()),
        }
        recorded.is_some()
    });
}

/// A growth is interrupted by an insert that needs the words.
#[test]
fn an_interrupt_inside_a_growth() {
    at_each_step("an_interrupt_inside_a_growth", exhaustively, |steps| {
        let frames = stack_at(2, 5, 4, 0);
        let map = map(2, 2);
        for home in 0..2 {
            id(&map, 0, stack_at(2, 2 * home, 4, 1));
        }
        let (grown, recorded) = operate(&map, steps, frames, Map::grow);
        grown.unwrap();
        match recorded {
            Some(Ok(found)) => assert_eq!(read(&map, found.id), Some((frames.to_vec(), 1))),
            Some(Err(reason)) => assert_eq!(reason, Fallback::Growing),
            None => {}
        }
        id(&map, 1, frames);
        settle(&map);
        recorded.is_some()
    });
}

/// A snapshot is interrupted: whether the stack belongs to it does not change any more.
#[test]
fn an_interrupt_inside_a_snapshot() {
    at_each_step("an_interrupt_inside_a_snapshot", exhaustively, |steps| {
        let map = map(1, 2);
        id(&map, 0, stack_at(1, 0, 1, 0));
        let frames = stack_at(1, 2, 1, 0);
        let (snapshot, recorded) = operate(&map, steps, frames, Map::snapshot);
        let snapshot = snapshot.unwrap();
        let nr = map.count(&snapshot).unwrap();
        id(&map, 0, frames);
        assert_eq!(map.count(&snapshot), Ok(nr));
        assert!((1..=1 + u32::from(recorded.is_some())).contains(&nr));
        recorded.is_some()
    });
}

/// Records a stack from a handler, which is inside the section of whom it interrupts.
fn record_in_section(map: &Map, context: usize, frames: Frames) {
    // SAFETY: In each model a context has one level of nesting, and the handler is inside a section.
    let guard = unsafe { map.enter(Inside::new(), context) };
    unless_contended(guard.get_id(frames));
}
