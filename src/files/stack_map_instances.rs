// SPDX-License-Identifier: GPL-2.0

//! `stack_map_instances`: the instances whose stacks become ids, and which of them have user stacks.

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
            [b'!', name @ ..] => control::remove_instance(name),
            name => match name.strip_suffix(b"/user") {
                Some(name) => control::add_instance(name, true),
                None => control::add_instance(name, false),
            },
        }
    }
}

impl Text for StackMapInstances {
    fn show(out: &Output<'_>) {
        control::instances(|instance| {
            out.bytes(instance.name());
            out.bytes(if instance.user { b"/user\n" } else { b"\n" });
        });
    }
}
