// SPDX-License-Identifier: GPL-2.0

//! The files that users see.

mod option;
mod stack_map;
mod stack_map_bin;
mod stack_map_instances;
mod stack_map_stat;
mod stack_map_user;

use crate::tracefs::{Entry, Gate, Mount};
use kernel::prelude::*;

/// Our files, for as long as the module is loaded. Fields are dropped in the order of their
/// declaration.
pub(crate) struct Files {
    _entries: [Entry; 11],
    _gate: Gate,
}

impl Files {
    /// Creates them all, or none.
    pub(crate) fn create(tracefs: &Mount) -> Result<Self> {
        // Also where some were created and others not: locals are dropped last to first.
        let gate = Gate::new();
        Ok(Self {
            _entries: [
                tracefs.create::<stack_map::StackMap>()?,
                tracefs.create::<stack_map_stat::StackMapStat>()?,
                tracefs.create::<stack_map_bin::StackMapBin<false>>()?,
                tracefs.create::<stack_map_instances::StackMapInstances>()?,
                tracefs.create::<option::Resolve>()?,
                tracefs.create::<stack_map_user::StackMapUser>()?,
                tracefs.create::<stack_map_bin::StackMapBin<true>>()?,
                tracefs.create::<stack_map_user::StackMapUserStat>()?,
                tracefs.create::<stack_map_user::StackMapBinaries>()?,
                tracefs.create::<option::User>()?,
                tracefs.create::<option::Switch>()?,
            ],
            _gate: gate,
        })
    }
}

/// Returns what was written, without the one newline that `echo` adds.
fn trim_newline(data: &[u8]) -> &[u8] {
    data.strip_suffix(b"\n").unwrap_or(data)
}
