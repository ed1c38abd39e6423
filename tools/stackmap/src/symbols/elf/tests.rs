// SPDX-License-Identifier: MIT OR Apache-2.0

//! Inlined functions and lines, of files that the compiler has just made.

use super::*;
use crate::symbols::Symbols;
use tempfile::TempDir;

/// Compiles C to a file `m.ko` in a directory of its own.
fn compiled(text: &str, flags: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.c"), text).unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(flags.split(' ')).args(["-g", "m.c", "-o", "m.ko"]);
    assert!(cc.current_dir(dir.path()).status().unwrap().success());
    dir
}

#[test]
fn compiler_suffixes_do_not_make_another_function() {
    assert!(same_function("foo", "foo.isra.0"));
    assert!(same_function("foo.constprop.0", "foo"));
    assert!(!same_function("foo", "bar"));
    assert!(same_function(
        "_RNvNtCs1234_6kernel4task7current",
        "kernel::task::current"
    ));
}

#[test]
fn an_elf_file_is_read_at_its_link_addresses() {
    let dir = compiled("int main(void) { return 0; }\n", "-O1");
    let exe = dir.path().join("m.ko");
    let inspector = inspect::Inspector::new();
    let source = inspect::source::Source::Elf(inspect::source::Elf::new(&exe));
    let main = inspector.lookup(&source, &["main"]).unwrap()[0][0].addr;

    let kaslr_offset = 0xffff_0000_0000;
    let files = Files {
        vmlinux: Some(exe),
        kaslr_offset: Some(kaslr_offset),
        ..Files::default()
    };
    let mut debug_info = DebugInfo::open(&files, None).unwrap();
    let ip = main + kaslr_offset;
    let ips = [
        (ip, true),
        (ip + 1, false),
        (TRAMPOLINE_MARKER, false),
        (1, false),
    ];
    debug_info.look_up_all(debug_info.unknown(ips.into_iter()), None, &mut |_| {});
    let symbols = Symbols {
        debug_info: Some(debug_info),
        ..Symbols::default()
    };
    for (ip, first) in [(ip, true), (ip + 1, false)] {
        let outer = symbols.frames(ip, first).last().unwrap();
        let Place::Symbol(symbol) = outer.place else {
            panic!("{outer:?}");
        };
        assert_eq!(symbol.name, "main");
        assert_eq!(symbol.offset, ip - main - kaslr_offset);
        assert!(!outer.inlined);
    }
    assert_eq!(
        symbols.frames(1, false).next().unwrap().place,
        Place::Unknown
    );
    let marker = symbols.frames(TRAMPOLINE_MARKER, false).next().unwrap();
    assert_eq!(marker.place, Place::Trampoline);
}

#[test]
fn another_kernel_is_refused() {
    let exe = std::env::current_exe().unwrap();
    let error = check_build_id(&exe, Some("00ff")).unwrap_err();
    assert_eq!(error.exit_status(), 2);
    assert!(error.to_string().contains("another kernel"), "{error}");

    let error = check_build_id(Path::new("/proc/self/status"), None).unwrap_err();
    assert!(error.to_string().contains("not a vmlinux"), "{error}");
    let error = check_build_id(Path::new("/nowhere"), None).unwrap_err();
    assert!(
        error.to_string().contains("cannot read /nowhere"),
        "{error}"
    );
}

/// As a module is: two sections at address 0, and everything else left to relocations.
const MODULE: &str = "\
int last(int x) __attribute__((section(\".exit.text\")));
int last(int x) { return x + 1; }
static inline __attribute__((always_inline)) int twice(volatile int *x)
{
	return *x * 2;
}
int work(volatile int *x) { return twice(x); }
";

#[test]
fn a_relocatable_file_knows_its_lines() {
    let dir = compiled(MODULE, "-O1 -fcf-protection=none -c");

    let (work, last) = (0xffff_ffff_c000_0000u64, 0xffff_ffff_c000_1000u64);
    let text = format!("{work:x} t work\t[m]\n{last:x} t last\t[m]\n");
    let kallsyms = Kallsyms::parse(text.into(), &Default::default(), "kallsyms").unwrap();
    let files = Files {
        modules: Some(dir.path().to_owned()),
        ..Files::default()
    };
    let mut debug_info = DebugInfo::open(&files, Some(&kallsyms)).unwrap();
    let ips = [work, last].map(|ip| (ip, true));
    debug_info.look_up_all(
        debug_info.unknown(ips.into_iter()),
        Some(&kallsyms),
        &mut |_| {},
    );
    let symbols = Symbols {
        kallsyms: Some(kallsyms),
        debug_info: Some(debug_info),
        ..Symbols::default()
    };
    let shown = |ip: u64| -> Vec<String> {
        let frames = symbols.frames(ip, true);
        let frames = frames.map(|frame| {
            let line = frame.source.map(|source| source.line);
            format!("{frame} {line:?}")
        });
        frames.collect()
    };
    let want = ["twice [m] (inlined) Some(5)", "work+0x0/0x1000 [m] Some(7)"];
    assert_eq!(shown(work), want);
    assert_eq!(shown(last), ["last+0x0 [m] Some(2)"]);
}
