// SPDX-License-Identifier: GPL-2.0

//! Words of user stacks.

use proptest::prelude::*;
use stackmap_user::encoded::{
    is_user, process, EncodedFrame, EncodedStack, End, FRAMES_MAX, GUESSED_MAX, INDEX_MAX,
};

const USER_END: u64 = 0x7fff_ffff_f000;

#[test]
fn parts_that_are_too_large_have_no_word() {
    for word in [
        EncodedFrame::Binary {
            index: INDEX_MAX + 1,
            offset: 0,
        },
        EncodedFrame::Binary {
            index: 0,
            offset: 1 << 40,
        },
        EncodedFrame::Address(4095),
        EncodedFrame::Address(1 << 62),
        EncodedFrame::Process {
            tgid: 1,
            start: 1 << 30,
        },
    ] {
        assert_eq!(word.bits(), None, "{word:?}");
    }
}

#[test]
fn words_of_one_binary_differ_as_their_offsets() {
    let word = |offset| EncodedFrame::Binary { index: 7, offset }.bits();
    assert_eq!(word(0).map(|first| first + 42), word(42));
    assert!(word((1 << 40) - 1).is_some());
    assert_eq!(word(1 << 40), None);
}

#[test]
fn small_numbers_are_ends_or_nothing() {
    let ends = (0..4096).filter_map(EncodedFrame::from_bits).count();
    assert_eq!(ends, 9 * (GUESSED_MAX + 1));
    let end = |end, guessed| Some(EncodedFrame::End { end, guessed });
    assert_eq!(EncodedFrame::from_bits(1), end(End::Complete, 0));
    assert_eq!(EncodedFrame::from_bits(2 << 4 | 7), end(End::BadAddress, 2));
    for number in 1..=9 {
        let Some(EncodedFrame::End { end, .. }) = EncodedFrame::from_bits(number) else {
            panic!("{number}");
        };
        assert_eq!(end as u64, number);
    }
    assert_eq!(End::Depth.text(), "cut: depth");
}

#[test]
fn addresses_are_those_of_user_space() {
    for (address, want) in [
        (0, false),
        (4095, false),
        (4096, true),
        (USER_END - 1, true),
        (USER_END, false),
        (u64::MAX, false),
    ] {
        assert_eq!(is_user(address, USER_END), want, "{address:#x}");
    }
}

proptest! {
    /// A word says what it was made of.
    #[test]
    fn words_read_back(index in 0..=INDEX_MAX, offset in 0..1_u64 << 40, address in 4096..1_u64 << 62,
                       tgid: u32, start in 0..1_u32 << 30) {
        for word in [
            EncodedFrame::Binary { index, offset },
            EncodedFrame::Address(address),
            EncodedFrame::Process { tgid, start },
        ] {
            prop_assert_eq!(word.bits().and_then(EncodedFrame::from_bits), Some(word));
        }
    }

    /// Whatever the bits are, what they are read as has the same bits.
    #[test]
    fn bits_mean_one_thing(bits: u64) {
        if let Some(word) = EncodedFrame::from_bits(bits) {
            prop_assert_eq!(word.bits(), Some(bits));
        }
    }

    /// A process that calls exec, or one that follows with the same number, has another word.
    #[test]
    fn programs_of_a_process_differ(start in 0..1_u64 << 40, exec in 0_u64..500, later in 1_u64..100) {
        prop_assert!(process(start, exec) >> 30 == 0);
        prop_assert_ne!(process(start, exec), process(start, exec + 1));
        prop_assert_ne!(process(start, exec), process(start + (later << 20), exec));
    }
}

const PROCESS: EncodedFrame = EncodedFrame::Process { tgid: 7, start: 9 };

#[test]
fn a_stack_with_addresses_has_their_process_behind_its_frames() {
    let mut words = EncodedStack::default();
    words.keep(5 << 40);
    words.keep_raw(0x5000);
    assert_eq!((words.frames(), words.raw()), (2, 1));
    words.end(PROCESS, End::Complete);
    let process = PROCESS.bits().unwrap();
    assert_eq!(words.words(), [5 << 40, 0x5000, process, 1]);
    // The next stack has none.
    words.clear();
    words.keep(6 << 40);
    words.end(PROCESS, End::NoRule);
    assert_eq!(words.words(), [6 << 40, 2]);
}

#[test]
fn a_stack_tells_the_first_frame_that_was_guessed() {
    let mut words = EncodedStack::default();
    let mut end = |frames: &[bool]| {
        words.clear();
        for guessed in frames {
            if *guessed {
                words.guess();
            }
            words.keep(5 << 40);
        }
        words.end(PROCESS, End::Complete);
        *words.words().last().unwrap()
    };
    assert_eq!(end(&[false, false]), 1);
    assert_eq!(end(&[false, true, false, true]), 1 << 4 | 1);
    assert_eq!(end(&[&[false; 300][..], &[true]].concat()), 255 << 4 | 1);
    // No frame follows.
    words.clear();
    words.keep(5 << 40);
    words.guess();
    assert_eq!(words.guessed(), 0);
}

#[test]
fn a_full_stack_has_room_for_its_process_and_its_end() {
    let mut words = EncodedStack::default();
    for nr in 0..600 {
        words.keep_raw(0x1000 + nr);
    }
    assert_eq!(words.frames(), FRAMES_MAX);
    words.end(PROCESS, End::Depth);
    let process = PROCESS.bits().unwrap();
    assert_eq!(words.words()[FRAMES_MAX - 1..], [0x1000 + 509, process, 4]);
}
