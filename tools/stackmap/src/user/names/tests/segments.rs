// SPDX-License-Identifier: MIT OR Apache-2.0

//! Segments of a program that are recorded.

use super::*;

/// Two files can have the same build-id: what a program did to one after it was linked.
#[test]
fn recorded_segments_are_those_of_the_file_that_ran() {
    let program = Program::new();
    let with = |segments: &[Segment]| {
        let recorded = Recorded::new([(INDEX, segments.to_vec())].into_iter());
        Names::new(Places::default()).with_segments(recorded)
    };
    program.has_debug_names(&mut with(&program.segments));
    let mut other = program.segments.clone();
    other[0].size -= 1;
    program.is_missing(with(&other), &program.binary(), Missing::OtherFile);
    other = program.segments.clone();
    other[0].vaddr += 0x1000;
    program.is_missing(with(&other), &program.binary(), Missing::OtherFile);

    // What only moved in the file has its addresses still.
    let moved = 0x10_0000;
    other = program.segments.clone();
    for segment in &mut other {
        segment.offset += moved;
    }
    let mut names = with(&other);
    let wanted = exact(program.outer.start + moved);
    let outer = look_up(&mut names, wanted, &table(&program.binary()))
        .last()
        .unwrap();
    assert_eq!(
        (outer.function.as_deref(), outer.offset),
        (Some("outer"), 0)
    );
}

#[test]
fn segments_of_another_file_are_not_recorded() {
    let program = Program::new();
    program.separate();
    let (dir, rest) = program.build_id.split_at(2);
    let of = |path: PathBuf, build_id: Option<&str>, more: u64| {
        segments_of(&Binary {
            build_id: build_id.map(str::to_owned),
            size: fs::metadata(&path).unwrap().len() + more,
            path,
            ..Binary::default()
        })
    };
    let file = || program.path("program");
    let build_id = Some(&*program.build_id);
    assert!(of(file(), build_id, 0).is_some());
    assert_eq!(of(file(), build_id, 1), None);
    assert_eq!(of(file(), Some("00"), 0), None);
    assert_eq!(of(file(), None, 0), None);
    // It has no code.
    let debug = program.path(&format!("debug/.build-id/{dir}/{rest}.debug"));
    assert_eq!(of(debug, build_id, 0), None);
}
