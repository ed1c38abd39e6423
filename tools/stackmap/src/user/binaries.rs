// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files that user stacks have frames in: `stack_map_binaries`.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    io::{self, BufRead, Read},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

/// The index of the 64-bit vDSO, and that of 32-bit tasks: they are in no file.
pub const VDSO: u32 = 0;
/// See [`VDSO`].
pub const VDSO32: u32 = 1;

/// More files than the module knows. Nobody is trusted who lists them, and nor are their paths, which anybody may
/// have made.
const MAX_FILES: usize = 1 << 16;
/// More than the line of a file has, in bytes: each byte of its path may be escaped.
const MAX_LINE: u64 = 20_000;
/// More than all lines have, in bytes: 8,192 with the longest paths.
const MAX_LINES: usize = 160 << 20;
/// So many digits of a build-id tell one build from another.
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

    /// The name, and what tells the file from others of that name.
    fn exact_name(&self) -> String {
        match &self.build_id {
            Some(id) => format!("{}@{}", self.name(), id.get(..BUILD_DIGITS).unwrap_or(id)),
            None => format!("{}@{}:{}", self.name(), self.dev, self.ino),
        }
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
            dev: word()?.to_owned(),
            ino: word()?.parse().ok()?,
            size: word()?.parse().ok()?,
            // It may have any bytes.
            path: unescape(words.next()?),
        };
        Some((index, binary))
    }
}

/// All files.
#[derive(Clone, Debug, Default)]
pub struct Binaries {
    by_index: HashMap<u32, Binary>,
    /// Names that files have which differ.
    ambiguous: HashSet<String>,
    /// Whether other captures may have another build of any file.
    among_others: bool,
}

impl Binaries {
    /// Those of a text, see [`read`](Self::read).
    pub fn parse(text: impl AsRef<[u8]>) -> Self {
        // A text in memory can be read.
        Self::read(text.as_ref()).unwrap_or_default()
    }

    /// Those of a text; lines that are none are skipped, and what comes behind too many.
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
        let mut by_name = HashMap::new();
        let mut ambiguous = HashSet::new();
        for binary in by_index.values() {
            let exact = binary.exact_name();
            let first = by_name
                .entry(binary.name())
                .or_insert_with(|| exact.clone());
            if *first != exact {
                ambiguous.insert(binary.name());
            }
        }
        Ok(Self {
            by_index,
            ambiguous,
            among_others: false,
        })
    }

    /// From now on offsets say of which build they are: they are compared with those of another capture.
    pub fn compare(&mut self) {
        self.among_others = true;
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
            return other(index);
        };
        let among_others = self.among_others && binary.build_id.is_some();
        match among_others || self.ambiguous.contains(&binary.name()) {
            true => binary.exact_name(),
            false => binary.name(),
        }
    }
}

fn other(index: u32) -> String {
    match index {
        VDSO | VDSO32 => "[vdso]".to_owned(),
        index => format!("[file {index}]"),
    }
}

/// The path behind `\ooo` escapes.
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
        let text = "2 5ac0fe -1:2 77 1000 /usr/bin/a\\040b\n3 - 0:28 5 20 /tmp/x (deleted)\nodd\n";
        let binaries = Binaries::parse(text);
        let found = binaries.get(2).unwrap();
        assert_eq!(found.build_id.as_deref(), Some("5ac0fe"));
        assert_eq!((found.ino, found.size), (77, 1000));
        assert_eq!(found.path, PathBuf::from("/usr/bin/a b"));
        assert_eq!(binaries.get(3).unwrap().build_id, None);
        assert_eq!(binaries.iter().count(), 2);
        let names = [0, 1, 2, 9].map(|index| binaries.name(index));
        assert_eq!(names, ["[vdso]", "[vdso]", "a b", "[file 9]"]);
    }

    #[test]
    fn offsets_say_of_which_build_they_are() {
        let text = "2 0123456789 0:1 5 20 /a/x\n3 0123456789 0:1 6 20 /b/x\n4 89ab 0:1 7 20 /y\n\
                    5 - 0:1 8 20 /c/y\n6 - 0:1 9 20 /z\n";
        let mut binaries = Binaries::parse(text);
        let names = |binaries: &Binaries| {
            let names = [2, 3, 4, 5, 6, VDSO].map(|index| binaries.exact_name(index));
            names.join(" ")
        };
        assert_eq!(names(&binaries), "x x y@89ab y@0:1:8 z [vdso]");
        binaries.compare();
        assert_eq!(
            names(&binaries),
            "x@01234567 x@01234567 y@89ab y@0:1:8 z [vdso]"
        );
        assert_eq!(binaries.name(4), "y");
    }

    #[test]
    fn no_more_is_kept_than_the_module_has() {
        let lines = |nr: u32| (0..nr).map(|index| format!("{index} - 0:1 5 20 x\n"));
        let read = |text: String| Binaries::parse(&text).iter().count();
        assert_eq!(read(lines(70_000).collect()), MAX_FILES);
        let path = "\\057".repeat(4096);
        let text = format!("7 - 0:1 5 20 {path}\n{}8 - 0:1 5 20 x\n", path.repeat(2));
        let binaries = Binaries::parse(&text);
        assert_eq!(binaries.get(7).unwrap().path.as_os_str().len(), 4096);
        assert_eq!((binaries.get(8), binaries.iter().count()), (None, 1));
    }

    #[test]
    fn what_is_no_escape_stays() {
        for (text, want) in [("a\\", "a\\"), ("\\04", "\\04"), ("\\777x", "\\777x")] {
            assert_eq!(unescape(text.as_bytes()), PathBuf::from(want));
        }
    }
}
