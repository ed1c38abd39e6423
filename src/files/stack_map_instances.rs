// SPDX-License-Identifier: GPL-2.0

//! `stack_map_instances`: the instances whose stacks become ids, besides the top level.

use crate::{
    control,
    tracefs::{File, Output, Single, Text},
};
use kernel::{bindings::umode_t, prelude::*};

pub(super) struct StackMapInstances;

impl File for StackMapInstances {
    const NAME: &'static CStr = c"stack_map_instances";
    const MODE: umode_t = 0o640;
    type Reader = Single<Self>;

    fn write(data: &[u8]) -> Result {
        match super::trim_newline(data) {
            [b'!', name @ ..] => control::instances(|all| all.remove(name)),
            name => control::add_instance(name),
        }
    }
}

impl Text for StackMapInstances {
    fn show(out: &Output<'_>) {
        control::instances(|all| {
            for name in all.names() {
                out.bytes(name);
                out.bytes(b"\n");
            }
        });
    }
}
