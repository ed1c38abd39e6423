// SPDX-License-Identifier: GPL-2.0

//! The crate of this name that rustc wants. `core` calls none of it for what the module uses.

#![feature(compiler_builtins)]
#![allow(internal_features)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
