// SPDX-License-Identifier: GPL-2.0

//! The crate of this name that rustc requires, without its functions: what the module uses of `core` calls none of them.
//! Upstream: `rust/compiler_builtins.rs`.

#![feature(compiler_builtins)]
#![allow(internal_features)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
