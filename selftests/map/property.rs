// SPDX-License-Identifier: GPL-2.0

//! Random sequences of operations against a model: see `ops/`.

#![cfg(not(loom))]

mod ops;

use ops::{Name, Op};
use proptest::prelude::*;

fn depth() -> impl Strategy<Value = u16> {
    prop_oneof![8 => 0..40_u16, 1 => 40..=1024_u16]
}

fn name() -> impl Strategy<Value = Name> {
    (depth(), any::<u16>(), 0..4_u8).prop_map(|(depth, position, change)| Name {
        depth,
        position,
        change,
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => (0..3_u8, name()).prop_map(|(context, name)| Op::Record(context, name)),
        1 => (0..3_u8, depth()).prop_map(|(context, depth)| Op::Exhaust(context, depth)),
        1 => (0..3_u8, any::<u8>()).prop_map(|(context, home)| Op::Crowd(context, home)),
        10 => any::<u16>().prop_map(Op::Lookup),
        5 => any::<u32>().prop_map(Op::LookupAny),
        3 => Just(Op::Grow),
        2 => any::<bool>().prop_map(Op::FollowGrowth),
        2 => Just(Op::Reset),
        4 => Just(Op::Snapshot),
        20 => Just(Op::Next),
        4 => Just(Op::Count),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// After any operations in any order, the map behaves like the model.
    #[test]
    fn a_map_behaves_like_the_model(ops in prop::collection::vec(op(), 0..300)) {
        ops::run(ops);
    }

    /// The same for sequences that are read from bytes.
    #[test]
    fn bytes_are_operations(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        ops::run(ops::decode(&bytes));
    }
}
