// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::{
    filter::{EventGlob, Filter},
    stack_map_bin::{self, Order},
};
use regex::Regex;
use std::fs;

/// The text of a running kernel: threads, and the systems of its list.
#[test]
fn a_live_trace_is_filtered() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
    fs::create_dir(dir.path().join("options")).unwrap();
    put("options/stackmap", b"1\n");
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, None, [].into_iter()).unwrap();
    put("stack_map_bin", &bin);
    put("available_events", b"kmem:kmalloc\nsched:sched_switch\n");
    let line =
        |comm, tgid, time, what| format!("{comm:>16}-{tgid} [000] ..... 1.00000{time}: {what}\n");
    let trace = [
        line("a", "5     (      5)", 1, "kmalloc: x=1"),
        line("a", "5     (      5)", 2, "<stack trace>"),
        " => foo+0x1/0x2\n => bar+0x1/0x2 [mod]\n".to_owned(),
        line("b", "6     (      5)", 3, "sched_switch: x=1"),
        line("b", "6     (      5)", 4, "<stack trace>"),
        " => bar+0x1/0x2 [mod]\n".to_owned(),
        line("c", "7     (-------)", 5, "kmalloc: x=1"),
    ]
    .concat();
    put("trace", trace.as_bytes());
    let mut source = Source::open(None, Some(dir.path())).unwrap();
    source.hold_trace().unwrap();
    let available = source.available_events().unwrap().unwrap();
    let mut kept = |change: &dyn Fn(&mut Filter)| {
        let mut filter = Filter::default();
        change(&mut filter);
        filter.set_systems(&available);
        let loaded = Loaded {
            filter,
            ..Loaded::default()
        };
        let (mut tasks, mut notes) = (Vec::new(), Notes::default());
        for_each(&mut source, &loaded, &mut notes, &mut |event, _| {
            tasks.push(event.comm.clone());
            Ok(())
        })
        .unwrap();
        let tally = super::tally(&mut source, &loaded, &mut notes, By::Comm).unwrap();
        assert_eq!(tally.total().events, tasks.len() as u64);
        tasks.sort();
        tasks.concat()
    };
    assert_eq!(kept(&|_| {}), "abc");
    assert_eq!(kept(&|filter| filter.pids = vec![5]), "ab");
    assert_eq!(kept(&|filter| filter.pids = vec![6, 7]), "bc");
    let event = |word: &str| vec![EventGlob::new(word).unwrap()];
    assert_eq!(kept(&|filter| filter.events = event("kmem:")), "ac");
    assert_eq!(kept(&|filter| filter.events = event("sched")), "b");
    let stack = |regex: &str| vec![Regex::new(regex).unwrap()];
    assert_eq!(kept(&|filter| filter.stacks = stack("^foo$")), "a");
    assert_eq!(kept(&|filter| filter.stacks = stack(r"\[mod\]")), "ab");
}
