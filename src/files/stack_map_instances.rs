// SPDX-License-Identifier: GPL-2.0

//! `stack_map_instances`: the instances whose stacks become ids, besides the top level.

use crate::tracefs::{instances, File, Output, Single, Text};
use kernel::{bindings::umode_t, prelude::*};

pub(super) struct StackMapInstances;

impl File for StackMapInstances {
    const NAME: &'static CStr = c"stack_map_instances";
    const MODE: umode_t = 0o640;
    type Reader = Single<Self>;

    fn write(data: &[u8]) -> Result {
        match super::trim_newline(data) {
            [b'!', name @ ..] => instances::remove(name),
            name => instances::add(name),
        }
    }
}

impl Text for StackMapInstances {
    fn show(out: &Output) {
        instances::each(|name| {
            out.bytes(name);
            out.bytes(b"\n");
        });
    }
}
