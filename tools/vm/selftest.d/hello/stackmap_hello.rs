// SPDX-License-Identifier: GPL-2.0

//! A module in Rust, to see that one can be built and loaded.

use kernel::prelude::*;

module! {
    type: Hello,
    name: "stackmap_hello",
    authors: ["The stackmap authors"],
    description: "Says hello and goodbye",
    license: "GPL",
}

struct Hello {
    numbers: KVec<u32>,
}

impl kernel::Module for Hello {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let mut numbers = KVec::new();
        for number in 1..=4 {
            numbers.push(number, GFP_KERNEL)?;
        }
        pr_info!("hello\n");
        Ok(Self { numbers })
    }
}

impl Drop for Hello {
    fn drop(&mut self) {
        pr_info!("goodbye, {}\n", self.numbers.iter().sum::<u32>());
    }
}
