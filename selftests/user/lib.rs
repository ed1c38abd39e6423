// SPDX-License-Identifier: GPL-2.0

//! What the module knows of user stacks without asking the kernel, as it is in the module.

#[path = "../../src/user/cookie.rs"]
pub mod cookie;
#[path = "../../src/user/words.rs"]
pub mod words;
