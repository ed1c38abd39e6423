// SPDX-License-Identifier: GPL-2.0

//! stackmap: ftrace records kernel stacks as ids.
//!
//! While `options/stackmap` is on, or in a listed instance, a kernel stack that ftrace would write into the
//! ring buffer becomes a 4-byte id, and the distinct stacks are kept once, in a map that tracefs serves.
//! This file loads and unloads the module: the checks at load, the objects that it creates, and
//! their order. `Documentation/trace/ftrace-stackmap.rst` is the manual.

pub mod map;

mod control;
mod counters;
mod files;
mod hook;
mod modules;
mod params;
mod published;
mod record;
mod shim;
mod store;
mod tracefs;
pub mod unwind;
pub mod user;

use kernel::{error::to_result, prelude::*};

module! {
    type: Stackmap,
    name: "stackmap",
    authors: ["The stackmap authors"],
    description: "ftrace: record kernel stacks as ids",
    license: "GPL",
    params: {
        bits: u32 {
            default: 14,
            description: "Capacity: 2^bits distinct stacks (10..20, default 14)",
        },
        user_bits: u32 {
            default: 14,
            description: "Capacity for user stacks: 2^user_bits (10..20, default 14)",
        },
        verify: u8 {
            default: 0,
            description: "1: compare each stack with the kernel's unwinder, slowly (default 0)",
        },
    },
}

/// A loaded module. Fields are dropped in the order of their declaration: first the tracefs files
/// are removed, then recording ends and the map is freed. Modules are watched until the map is
/// freed, because the trace may show its stacks until then.
struct Stackmap {
    _files: files::Files,
    _recording: control::Recorder,
    _unwinder: unwind::UnwindSetup,
    _modules: modules::Watch,
    _tracefs: tracefs::Mount,
}

impl kernel::Module for Stackmap {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let bits = clamp_bits("bits", params::bits());
        let user_bits = clamp_bits("user_bits", params::user_bits());
        to_result(shim::stackmap_symbols_resolve())?;
        to_result(shim::stackmap_prototypes_check())?;
        let tracefs = tracefs::Mount::new()?;
        if tracefs.has(c"stack_map")? {
            pr_err!("tracefs already has a file stack_map, of another module or the kernel\n");
            return Err(EBUSY);
        }
        if shim::stackmap_event_type() == 0 {
            pr_err!("the kernel did not register ftrace:stack_id\n");
            return Err(EINVAL);
        }
        tracefs.read_stack_layout()?;
        let recording =
            control::Recorder::begin(bits, user_bits, params::hook(), tracefs.top_level()?)?;
        let unwinder = unwind::UnwindSetup::begin(params::unwind(), params::verify())?;
        let modules = modules::Watch::begin()?;
        let files = files::Files::create(&tracefs)?;
        pr_info!(
            "ready, capacity {} stacks; enable with: echo 1 > options/stackmap\n",
            1 << bits
        );
        Ok(Self {
            _files: files,
            _unwinder: unwinder,
            _modules: modules,
            _recording: recording,
            _tracefs: tracefs,
        })
    }
}

fn clamp_bits(name: &str, asked: u32) -> u32 {
    let bits = asked.clamp(map::BITS_MIN, map::BITS_MAX);
    if bits != asked {
        pr_warn!(
            "{}={} is not in {}..{}: using {}={}\n",
            name,
            asked,
            map::BITS_MIN,
            map::BITS_MAX,
            name,
            bits
        );
    }
    bits
}
