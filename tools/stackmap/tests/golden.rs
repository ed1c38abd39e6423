// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tool prints of captures that a guest produced, word for word.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn stackmap(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_stackmap"))
        .args(arguments)
        .current_dir(data())
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        text(output.stdout),
        text(output.stderr),
        output.status.code(),
    )
}

/// Compares what a command prints to the file of this name.
fn golden(name: &str, command: &str) {
    let arguments: Vec<_> = command.split(' ').collect();
    let (stdout, stderr, status) = stackmap(&arguments);
    let status = status.unwrap_or(-1);
    let got = format!("$ stackmap {command}\n{stdout}-- {status}\n{stderr}");
    let path = data().join("golden").join(format!("{name}.txt"));
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &got).unwrap();
        return;
    }
    let want = fs::read_to_string(&path).unwrap_or_default();
    if got != want {
        let line = got
            .lines()
            .zip(want.lines())
            .position(|(got, want)| got != want);
        let line = line.unwrap_or(got.lines().count().min(want.lines().count()));
        panic!(
            "{} differs in line {}:\n got: {:?}\nwant: {:?}",
            path.display(),
            line + 1,
            got.lines().nth(line),
            want.lines().nth(line)
        );
    }
}

#[test]
fn dump() {
    golden("dump", "dump --kallsyms kallsyms stack_map_bin");
    golden("dump-raw", "dump --top 2 stack_map_bin");
    golden("dump-capture", "dump --top 2 before.data");
    golden(
        "dump-stable",
        "dump --stable --top 2 --sort depth before.data",
    );
    golden("dump-stable-raw", "dump --stable --top 1 stack_map_bin");
    golden("dump-json", "dump --json --top 2 --sort depth before.data");
    golden("dump-json-raw", "dump --json --top 1 stack_map_bin");
}

#[test]
fn report() {
    golden("report", "report --top 2 before.data");
    golden(
        "report-comm",
        "report --by comm --top 1 --depth 2 before.data",
    );
    golden(
        "report-cpu",
        "report --by cpu --top 1 --depth 2 before.data",
    );
    golden("report-stack", "report --by stack --top 3 before.data");
    golden("report-function", "report function.data");
    golden(
        "report-plumbing",
        "report --plumbing --top 1 --depth 4 before.data",
    );
    golden("report-full", "report --top 1 --depth 4 full.data");
    golden(
        "report-overwritten",
        "report --top 1 --depth 4 overwritten.data",
    );
}

#[test]
fn trees() {
    golden("tree", "report --tree --event kmalloc --min 2 before.data");
    golden(
        "tree-inverted",
        "report --tree --inverted --by comm --depth 3 user.data",
    );
    golden(
        "tree-callers",
        "report --callers __kmalloc* --by stack --min 3 before.data",
    );
    golden(
        "tree-callees",
        "report --callees path_lookupat --weight bytes_alloc mixed.data",
    );
    golden("tree-nobody", "report --callees nobody mixed.data");
}

#[test]
fn resolve() {
    golden(
        "resolve",
        "resolve --map stack_map_bin --kallsyms kallsyms trace",
    );
    golden("resolve-inline", "resolve --inline function.data");
    golden("resolve-offsets", "resolve --offsets function.data");
    golden("resolve-unknown", "resolve --map stack_map_bin stale.trace");
    golden(
        "resolve-stale",
        "resolve --map overwritten.data stale.trace",
    );
    golden(
        "resolve-trace-cmd",
        "resolve --map trace-cmd.stack_map_bin --kallsyms kallsyms trace-cmd.report",
    );
}

#[test]
fn others() {
    golden("folded", "folded before.data");
    golden("folded-comm", "folded --by comm function.data");
    golden("folded-map", "folded --map function.data");
    golden("diff", "diff --top 3 before.data after.data");
    golden(
        "diff-function",
        "diff --of function --top 8 before.data after.data",
    );
    golden("diff-nothing", "diff before.data before.data");
    golden(
        "diff-rate",
        "diff --compare rate --top 2 before.data after.data",
    );
    golden(
        "diff-total",
        "diff --compare total --top 2 before.data after.data",
    );
    golden("diff-events", "diff --top 1 before.data function.data");
    golden("stat", "stat full.data");
    golden("stat-json", "stat --json before.data");
    golden("export-json", "export --format json function.data");
}

#[test]
fn user_stacks() {
    golden("user-report", "report user.data");
    golden(
        "user-report-only",
        "report --user --by comm --depth 3 user.data",
    );
    golden(
        "user-report-kernel",
        "report --kernel --top 1 --depth 2 user.data",
    );
    golden("user-resolve", "resolve --offsets user.data");
    golden("user-resolve-inline", "resolve --inline user.data");
    golden("user-folded", "folded --by comm user.data");
    golden("user-folded-map", "folded --map --user user.data");
    golden("user-dump", "dump --user user.data");
    golden("user-dump-stable", "dump --user --stable --top 2 user.data");
    golden("user-dump-json", "dump --user --json --top 1 user.data");
    golden(
        "user-diff",
        "diff --user --of function --top 3 user.data user.data",
    );
    golden("user-stat", "stat user.data");
    golden("user-stat-json", "stat --json user.data");
    golden("user-export-json", "export --format json user.data");
}

/// Without addresses, `dump` prints what the kernel prints.
#[test]
fn dump_is_the_kernels_own_text() {
    let dump = [
        "dump",
        "--plumbing",
        "--kallsyms",
        "kallsyms",
        "stack_map_bin",
    ];
    let (stdout, _, _) = stackmap(&dump);
    let without = stdout.lines().map(|line| match line.split_once("] 0x") {
        Some((index, rest)) => {
            let (_, name) = rest.split_once(' ').unwrap_or_default();
            format!("{index}] {name}\n")
        }
        None => format!("{line}\n"),
    });
    let kernel = fs::read_to_string(data().join("stack_map")).unwrap();
    assert_eq!(without.collect::<String>(), kernel);
}

/// What `resolve` puts into a trace, `report` reads as it reads the ids.
#[test]
fn resolved_text_can_be_read_again() {
    let (resolved, _, _) = stackmap(&["resolve", "before.data"]);
    let frames = |text: &str| text.lines().filter(|line| line.starts_with(" => ")).count();
    let (inline, _, _) = stackmap(&["resolve", "--inline", "before.data"]);
    assert_eq!(frames(&inline), 0);
    let stacks = resolved.matches("<stack trace>").count();
    assert_eq!(stacks, inline.matches("<stack_id ").count());
    assert!(stacks > 10 && frames(&resolved) > 5 * stacks);
}
