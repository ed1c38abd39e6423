// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lookups by the kernel's own rules.

use super::*;

const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000100 T _stext
ffffffff81000200 T one
ffffffff81000240 t two
ffffffff81000240 t two_alias
ffffffff81000280 T three
ffffffff82000000 T _end
ffffffffc0001000 t first_of_mod\t[mod]
ffffffffc0001100 t last_of_mod\t[mod]
ffffffffc0008000 t bpf_prog_6deef7357e7b4530\t[bpf]
ffffffffc0009000 t _RNvNtCs1234_6kernel4task7current\t[rusty]
";

const MODULES: &str = "\
mod 12288 0 - Live 0xffffffffc0001000
rusty 4096 0 - Live 0xffffffffc0009000
";

fn table() -> Kallsyms {
    let modules = Modules::parse(MODULES);
    Kallsyms::parse(TEXT.as_bytes().to_vec(), &modules, "kallsyms").unwrap()
}

fn name(ip: u64, first: bool) -> String {
    table().symbol(ip, first).map_or("-".to_owned(), |symbol| {
        format!(
            "{}+{:x}/{:x}{}",
            symbol.name,
            symbol.offset,
            symbol.size.unwrap_or(0),
            symbol
                .module
                .map_or(String::new(), |name| format!(" [{name}]"))
        )
    })
}

#[test]
fn addresses_outside_the_table_have_no_name() {
    assert_eq!(name(0xffff_ffff_8000_0000, true), "-");
    assert_eq!(name(0xffff_ffff_8200_0001, true), "-");
    // The last function of a module reaches to the end of its page at most: after it may lie others that were freed.
    assert_eq!(name(0xffff_ffff_c000_1200, true), "last_of_mod+100/0 [mod]");
    assert_eq!(name(0xffff_ffff_c000_1fff, true), "last_of_mod+eff/0 [mod]");
    assert_eq!(name(0xffff_ffff_c000_2000, true), "-");
    assert_eq!(name(0xffff_ffff_c000_4000, true), "-");
    assert_eq!(name(0, false), "-");
    assert_eq!(name(u64::MAX, true), "-");
}

#[test]
fn a_prefix_is_of_the_function_behind_it_and_a_label_of_the_one_before() {
    let text = "ffffffff81000100 t one\nffffffff81000200 t __pfx_two\nffffffff81000210 t two\n\
                ffffffff81000230 t .Lloop\nffffffff81000300 t three\n";
    let table = Kallsyms::parse(text.into(), &Modules::default(), "").unwrap();
    for (low, want) in [
        (0x1ff, "one"),
        (0x200, "two"),
        (0x208, "two"),
        (0x235, "two"),
    ] {
        let symbol = table.symbol(0xffff_ffff_8100_0000 + low, true).unwrap();
        assert_eq!(symbol.name, want, "{low:x}");
    }
}

#[test]
fn rust_names_are_demangled() {
    let name = name(0xffff_ffff_c000_9004, true);
    assert_eq!(name, "kernel::task::current+4/0 [rusty]");
}

#[test]
fn knows_where_the_kernel_lies() {
    assert_eq!(table().text_base(), Some(0xffff_ffff_8100_0000));
}

#[test]
fn says_when_the_kernel_hides_its_addresses() {
    let text = b"0000000000000000 T _text\n0000000000000000 T one\n".to_vec();
    let error = Kallsyms::parse(text, &Modules::default(), "/proc/kallsyms");
    let error = error.err().unwrap().to_string();
    assert!(error.contains("kptr_restrict"), "{error}");
}

#[test]
fn refuses_other_files() {
    let text = b"ffffffff81000000 T _text\n\nwhat is this\n".to_vec();
    let error = Kallsyms::parse(text, &Modules::default(), "F")
        .err()
        .unwrap();
    assert_eq!(error.exit_status(), 2);
    assert!(error.to_string().starts_with("F: at byte 26: "), "{error}");
    let empty = Kallsyms::parse(Vec::new(), &Modules::default(), "").unwrap();
    assert_eq!(empty.text_base(), None);
    // Bytes that are no UTF-8 are no reason to stop.
    let text = b"ffffffff81000000 T \xff\xfe\n".to_vec();
    Kallsyms::parse(text, &Modules::default(), "").unwrap();
}

#[test]
fn a_slim_table_has_the_same_entries() {
    let text = "ffffffff81000000 T _text\n\
                ffffffff81000100 T alias\n\
                ffffffff81000100 T asm_exc_page_fault\n\
                ffffffff81000100 T other\n\
                ffffffff81000140 T after\n\
                ffffffff81000180 T more\n";
    let modules = Modules::default();
    let whole = Kallsyms::parse(text.into(), &modules, "").unwrap();
    let ip = 0xffff_ffff_8100_0120;
    let slim = whole.slim([(ip, false), (ip, false)].into_iter());
    assert!(!slim.contains("other") && !slim.contains("more"), "{slim}");
    let slim = Kallsyms::parse(slim.into_bytes(), &modules, "").unwrap();
    assert_eq!(slim.symbol(ip, false), whole.symbol(ip, false));
    assert_eq!(slim.symbol(ip, false).unwrap().name, "alias");
    for address in [ip, ip + 0x1f, ip + 0x20] {
        assert_eq!(
            slim.is_entry(address),
            whole.is_entry(address),
            "{address:x}"
        );
    }
    assert!(slim.is_entry(ip));
}

#[test]
fn large_tables_are_searched_like_small_ones() {
    for count in [1, 63, 64, 65, 128, 200] {
        // Each address twice, so that some stand on both sides of a block's end.
        let address = |index: u64| 0x10000 + index / 2 * 0x10;
        let lines = (0..count).map(|index| format!("{:x} t f{index}\n", address(index)));
        let text: String = lines.collect();
        let table = Kallsyms::parse(text.into(), &Modules::default(), "kallsyms").unwrap();
        for ip in 0x10000 - 2..address(count) + 0x20 {
            let want = (0..count).filter(|index| address(*index) <= ip).count();
            assert_eq!(table.after(ip), want, "{count} {ip:x}");
        }
    }
}

#[test]
fn functions_of_tracing_are_found_by_their_addresses() {
    let text = "1000 t unwind_user_faultable\n1020 t other\n\
                2000 t one\t[other]\n3000 t one\t[stackmap]\n3010 t two\t[stackmap]\n";
    let table = Kallsyms::parse(text.into(), &Modules::default(), "kallsyms").unwrap();
    // The last function ends somewhere.
    let found = [0x1000, 0x101f, 0x3000, 0x300f, 0x3010, 0x30ff];
    assert!(found.iter().all(|address| table.is_of_tracing(*address)));
    let others = [0xfff, 0x1020, 0x2000, 0x2fff, 0x3010 + REACH_UNKNOWN];
    assert!(!others.iter().any(|address| table.is_of_tracing(*address)));
}
