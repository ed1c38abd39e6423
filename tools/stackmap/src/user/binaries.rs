// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files that user stacks have frames in: `stack_map_binaries`.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    io::{self, BufRead, Read},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

/// The index of the 64-bit vDSO, and that of 32-bit tasks: they are in no file.
pub const VDSO: u32 = 0;
/// See [`VDSO`].
pub const VDSO32: u32 = 1;

/// As many files as the module knows, and both vDSOs: a capture may be anybody's.
pub const MAX_FILES: usize = 8192 + 2;
/// More than the line of a file has, in bytes: each byte of its path may be escaped.
const MAX_LINE: u64 = 20_000;
/// More than all lines have, in bytes: 8,192 with the longest paths.
const MAX_LINES: usize = 160 << 20;
/// The longest path and the longest name that the kernel shows, in bytes.
const PATH_MAX: usize = 4096 + DELETED.len();
const NAME_MAX: usize = 255 + DELETED.len();
const DELETED: &str = " (deleted)";
/// Digits of a build-id that distinguish one build from another; all of them if they do not.
const BUILD_DIGITS: usize = 8;

/// A file that user stacks have frames in.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Binary {
    /// The build-id, in hexadecimal digits; [`None`]: it has none that is known.
    pub build_id: Option<String>,
    /// The device as the module prints it.
    pub dev: String,
    /// The inode number.
    pub ino: u64,
    /// The size, in bytes.
    pub size: u64,
    /// The path when the file was first seen, as the task saw it that ran the file.
    pub path: PathBuf,
}

impl Binary {
    /// The last part of the path, for people.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// The last part of the path, as it is, whether the file is deleted or not.
    pub(crate) fn name_bytes(&self) -> &[u8] {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        let name = name.as_bytes();
        name.strip_suffix(DELETED.as_bytes()).unwrap_or(name)
    }

    /// `name`, and what distinguishes the file from others of that name: the first digits of the build-id.
    fn exact_name(&self, name: &str, digits: usize) -> String {
        match self.identity() {
            Ok(id) => format!("{name}@{}", id.get(..digits).unwrap_or(id)),
            Err((dev, ino)) => format!("{name}@{dev}:{ino}"),
        }
    }

    /// The name of a file with a build-id, whether it is deleted or not: it is the same build.
    fn name_of_build(&self) -> Option<String> {
        self.build_id.as_ref()?;
        let name = self.name();
        Some(name.strip_suffix(DELETED).unwrap_or(&name).to_owned())
    }

    /// What distinguishes it from other files of its name.
    fn identity(&self) -> Result<&str, (&str, u64)> {
        self.build_id.as_deref().ok_or((&self.dev, self.ino))
    }

    fn parse(line: &[u8]) -> Option<(u32, Self)> {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let mut word = || str::from_utf8(words.next()?).ok();
        let index = word()?.parse().ok()?;
        let build_id = match word()? {
            "-" => None,
            id if id.bytes().all(|byte| byte.is_ascii_hexdigit()) => Some(id.to_ascii_lowercase()),
            _ => return None,
        };
        let binary = Self {
            build_id,
            dev: word().filter(|dev| is_device(dev))?.to_owned(),
            ino: word()?.parse().ok()?,
            size: word()?.parse().ok()?,
            // It may have any bytes.
            path: unescape(words.next()?),
        };
        let path_len = binary.path.as_os_str().len();
        let name_len = binary.path.file_name().map_or(path_len, OsStr::len);
        (path_len <= PATH_MAX && name_len <= NAME_MAX).then_some((index, binary))
    }
}

/// `MAJOR:MINOR`.
fn is_device(dev: &str) -> bool {
    let is_part = |part: &str| part.parse::<i64>().is_ok();
    matches!(dev.split_once(':'), Some((major, minor)) if is_part(major) && is_part(minor))
}

/// All files.
#[derive(Clone, Debug, Default)]
pub struct Binaries {
    by_index: HashMap<u32, Binary>,
    /// Names that files have which differ, and the digits of build-ids that it takes to tell them apart.
    ambiguous: HashMap<String, usize>,
    /// The capture, if its frames are compared with those of another.
    compared: Option<Compared>,
}

/// What distinguishes files of two captures.
#[derive(Clone, Debug)]
struct Compared {
    capture: String,
    /// Names that builds have which differ, see [`Binaries::ambiguous`].
    builds: HashMap<String, usize>,
    /// Names that files without a build-id have which differ in one capture.
    others: HashMap<String, usize>,
}

impl Binaries {
    /// Those of a text, see [`read`](Self::read).
    pub fn parse(text: impl AsRef<[u8]>) -> Self {
        // A text in memory can be read.
        Self::read(text.as_ref()).unwrap_or_default()
    }

    /// Those of a text; lines that are none are skipped, and what comes after too many.
    pub fn read(mut input: impl BufRead) -> io::Result<Self> {
        let mut by_index = HashMap::new();
        let (mut line, mut len) = (Vec::new(), 0);
        while by_index.len() < MAX_FILES && len < MAX_LINES {
            line.clear();
            len += match input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? {
                0 => break,
                len => len,
            };
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            by_index.extend(Binary::parse(line));
        }
        let all = by_index.values();
        let ambiguous = ambiguous(all.map(|binary| (binary.name(), binary)));
        Ok(Self {
            by_index,
            ambiguous,
            compared: None,
        })
    }

    /// From now on offsets say of which build they are, as far as that means the same in `both`
    /// captures, which are compared; this is one of them.
    pub fn compare(&mut self, capture: &str, both: [&Self; 2]) {
        let builds = both.iter().flat_map(|of| of.by_index.values());
        let others = both.iter().flat_map(|of| {
            let all = of.by_index.values();
            let others = all.filter(|binary| binary.build_id.is_none());
            ambiguous(others.map(|binary| (binary.name(), binary)))
        });
        self.compared = Some(Compared {
            capture: capture.to_owned(),
            builds: ambiguous(builds.filter_map(|binary| Some((binary.name_of_build()?, binary)))),
            others: others.collect(),
        });
    }

    /// The file with this index.
    pub fn get(&self, index: u32) -> Option<&Binary> {
        self.by_index.get(&index)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Binary)> {
        self.by_index.iter().map(|(index, binary)| (*index, binary))
    }

    /// How a file is called beside the name of a function.
    pub fn name(&self, index: u32) -> String {
        self.get(index).map_or_else(|| other(index), Binary::name)
    }

    /// How a file is called beside an offset in it, which is another place in each build of it.
    pub fn exact_name(&self, index: u32) -> String {
        let Some(binary) = self.get(index) else {
            return match &self.compared {
                Some(Compared { capture, .. }) if index > VDSO32 => {
                    format!("[file {index} of {capture}]")
                }
                _ => other(index),
            };
        };
        let name = binary.name();
        let digits = match (&self.compared, binary.name_of_build()) {
            (None, _) => self.ambiguous.get(&name),
            // Device and inode number are those of one machine at one time.
            (Some(compared), None) => compared.others.get(&name),
            (Some(compared), Some(build)) => {
                let digits = compared.builds.get(&build);
                return binary.exact_name(&build, *digits.unwrap_or(&BUILD_DIGITS));
            }
        };
        match digits {
            Some(digits) => binary.exact_name(&name, *digits),
            None => name,
        }
    }
}

fn other(index: u32) -> String {
    match index {
        VDSO => "[vdso]".to_owned(),
        VDSO32 => "[vdso32]".to_owned(),
        index => format!("[file {index}]"),
    }
}

/// The names that files have which differ, and the digits that tell them apart.
fn ambiguous<'a>(all: impl Iterator<Item = (String, &'a Binary)>) -> HashMap<String, usize> {
    let mut by_name = HashMap::<_, BTreeSet<_>>::new();
    for (name, binary) in all {
        let identities = by_name.entry(name).or_default();
        identities.insert(binary.identity());
    }
    by_name.retain(|_, identities| identities.len() > 1);
    let digits = |identities: BTreeSet<Result<&str, _>>| {
        let ids: Vec<_> = identities.into_iter().flatten().collect();
        let short: BTreeSet<_> = ids.iter().map(|id| id.get(..BUILD_DIGITS)).collect();
        match short.len() == ids.len() {
            true => BUILD_DIGITS,
            false => usize::MAX,
        }
    };
    let all = by_name.into_iter();
    all.map(|(name, identities)| (name, digits(identities)))
        .collect()
}

/// The path after `\ooo` escapes.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let digit = |digit: &u8| char::from(*digit).to_digit(8);
            let digits = digits.iter().map(digit).collect::<Option<Vec<_>>>()?;
            let number = digits.iter().fold(0, |number, digit| number * 8 + digit);
            u8::try_from(number).ok()
        };
        match behind.get(..3).and_then(octal) {
            Some(escaped) if *byte == b'\\' => {
                bytes.push(escaped);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(*byte);
                rest = behind;
            }
        }
    }
    bytes.shrink_to_fit();
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_any_bytes() {
        let text = b"2 - 0:1 5 20 /tmp/caf\xe9\r\n3 - 0:1 5 20 /tmp/x\\012y\n";
        let binaries = Binaries::parse(text);
        for (index, path) in [(2, &b"/tmp/caf\xe9\r"[..]), (3, b"/tmp/x\ny")] {
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            assert_eq!(binaries.get(index).unwrap().path, path);
        }
    }

    #[test]
    fn reads_what_the_module_prints() {
        let text = "2 5AC0fe -1:2 77 1000 /usr/bin/a\\040b\n3 ab 0:1 5 20 /y\n\
                    3 - 0:28 5 20 /tmp/x (deleted)\nodd\n4 5ag0 0:1 5 20 /z\n";
        let binaries = Binaries::parse(text);
        let found = binaries.get(2).unwrap();
        assert_eq!(found.build_id.as_deref(), Some("5ac0fe"));
        assert_eq!((found.ino, found.size), (77, 1000));
        assert_eq!(found.path, PathBuf::from("/usr/bin/a b"));
        assert_eq!(binaries.get(3).unwrap().build_id, None);
        assert_eq!(binaries.iter().count(), 2);
        let names = [0, 1, 2, 9].map(|index| binaries.name(index));
        assert_eq!(names, ["[vdso]", "[vdso32]", "a b", "[file 9]"]);
    }

    #[test]
    fn offsets_say_of_which_build_they_are() {
        let text = "2 0123456789 0:1 5 20 /a/x\n3 0123456789 0:1 6 20 /b/x\n4 89ab 0:1 7 20 /y\n\
                    5 - 8:2 8 20 /c/y\n6 - 0:1 9 20 /z\n7 c0ffee0012 0:1 3 4 /b/w\n\
                    8 c0ffee0034 0:1 3 4 /a/w\n";
        let mut binaries = Binaries::parse(text);
        let names = |binaries: &Binaries| {
            let names = [2, 3, 4, 5, 6, 7, 8, 9, VDSO].map(|index| binaries.exact_name(index));
            names.join(" ")
        };
        assert_eq!(
            names(&binaries),
            "x x y@89ab y@8:2:8 z w@c0ffee0012 w@c0ffee0034 [file 9] [vdso]"
        );
        binaries.compare("a.data", [&binaries.clone(), &Binaries::default()]);
        assert_eq!(
            names(&binaries),
            "x@01234567 x@01234567 y@89ab y z w@c0ffee0012 w@c0ffee0034 [file 9 of a.data] [vdso]"
        );
        assert_eq!(binaries.name(4), "y");
    }

    #[test]
    fn builds_of_two_captures_are_told_apart() {
        for (one, other, want) in [
            (
                "0123456789 0:1 5 9 /x",
                "01234567 0:1 5 9 /x (deleted)",
                ["x@0123456789", "x@01234567"],
            ),
            // One of them knows another build as well.
            (
                "0123456789 0:1 5 9 /x",
                "0123456789 0:1 5 9 /x\n3 01234567ff 0:1 5 9 /x",
                ["x@0123456789"; 2],
            ),
            // Without a build-id.
            ("- 0:1 5 9 /x", "- 0:1 6 9 /x", ["x"; 2]),
            (
                "- 0:1 5 9 /x",
                "- 0:1 6 9 /x (deleted)",
                ["x", "x (deleted)"],
            ),
            (
                "- 0:1 5 9 /x",
                "- 0:1 5 9 /x\n3 - 0:1 6 9 /y/x",
                ["x@0:1:5"; 2],
            ),
            ("- 0:1 5 9 /x", "0123456789 0:1 5 9 /x", ["x", "x@01234567"]),
        ] {
            let both = [one, other].map(|line| Binaries::parse(format!("2 {line}\n")));
            let names = both.each_ref().map(|of| {
                let mut of = of.clone();
                of.compare("a.data", both.each_ref());
                of.exact_name(2)
            });
            assert_eq!(names, want, "{one} {other}");
        }
    }

    #[test]
    fn no_more_is_kept_than_the_module_has() {
        let lines = |nr: u32| (0..nr).map(|index| format!("{index} - 0:1 5 20 x\n"));
        let read = |text: String| Binaries::parse(&text).iter().count();
        assert_eq!(read(lines(70_000).collect()), MAX_FILES);
        let line = |index, path: String| format!("{index} - 0:1 5 20 {path}\n");
        let path = "\\057a".repeat(2048);
        let texts = [
            line(7, path.clone()),
            line(8, path.repeat(2)),
            line(9, "x".repeat(265)),
            line(10, "x".repeat(266)),
            line(11, "/x".repeat(2100)),
            "12 - 0:1:3 5 20 /x\n13 - 0 5 20 /x\n14 - x:1 5 20 /x\n".to_owned(),
        ];
        let binaries = Binaries::parse(texts.concat());
        assert_eq!(binaries.get(7).unwrap().path.as_os_str().len(), 4096);
        let mut known: Vec<_> = binaries.iter().map(|(index, _)| index).collect();
        known.sort_unstable();
        assert_eq!(known, [7, 9]);
    }

    #[test]
    fn a_text_is_bounded() {
        let len = 2 * MAX_LINES as u64;
        let mut long = io::BufReader::new(io::repeat(b' ').take(len));
        assert_eq!(Binaries::read(&mut long).unwrap().iter().count(), 0);
        let left = long.into_inner().limit();
        assert!(left < len - MAX_LINES as u64 && left + 2 * MAX_LINE > len - MAX_LINES as u64);
        // What is after the longest line is another one.
        let begin = "x".repeat(MAX_LINE as usize);
        let binaries = Binaries::parse(format!("{begin}7 - 0:1 5 20 /x\n"));
        assert!(binaries.get(7).is_some());
        let part = format!("\\057{}", "\\377".repeat(127));
        let longest = format!("{}\\040(deleted)", part.repeat(32));
        let id = "f".repeat(40);
        let numbers = "4294967295:4294967295 18446744073709551615 18446744073709551615";
        let line = format!("4294967295 {id} {numbers} {longest}\n");
        assert!(line.len() as u64 <= MAX_LINE && line.len() * MAX_FILES <= MAX_LINES);
        let binaries = Binaries::parse(line);
        let path = &binaries.get(u32::MAX).unwrap().path;
        assert_eq!(path.as_os_str().len(), PATH_MAX);
    }

    #[test]
    fn what_is_no_escape_stays() {
        for (text, want) in [("a\\", "a\\"), ("\\04", "\\04"), ("\\777x", "\\777x")] {
            assert_eq!(unescape(text.as_bytes()), PathBuf::from(want));
        }
    }
}
