// SPDX-License-Identifier: GPL-2.0

//! `options/stackmap`: whether stacks are recorded as ids.

use crate::{
    control,
    tracefs::{File, Output, Single, Text},
};
use kernel::{bindings::umode_t, prelude::*};

pub(super) struct Switch;

impl File for Switch {
    const DIR: &'static CStr = c"options";
    const NAME: &'static CStr = c"stackmap";
    const MODE: umode_t = 0o644;
    type Reader = Single<Self>;

    fn write(data: &[u8]) -> Result {
        match super::trim_newline(data) {
            b"0" => control::disable(),
            b"1" => control::enable(),
            _ => Err(EINVAL),
        }
    }
}

impl Text for Switch {
    fn show(out: &Output) {
        out.text(fmt!("{}\n", u8::from(control::enabled())));
    }
}
