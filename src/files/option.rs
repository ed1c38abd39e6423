// SPDX-License-Identifier: GPL-2.0

//! `options/stackmap`: whether stacks are recorded as ids; `options/stackmap-resolve`: whether the
//! trace shows the stacks behind them; `options/stackmap-user`: whether user stacks are, too.

use crate::{
    control,
    record::print,
    tracefs::{File, Output, Single, Text},
};
use kernel::{bindings::umode_t, prelude::*};

const DIR: &CStr = c"options";

pub(super) struct Switch;

impl File for Switch {
    const DIR: &'static CStr = DIR;
    const NAME: &'static CStr = c"stackmap";
    const MODE: umode_t = 0o640;
    type Reader = Single<Self>;

    fn write(data: &[u8]) -> Result {
        if is_one(data)? {
            control::enable()
        } else {
            control::disable();
            Ok(())
        }
    }
}

impl Text for Switch {
    fn show(out: &Output<'_>) {
        flag(out, control::enabled());
    }
}

pub(super) struct User;

impl File for User {
    const DIR: &'static CStr = DIR;
    const NAME: &'static CStr = c"stackmap-user";
    const MODE: umode_t = 0o640;
    type Reader = Single<Self>;

    fn write(data: &[u8]) -> Result {
        if is_one(data)? {
            control::enable_user()
        } else {
            control::disable_user();
            Ok(())
        }
    }
}

impl Text for User {
    fn show(out: &Output<'_>) {
        flag(out, control::user_enabled());
    }
}

pub(super) struct Resolve;

impl File for Resolve {
    const DIR: &'static CStr = DIR;
    const NAME: &'static CStr = c"stackmap-resolve";
    const MODE: umode_t = 0o640;
    type Reader = Single<Self>;

    fn write(data: &[u8]) -> Result {
        print::set(is_one(data)?);
        Ok(())
    }
}

impl Text for Resolve {
    fn show(out: &Output<'_>) {
        flag(out, print::resolves());
    }
}

fn is_one(data: &[u8]) -> Result<bool> {
    match super::trim_newline(data) {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err(EINVAL),
    }
}

fn flag(out: &Output<'_>, on: bool) {
    out.text(fmt!("{}\n", u8::from(on)));
}
