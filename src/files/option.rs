// SPDX-License-Identifier: GPL-2.0

//! `options/stackmap`: whether stacks are recorded as ids; `options/stackmap-resolve`: whether the
//! trace shows their stacks; `options/stackmap-user`: whether user stacks are, too.

use crate::{
    control,
    record::print,
    tracefs::{File, Output, Single, Text},
};
use kernel::{bindings::umode_t, prelude::*};

/// A file that shows and takes `0` or `1`.
macro_rules! option {
    ($file:ident, $name:literal, $is_on:path, $set:expr) => {
        pub(super) struct $file;

        impl File for $file {
            const DIR: &'static CStr = c"options";
            const NAME: &'static CStr = $name;
            const MODE: umode_t = 0o640;
            type Reader = Single<Self>;

            fn write(data: &[u8]) -> Result {
                $set(is_one(data)?)
            }
        }

        impl Text for $file {
            fn show(out: &Output<'_>) {
                out.text(fmt!("{}\n", u8::from($is_on())));
            }
        }
    };
}

option!(Switch, c"stackmap", control::enabled, control::set_enabled);
option!(
    User,
    c"stackmap-user",
    control::user_enabled,
    control::set_user
);
option!(Resolve, c"stackmap-resolve", print::resolves, print::set);

fn is_one(data: &[u8]) -> Result<bool> {
    match super::trim_newline(data) {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err(EINVAL),
    }
}
