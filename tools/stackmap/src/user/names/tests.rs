// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of a small program, and of what was separated from it.

mod code;
mod segments;

use super::{
    super::{
        binaries::Binary,
        elf::{Facts, Kind},
        segments::{segments_of, Segment},
    },
    *,
};

use object::{Object, ObjectSymbol};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
};
use tempfile::TempDir;

const INDEX: u32 = 7;
/// What is at line 4 is inlined into what is at line 6.
const SOURCE: &str = "\
#include <unistd.h>
volatile int seen;
static inline __attribute__((always_inline)) int inlined(int x)
{ seen = x; return getpid() + seen; }
__attribute__((noinline)) int outer(int x)
{ return inlined(x) * 3; }
int main(int argc, char **argv) { return outer(argc); }
";

/// A program in a directory of its own.
struct Program {
    dir: TempDir,
    build_id: String,
    segments: Vec<Segment>,
    /// Offsets in the file.
    outer: std::ops::Range<u64>,
}

fn run(dir: &Path, command: &str, arguments: &[&str]) {
    let output = Command::new(command)
        .current_dir(dir)
        .args(arguments)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {arguments:?}: {said}");
}

impl Program {
    fn new() -> Self {
        Self::linked(&[])
    }

    /// Linked with more options.
    fn linked(more: &[&str]) -> Self {
        const BUILD_ID: &str = "00112233445566778899aabbccddeeff00112233";
        let dir = tempfile::tempdir().unwrap();
        let build_id = format!("-Wl,--build-id=0x{BUILD_ID}");
        fs::write(dir.path().join("program.c"), SOURCE).unwrap();
        let options = ["-g", "-O2", &build_id, "-o", "program", "program.c"];
        run(dir.path(), "cc", &[&options, more].concat());

        let program = dir.path().join("program");
        let content = fs::read(&program).unwrap();
        let segments = segments_of(&Binary {
            build_id: Some(BUILD_ID.to_owned()),
            size: content.len() as u64,
            path: program,
            ..Binary::default()
        });
        let segments = segments.unwrap();
        let elf = object::File::parse(&content[..]).unwrap();
        let is_outer = |symbol: &object::Symbol<'_, '_>| symbol.name() == Ok("outer");
        let outer = elf.symbols().find(is_outer).unwrap();
        let in_segment = |segment: &Segment| {
            let behind = outer.address().checked_sub(segment.vaddr)?;
            (behind < segment.size).then_some(segment.offset + behind)
        };
        let start = segments.iter().find_map(in_segment).unwrap();
        Self {
            dir,
            build_id: BUILD_ID.to_owned(),
            segments,
            outer: start..start + outer.size(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Moves the debug information to the place of this build-id below `debug`.
    fn separate(&self) -> Places {
        let (dir, rest) = self.build_id.split_at(2);
        let dir = format!("debug/.build-id/{dir}");
        fs::create_dir_all(self.path(&dir)).unwrap();
        let debug = format!("{dir}/{rest}.debug");
        run(
            self.dir.path(),
            "objcopy",
            &["--only-keep-debug", "program", &debug],
        );
        run(self.dir.path(), "strip", &["program"]);
        Places {
            debug_dirs: vec![self.path("debug")],
            ..Places::default()
        }
    }

    fn binary(&self) -> Binary {
        let path = self.path("program");
        Binary {
            build_id: Some(self.build_id.clone()),
            size: fs::metadata(&path).map_or(0, |metadata| metadata.len()),
            path,
            ..Binary::default()
        }
    }

    /// All frames in `outer`, as exact ones.
    fn prime(&self, names: &mut Names, binary: &Binary) {
        let wanted = self.outer.clone().map(exact);
        names.prime(wanted, &table(binary), &mut |_| {});
    }

    /// With debug information, all of `outer` has its name, and some of it what was inlined.
    fn has_debug_names(&self, names: &mut Names) {
        self.prime(names, &self.binary());
        let mut nr_inlined = 0;
        for offset in self.outer.clone() {
            let frames = names.frames(exact(offset));
            let [inlined @ .., outer] = frames else {
                panic!("no frame at {offset:#x}");
            };
            assert_eq!(outer.function.as_deref(), Some("outer"));
            assert_eq!(outer.offset, offset - self.outer.start);
            assert_eq!(outer.size, Some(self.outer.end - self.outer.start));
            assert_eq!((outer.place, outer.inlined), (at(offset), false));
            let source = outer.source.as_ref().unwrap();
            assert!(source.file.ends_with("/program.c"), "{source}");
            for frame in inlined {
                assert_eq!(frame.function.as_deref(), Some("inlined"));
                assert!(frame.inlined);
                assert_eq!(frame.offset, outer.offset);
                let lines = [frame, outer].map(|frame| frame.source.as_ref().unwrap().line);
                assert!((3..=4).contains(&lines[0]) && lines[1] == 6, "{lines:?}");
                nr_inlined += 1;
            }
        }
        assert_ne!(nr_inlined, 0);
        assert_eq!(names.missing().count(), 0);
    }

    /// There are no names at all.
    fn is_missing(&self, mut names: Names, binary: &Binary, why: Missing) {
        self.prime(&mut names, binary);
        assert_eq!(names.frames(exact(self.outer.start)), []);
        assert_eq!(names.missing().collect::<Vec<_>>(), [(INDEX, why)]);
    }
}

fn exact(offset: u64) -> WhichFrame {
    WhichFrame {
        at: at(offset),
        exact: true,
    }
}

fn at(offset: u64) -> At {
    let index = INDEX;
    At::File { index, offset }
}

/// Looks a frame up; returns what names it.
fn look_up<'n>(names: &'n mut Names, frame: WhichFrame, binaries: &Binaries) -> &'n [Named] {
    names.prime([frame].into_iter(), binaries, &mut |_| {});
    names.frames(frame)
}

/// The function of such a frame.
fn function_of(names: &mut Names, frame: WhichFrame, binaries: &Binaries) -> Option<String> {
    let last = look_up(names, frame, binaries).last();
    last.and_then(|named| named.function.as_deref().map(str::to_owned))
}

fn table(binary: &Binary) -> Binaries {
    let build_id = binary.build_id.as_deref().unwrap_or("-");
    let (ino, size) = (binary.ino, binary.size);
    let path = binary.path.display();
    Binaries::parse(format!("{INDEX} {build_id} 0:1 {ino} {size} {path}\n"))
}

#[test]
fn a_file_names_its_functions() {
    let program = Program::new();
    let mut names = Names::new(Places::default());
    assert_eq!(names.frames(exact(program.outer.start)), []);
    program.has_debug_names(&mut names);

    // A return address may be past the end of the function.
    let (end, table) = (exact(program.outer.end), table(&program.binary()));
    let returned = WhichFrame {
        exact: false,
        ..end
    };
    let frame = look_up(&mut names, returned, &table).last().unwrap();
    assert_eq!(frame.function.as_deref(), Some("outer"));
    assert_eq!(Some(frame.offset), frame.size);
    let next = function_of(&mut names, end, &table);
    assert_ne!(next.as_deref(), Some("outer"));
}

#[test]
fn debug_information_may_be_compressed() {
    for form in ["-gz=zlib", "-gdwarf-4"] {
        Program::linked(&[form]).has_debug_names(&mut Names::new(Places::default()));
    }
}

/// What nothing reads, or is in another file that the executable names.
#[test]
fn a_file_has_its_functions_whatever_its_debug_information() {
    for form in ["-gz=zlib-gnu", "-gsplit-dwarf", "zstd"] {
        let program = match form {
            "zstd" => {
                let program = Program::new();
                let compress = ["--compress-debug-sections=zstd", "program"];
                run(program.dir.path(), "objcopy", &compress);
                program
            }
            form => Program::linked(&[form]),
        };
        let mut names = Names::new(Places::default());
        program.prime(&mut names, &program.binary());
        for offset in program.outer.clone() {
            let outer = names.frames(exact(offset)).last();
            let function = outer.and_then(|outer| outer.function.as_deref());
            assert_eq!(function, Some("outer"), "{form}");
        }
        assert_eq!(names.missing().count(), 0, "{form}");
    }
}

#[test]
fn what_is_separate_has_the_same_names() {
    let program = Program::new();
    let places = program.separate();
    let mut stripped = Names::new(Places::default());
    program.prime(&mut stripped, &program.binary());
    assert_eq!(stripped.frames(exact(program.outer.start)), []);
    program.has_debug_names(&mut Names::new(places.clone()));

    // Of the executable, only the segments are left.
    fs::remove_file(program.path("program")).unwrap();
    let segments = Recorded::new([(INDEX, program.segments.clone())].into_iter());
    let text = serde_json::to_string(&segments).unwrap();
    assert_eq!(serde_json::from_str::<Recorded>(&text).unwrap(), segments);
    program.has_debug_names(&mut Names::new(places.clone()).with_segments(segments));
    program.is_missing(Names::new(places), &program.binary(), Missing::NoSegments);
}

/// The segment with the header of the file is what `objcopy` does not move.
#[test]
fn a_debug_file_may_have_its_segments() {
    let program = Program::linked(&["-no-pie", "-Wl,-z,noseparate-code"]);
    let places = program.separate();
    fs::remove_file(program.path("program")).unwrap();
    program.has_debug_names(&mut Names::new(places));
}

/// What a file of anybody, or a debug file, names.
#[test]
fn what_a_file_names_is_not_opened() {
    for is_debug in [false, true] {
        let program = Program::new();
        let link = program.path("link");
        let (places, option, file) = match is_debug {
            false => (
                Places::default(),
                "--add-gnu-debuglink=link",
                "program".to_owned(),
            ),
            true => {
                let (dir, rest) = program.build_id.split_at(2);
                let debug = format!("debug/.build-id/{dir}/{rest}.debug");
                (
                    program.separate(),
                    "--add-section=.gnu_debugaltlink=link",
                    debug,
                )
            }
        };
        fs::write(&link, format!("{}\0", link.display())).unwrap();
        run(program.dir.path(), "objcopy", &[option, &file]);
        fs::remove_file(&link).unwrap();
        // Whoever opens it waits for a writer.
        rustix::fs::mkfifoat(rustix::fs::CWD, &link, rustix::fs::Mode::RUSR).unwrap();
        let mut names = Names::new(places);
        program.prime(&mut names, &program.binary());
        let [frame] = names.frames(exact(program.outer.start)) else {
            panic!("debug information was read");
        };
        assert_eq!(frame.function.as_deref(), Some("outer"));
        assert_eq!(frame.source, None);
    }
}

#[test]
fn another_file_is_not_used() {
    let program = Program::new();
    let names = || {
        Names::new(Places {
            since: Some(i64::MAX),
            ..Places::default()
        })
    };
    let other = Binary {
        build_id: Some("00112233445566778899aabbccddeeff00112234".to_owned()),
        ..program.binary()
    };
    program.is_missing(names(), &other, Missing::OtherFile);
    for path in ["/nowhere", "program", "/dev/zero", "/", "/tmp/../tmp"] {
        let path = path.into();
        let nowhere = Binary {
            path,
            ..program.binary()
        };
        program.is_missing(names(), &nowhere, Missing::NotFound);
    }
    assert_eq!(segments_of(&other), None);
    let no_elf = Binary {
        path: program.path("program.c"),
        size: SOURCE.len() as u64,
        ..program.binary()
    };
    assert_eq!(segments_of(&no_elf), None);
}

#[test]
fn a_file_without_a_build_id_is_known_by_its_inode_here() {
    let program = Program::new();
    let metadata = fs::metadata(program.path("program")).unwrap();
    let binary = Binary {
        build_id: None,
        ino: metadata.ino(),
        size: metadata.len(),
        ..program.binary()
    };
    let names = |since| {
        Names::new(Places {
            since,
            ..Places::default()
        })
    };
    let changed = metadata.ctime();
    let mut found = names(Some(changed + 1));
    program.prime(&mut found, &binary);
    assert!(!found.frames(exact(program.outer.start)).is_empty());
    program.is_missing(names(None), &binary, Missing::NoBuildId);
    program.is_missing(names(Some(changed)), &binary, Missing::NoBuildId);
    let grown = Binary {
        size: binary.size + 1,
        ..binary
    };
    program.is_missing(names(Some(changed + 1)), &grown, Missing::NoBuildId);
}

#[test]
fn a_damaged_file_is_no_harm() {
    let program = Program::new();
    let path = program.path("program");
    let content = fs::read(&path).unwrap();
    for length in (0..content.len()).step_by(content.len() / 40) {
        fs::write(&path, &content[..length]).unwrap();
        let mut names = Names::new(Places::default());
        program.prime(&mut names, &program.binary());
    }
}

#[test]
fn the_vdso_is_an_image() {
    let program = Program::new();
    let at = At::File {
        index: VDSO,
        offset: program.outer.start,
    };
    let frame = WhichFrame { at, exact: true };
    let none = Binaries::default();
    let named = |image: Vec<u8>| {
        let mut names = Names::new(Places::default());
        names.set_vdso(VDSO, image);
        let function = function_of(&mut names, frame, &none);
        assert_eq!(names.missing().count(), 0);
        function
    };
    let image = fs::read(program.path("program")).unwrap();
    assert_eq!(named(image.clone()).as_deref(), Some("outer"));
    let mut late = Names::new(Places::default());
    look_up(&mut late, frame, &none);
    late.set_vdso(VDSO, image);
    assert_eq!(look_up(&mut late, frame, &none).len(), 1);
    assert_eq!(named(Vec::new()), None);
    assert_eq!(named(vec![0; 4096]), None);
}

#[test]
fn generated_code_is_named_by_its_process() {
    let process = |tgid| Process { tgid, start: 1 };
    let at = |process, address| WhichFrame {
        at: At::Address { address, process },
        exact: false,
    };
    let wanted = [
        at(Some(process(1)), 0x2010),
        at(Some(process(1)), 0x2000),
        at(Some(process(2)), 0x2010),
        at(None, 0x2010),
    ];
    let mut names = Names::new(Places::default());
    // What was not known before is looked up again.
    names.prime(wanted.into_iter(), &Binaries::default(), &mut |_| {});
    names.add_perf_map(process(1), b"2000 10 a b".to_vec());
    names.prime(wanted.into_iter(), &Binaries::default(), &mut |_| {});
    let frames = wanted.map(|frame| names.frames(frame));
    let want = Named {
        function: Some("a b".into()),
        offset: 0x10,
        size: Some(0x10),
        inlined: false,
        source: None,
        place: wanted[0].at,
    };
    assert_eq!(frames, [&[want][..], &[], &[], &[]]);
}

/// A section that grows to more than there is memory for takes none.
#[test]
fn packed_symbols_are_bounded() {
    let program = Program::new();
    let symbols = program.path("symbols");
    run(
        program.dir.path(),
        "objcopy",
        &["--strip-debug", "program", "symbols"],
    );
    let symbols = fs::read(symbols).unwrap();
    run(program.dir.path(), "strip", &["program"]);
    fs::rename(program.path("program"), program.path("stripped")).unwrap();
    let xz = |content: &mut dyn Read| {
        let mut packed = xz2::write::XzEncoder::new(Vec::new(), 0);
        io::copy(content, &mut packed).unwrap();
        packed.finish().unwrap()
    };
    let name = |content: &[u8]| {
        fs::write(program.path("added"), content).unwrap();
        let add = [
            "--add-section",
            ".gnu_debugdata=added",
            "stripped",
            "program",
        ];
        run(program.dir.path(), "objcopy", &add);
        let file = File::open(program.path("program")).unwrap();
        assert_eq!(Facts::read(&file).unwrap().kind, Some(Kind::Symbols));
        let mut names = Names::new(Places::default());
        program.prime(&mut names, &program.binary());
        let [frame] = names.frames(exact(program.outer.start)) else {
            return None;
        };
        frame.function.clone()
    };
    let outer = Some("outer");
    assert_eq!(name(&xz(&mut &symbols[..])).as_deref(), outer);
    let zeros = |size| io::repeat(0).take(size);
    assert_eq!(
        name(&xz(&mut symbols.chain(zeros(1 << 20)))).as_deref(),
        outer
    );
    assert_eq!(name(&xz(&mut symbols.chain(zeros(64 << 20)))), None);
    assert_eq!(name(b"this is no xz"), None);
}

/// Without recorded segments, the one that ran has the recorded size.
#[test]
fn of_two_files_of_one_build_id_the_one_of_that_size_is_used() {
    let program = Program::new();
    let binary = program.binary();
    let debug = program.path("debug");
    fs::create_dir(&debug).unwrap();
    fs::rename(program.path("program"), debug.join("program")).unwrap();
    // Another layout, and more symbols.
    let build_id = format!("-Wl,--build-id=0x{}", program.build_id);
    let more = format!("int more(void) {{ return 1; }}\n{SOURCE}");
    fs::write(program.path("more.c"), more).unwrap();
    run(
        program.dir.path(),
        "cc",
        &["-O0", &build_id, "-o", "program", "more.c"],
    );
    let places = Places {
        debug_dirs: vec![debug],
        ..Places::default()
    };
    let mut names = Names::new(places);
    program.prime(&mut names, &binary);
    for offset in program.outer.clone() {
        let outer = names.frames(exact(offset)).last().unwrap();
        assert_eq!(outer.function.as_deref(), Some("outer"));
        assert_eq!(outer.offset, offset - program.outer.start);
    }
}

#[test]
fn names_without_end_are_not_kept() {
    let mut texts = Texts::default();
    let long = "x".repeat(MAX_NAMES / 3);
    assert!(texts.keep(&long).is_some());
    assert!(texts.keep(&long[1..]).is_some());
    assert!(texts.keep(&long[2..]).is_none());
    // What is known takes no space.
    assert!(texts.keep(&long).is_some());
    assert!(texts.keep("short").is_some());
}
