// SPDX-License-Identifier: GPL-2.0

//! Inserts that are interrupted: NMI on top of IRQ on top of task.
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
) -> (Result<Found, Fallback>, bool) {
    let owner = Arc::clone(map);
    model::interrupt_after(steps, move || handler(&owner));
    let _section = ReadSide::enter();
    // SAFETY: The handlers use other contexts; this is a read-side section.
    let result = unsafe { map.enter(0) }.get_id(frames);
    (result, !model::cancel_interrupt())
}

/// Runs a model for each step of a `get_id` that an interrupt can come in front of. `run` tells
/// whether it came.
fn at_each_step(name: &str, check: fn(&str, Box<dyn Fn() + Send + Sync>), run: fn(usize) -> bool) {
    for steps in 0..=STEPS_MAX {
        let came = std::sync::Arc::new(AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&came);
        check(
            &format!("{name} at step {steps}"),
            Box::new(move || {
                seen.fetch_or(run(steps), Ordering::Relaxed);
            }),
        );
        if !came.load(Ordering::Relaxed) {
            // In no execution there were as many steps.
            return;
        }
    }
    panic!("P2: more than {STEPS_MAX} steps");
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
            let (result, came) = interrupted(&map, frames, steps, move |map| {
                let other = Arc::clone(map);
                model::interrupt_after(steps / 2, move || {
                    record_in_section(&other, 2, frames);
                });
                record_in_section(map, 1, frames);
                model::cancel_interrupt();
            });
            result.unwrap();
            assert_eq!(settle(&map).len(), 1);
            came
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
            let (result, came) = interrupted(&map, frames, steps, move |map| {
                record_in_section(map, 1, frames);
            });
            let (theirs, mine) = (other.join(), unless_contended(result));
            assert!(theirs.is_none() || mine.is_none() || theirs == mine);
            assert_eq!(settle(&map).len(), 1);
            came
        },
    );
}

/// P3: the interrupt takes the slot, the last entry and the words that the insert was about to.
#[test]
fn an_interrupt_inserts_another_stack() {
    at_each_step(
        "an_interrupt_inserts_another_stack",
        exhaustively,
        |steps| {
            let (one, two) = (stack_at(1, 0, 2, 0), stack_at(1, 0, 4, 0));
            let map = map(1, 3);
            let (result, came) = interrupted(&map, one, steps, move |map| {
                record_in_section(map, 1, two);
            });
            let id = result.unwrap().id;
            assert_eq!(read(&map, id), Some((one.to_vec(), 1)));
            assert_eq!(settle(&map).len(), 1 + usize::from(came));
            came
        },
    );
}

/// Records a stack from a handler, which is inside the section of whom it interrupts.
fn record_in_section(map: &Map, context: usize, frames: Frames) {
    // SAFETY: In each model a context has one level of nesting; see above for the section.
    unless_contended(unsafe { map.enter(context) }.get_id(frames));
}
