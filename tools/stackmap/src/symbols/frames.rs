// SPDX-License-Identifier: MIT OR Apache-2.0

//! Special frames of a stack: the entries of interrupts and exceptions, and the frames of tracing
//! itself (plumbing).
//!
//! The frame below an entry is not a return address, because the interrupted code did not call the
//! entry. The unwinder takes that address from the saved registers: it is exact, the address of the
//! next instruction.

use super::TRAMPOLINE_NAME;

/// How the names of entries of interrupts and exceptions begin (x86).
const ENTRY_PREFIXES: [&str; 3] = ["asm_exc_", "asm_sysvec_", "asm_xenpv_exc_"];

/// Entries with other names, and the code of the return path, which an NMI may interrupt (x86).
const ENTRIES: [&str; 16] = [
    "asm_common_interrupt",
    "asm_spurious_interrupt",
    "asm_int80_emulation",
    "asm_fred_entrypoint_kernel",
    "asm_fred_entrypoint_user",
    "asm_fred_exit_user",
    "asm_iret_error",
    "repeat_nmi",
    "end_repeat_nmi",
    "exc_xen_hypervisor_callback",
    "common_interrupt_return",
    "restore_regs_and_return_to_kernel",
    "native_irq_return_iret",
    "error_return",
    "paranoid_exit",
    "nmi_restore",
];

/// Entries from kernel mode (arm64), such as `el1h_64_irq`: a prefix and a kind.
const ARM64_PREFIXES: [&str; 2] = ["el1h_64_", "el1t_64_"];
const ARM64_KINDS: [&str; 4] = ["sync", "irq", "fiq", "error"];

/// Whether a function of the kernel itself is the entry of an interrupt or an exception: the frame
/// that it was entered from is not the return address of a call.
pub(crate) fn is_entry(name: &str) -> bool {
    let arm64 = ARM64_PREFIXES
        .iter()
        .filter_map(|prefix| name.strip_prefix(prefix));
    ENTRY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || ENTRIES.contains(&name)
        || arm64.into_iter().any(|kind| ARM64_KINDS.contains(&kind))
}

/// How the names of plumbing functions begin: probes of a tracepoint, and their callers.
const PLUMBING_PREFIXES: [&str; 3] = ["trace_event_raw_event_", "__traceiter_", "perf_trace_"];

/// Functions of the ring buffer, of probes and of tracers that stand between an event and its
/// stack.
const PLUMBING: [&str; 40] = [
    TRAMPOLINE_NAME,
    "__ftrace_trace_stack",
    "trace_event_buffer_commit",
    "trace_event_buffer_reserve",
    "trace_buffer_unlock_commit_regs",
    "ftrace_syscall_enter",
    "ftrace_syscall_exit",
    "function_stack_trace_call",
    "function_stack_no_repeats_trace_call",
    "ftrace_ops_assist_func",
    "arch_ftrace_ops_list_func",
    "ftrace_graph_func",
    "function_graph_enter_regs",
    "fprobe_fgraph_entry",
    "fprobe_ftrace_entry",
    "fprobe_return",
    "fentry_dispatcher",
    "fexit_dispatcher",
    "fentry_trace_func",
    "__fentry_trace_func",
    "kprobe_dispatcher",
    "kprobe_trace_func",
    "__kprobe_trace_func",
    "kretprobe_dispatcher",
    "kretprobe_trace_func",
    "__kretprobe_trace_func",
    "kretprobe_rethook_handler",
    "rethook_trampoline_handler",
    "arch_rethook_trampoline_callback",
    "arch_rethook_trampoline",
    "aggr_pre_handler",
    "opt_pre_handler",
    "optimized_callback",
    "kprobe_ftrace_handler",
    "kprobe_int3_handler",
    "event_triggers_call",
    "event_triggers_post_call",
    "stacktrace_trigger",
    "event_hist_trigger",
    "action_trace",
];

/// The functions between a breakpoint and a kprobe's handler; plumbing only after other plumbing.
const BREAKPOINT: [&str; 3] = ["do_int3", "exc_int3", "asm_exc_int3"];

/// This module: its frames are plumbing, too.
const STACKMAP: &str = "stackmap";

/// How many of the innermost frames belong to tracing itself. `frames`: name and module of each
/// frame, innermost first. A stack of such frames alone keeps all of them.
pub fn nr_plumbing<'a>(
    frames: impl IntoIterator<Item = Option<(&'a str, Option<&'a str>)>>,
) -> usize {
    let is_plumbing = |nr: usize, (name, module): (&str, Option<&str>)| {
        // A suffix such as .constprop.0 is from the compiler.
        let name = name.split('.').next().unwrap_or(name);
        module == Some(STACKMAP)
            || PLUMBING_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
            || PLUMBING.contains(&name)
            || nr > 0 && BREAKPOINT.contains(&name)
    };
    let mut frames = frames.into_iter().enumerate();
    let other = frames.position(|(nr, frame)| !frame.is_some_and(|frame| is_plumbing(nr, frame)));
    other.unwrap_or(0)
}

/// What the kernel runs to unwind user stacks for those who asked for it.
const DEFERRED: [&str; 3] = [
    "unwind_deferred_task_work",
    "process_unwind_deferred",
    "unwind_user_faultable",
];

/// Returns whether a function, of a module or of the kernel, is one that tells that tracing itself caused an event.
pub fn is_of_tracing(name: &str, module: Option<&str>) -> bool {
    module == Some(STACKMAP) || DEFERRED.contains(&name)
}

/// Returns whether tracing itself caused an event: this module called what it is of, or a page fault in the module. `frames`:
/// those of the event's stack as in [`nr_plumbing`], without the plumbing. What interrupts or preempts the module has other causes.
pub fn is_own<'a>(frames: impl IntoIterator<Item = Option<(&'a str, Option<&'a str>)>>) -> bool {
    for (name, module) in frames.into_iter().flatten() {
        if is_of_tracing(name, module) {
            return true;
        }
        let is_interrupt = is_entry(name) && !name.starts_with(ENTRY_PREFIXES[0]);
        if is_interrupt || name.starts_with("preempt_schedule") {
            return false;
        }
    }
    false
}

/// The name and the module in the text of a frame, as the kernel prints it.
pub fn parts(frame: &str) -> (&str, Option<&str>) {
    let (symbol, module) = match frame.split_once(" [") {
        Some((symbol, module)) => (symbol, module.strip_suffix(']')),
        None => (frame, None),
    };
    let name = symbol.split_once("+0x").map_or(symbol, |(name, _)| name);
    (name, module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_known_by_name() {
        for name in [
            "asm_exc_page_fault",
            "asm_sysvec_apic_timer_interrupt",
            "asm_common_interrupt",
            "end_repeat_nmi",
            "el1h_64_irq",
            "el1t_64_sync",
        ] {
            assert!(is_entry(name), "{name}");
        }
        for name in [
            "exc_page_fault",
            "asm_load_gs_index",
            "asm_fred_entry_from_kvm",
            "error_entry",
            "paranoid_entry",
            "entry_SYSCALL_64_after_hwframe",
            "el1h_64_irq_handler",
        ] {
            assert!(!is_entry(name), "{name}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_stack_is_plumbing() {
        let count = |frames: &[&'static str]| nr_plumbing(frames.iter().map(|f| Some(parts(f))));
        let event = "trace_event_raw_event_kmalloc+0x93/0xe0";
        assert_eq!(count(&[event, "__traceiter_kmalloc+0x1/0x2", "foo"]), 2);
        assert_eq!(count(&["foo", event]), 0);
        assert_eq!(count(&["[FTRACE TRAMPOLINE]", "vfs_read"]), 1);
        let kprobe = [
            "kprobe_trace_func.constprop.0",
            "kprobe_dispatcher",
            "kprobe_int3_handler",
            "do_int3",
            "exc_int3",
            "asm_exc_int3",
            "vfs_read",
        ];
        assert_eq!(count(&kprobe), 6);
        // An event of the breakpoint's own.
        assert_eq!(count(&[event, "irqentry_enter", "exc_int3"]), 1);
        assert_eq!(count(&["walk+0x1/0x2 [stackmap]", "foo [stackmap2]"]), 1);
        // Nothing else would be left.
        assert_eq!(count(&[event]), 0);
        assert_eq!(nr_plumbing([None, Some(parts(event))]), 0);
    }

    #[test]
    fn what_the_module_calls_is_its_own() {
        let own = |frames: &[&'static str]| is_own(frames.iter().map(|frame| Some(parts(frame))));
        let find = "Mappings::find+0x1/0x2 [stackmap]";
        assert!(own(&["krealloc", find, "task_work_run"]));
        assert!(own(&[
            "handle_mm_fault",
            "exc_page_fault",
            "asm_exc_page_fault",
            find
        ]));
        assert!(own(&[
            "kmalloc",
            "process_unwind_deferred",
            "task_work_run"
        ]));
        assert!(!own(&[
            "__schedule",
            "preempt_schedule_irq",
            "asm_sysvec_apic_timer_interrupt",
            find
        ]));
        assert!(!own(&["__schedule", "preempt_schedule_notrace", find]));
        assert!(!own(&["krealloc", "find [stackmap2]", "task_work_run"]));
        assert!(!is_own([None]));
    }
}
