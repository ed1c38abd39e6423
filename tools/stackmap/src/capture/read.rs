// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads a capture. Nothing in it is trusted: members are read in bounded memory.

use super::{manifest, member, Manifest, Sleeper};
use crate::{
    error::{Error, Result},
    output::warn,
    ring::{
        decode::Trace,
        fields::About,
        format::{Formats, MAX_FORMAT},
        page::Layout,
        printk::Texts,
        tasks, Damage,
    },
    stack_map_bin::Stack,
    stacks::{Ids, Stacks},
    stat::Stat,
    symbols::{kallsyms, kallsyms::Kallsyms, modules::Modules},
    user::{
        binaries::Binaries,
        live,
        names::{vdso_index, Names, Places},
        segments, words,
        words::Process,
        User,
    },
};
use blake2::{digest::consts::U16, Blake2b, Digest};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::Path,
    rc::Rc,
};
use zip::{result::ZipError, ZipArchive};

/// More than any list of modules or table of counters has, in bytes.
const MAX_SMALL: u64 = 4 << 20;

/// More than any manifest has, in bytes: a command line has at most 6 MiB, and each of its bytes may be
/// `\u0001`.
const MAX_MANIFEST: u64 = 64 << 20;

/// More events than any kernel has.
const MAX_FORMATS: usize = 1 << 16;

/// How often larger than its packed form a member may be: far more than any text of a kernel is,
/// and far less than deflate can make of nothing.
const MAX_RATIO: u64 = 100;
/// What a member may have in any case, in bytes.
const FREE: u64 = 16 << 20;

/// The files that describe a ring buffer.
#[derive(Default)]
pub struct Described {
    /// What describes the header of a page.
    pub header_page: Vec<u8>,
    /// What describes the header of a record.
    pub header_event: Vec<u8>,
    /// The events.
    pub formats: Vec<FormatText>,
    /// The kernel's names.
    pub kallsyms: Vec<u8>,
    /// Texts that records name by their addresses.
    pub printk_formats: Vec<u8>,
}

/// What describes an event.
pub struct FormatText {
    /// Its system.
    pub system: String,
    /// Its name.
    pub name: String,
    /// The file.
    pub text: Vec<u8>,
}

/// What a capture is read from.
pub trait Input: Read + Seek {}

impl<T: Read + Seek> Input for T {}

/// An open capture.
pub struct Capture {
    zip: ZipArchive<BufReader<Box<dyn Input>>>,
    name: String,
    manifest: Manifest,
}

impl Capture {
    /// Opens the capture at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::read(path, error))?;
        Self::new(file, path.display().to_string())
    }

    /// Reads the capture in `input`, which is called `name` in errors.
    pub fn new(mut input: impl Input + 'static, name: String) -> Result<Self> {
        // The directory of a zip archive is at its end.
        let end = input
            .seek(SeekFrom::End(0))
            .map_err(|error| Error::reading(&name, 0, error))?;
        let input: Box<dyn Input> = Box::new(input);
        let zip = ZipArchive::new(BufReader::new(input)).map_err(|error| match error {
            ZipError::Io(error) => Error::reading(&name, end, error),
            error => {
                let what = format!("truncated capture, or not a capture: {error}");
                Error::input_at(&name, end, what)
            }
        })?;
        let mut capture = Self {
            zip,
            name,
            manifest: Manifest::default(),
        };
        let manifest: Manifest = capture.json(member::MANIFEST, MAX_MANIFEST)?;
        let what = capture.member_name(member::MANIFEST);
        if manifest.format != manifest::FORMAT {
            let text = format!(
                "the format is {:?}, not {:?}",
                manifest.format,
                manifest::FORMAT
            );
            return Err(Error::input(what, text));
        }
        if manifest.version != manifest::VERSION {
            let text = format!("version {} of the format is not known", manifest.version);
            return Err(Error::input(what, text));
        }
        capture.manifest = manifest;
        Ok(capture)
    }

    /// What the capture says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns a text that captures of the same content have: a hash of the manifest, and of the name, size
    /// and check sum of each member. It begins with `h`, so that nothing takes it for a number.
    pub fn content_hash(&mut self) -> Result<String> {
        let mut hash = Blake2b::<U16>::new();
        hash.update(self.bounded_with(member::MANIFEST, MAX_MANIFEST, MAX_MANIFEST)?);
        let name = self.name.clone();
        for index in 0..self.zip.len() {
            let of_member = self.zip.by_index_raw(index);
            let of_member = of_member.map_err(|error| Error::input(&name, error.to_string()))?;
            hash.update(of_member.name_raw());
            hash.update([0]);
            hash.update(of_member.size().to_le_bytes());
            hash.update(of_member.crc32().to_le_bytes());
        }
        let mut text = "h".to_owned();
        for byte in hash.finalize() {
            text += &format!("{byte:02x}");
        }
        Ok(text)
    }

    /// The name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A member, from its beginning.
    pub fn member(&mut self, name: &str) -> Result<Member<'_>> {
        self.member_with(name, FREE)
    }

    /// A member that may have this many bytes, however few it is packed in.
    fn member_with(&mut self, name: &str, free: u64) -> Result<Member<'_>> {
        let source = self.member_name(name);
        match self.zip.by_name(name) {
            Ok(file) => Ok(Member {
                size: file.size(),
                left: file.compressed_size().saturating_mul(MAX_RATIO).max(free),
                input: Box::new(file),
            }),
            Err(ZipError::Io(error)) => Err(Error::reading(&source, 0, error)),
            Err(error) => Err(Error::input(source, error.to_string())),
        }
    }

    /// Whether there is a member.
    pub fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(name).is_some()
    }

    /// The files that describe the ring buffer, as they are.
    pub fn described(&mut self) -> Result<Described> {
        let mut formats = Vec::new();
        for (member, system, name) in self.formats() {
            let text = self.bounded(&member, MAX_FORMAT)?;
            formats.push(FormatText { system, name, text });
        }
        Ok(Described {
            header_page: self.small(member::HEADER_PAGE)?,
            header_event: self.small(member::HEADER_EVENT)?,
            formats,
            kallsyms: self.bounded(member::KALLSYMS, kallsyms::MAX_LEN)?,
            printk_formats: self.small(member::PRINTK_FORMATS)?,
        })
    }

    /// The formats of events: members, systems and names.
    fn formats(&self) -> Vec<(String, String, String)> {
        let (begin, end) = member::FORMATS;
        let names = self.zip.file_names().filter_map(|member| {
            let member = member.ok()?;
            let inner = member.strip_prefix(begin)?.strip_suffix(end)?;
            let (system, name) = inner.split_once('/')?;
            let member = format!("{begin}{inner}{end}");
            Some((member, system.to_owned(), name.to_owned()))
        });
        names.take(MAX_FORMATS).collect()
    }

    /// What describes the pages of the ring buffer.
    pub fn ring(&mut self) -> Result<(Trace, Layout)> {
        if self.manifest.big_endian {
            let what =
                "the recording machine has another byte order than all that the module is for";
            return Err(Error::input(&self.name, what));
        }
        let nanos = Trace::counts_nanos(&self.manifest.clock);
        let damaged =
            |source: String| move |damage: Damage| Error::input(source, damage.to_string());
        let text = self.small_text(member::HEADER_PAGE)?;
        let layout =
            Layout::parse(&text).map_err(damaged(self.member_name(member::HEADER_PAGE)))?;
        let mut formats = Formats::default();
        for (name, system, _) in self.formats() {
            let text = self.bounded(&name, MAX_FORMAT)?;
            let added = formats.add(&system, &String::from_utf8_lossy(&text));
            added.map_err(damaged(self.member_name(&name)))?;
        }
        let texts = Texts::parse(&self.small_text(member::PRINTK_FORMATS)?);
        let tasks = self.json(member::TASKS, tasks::MAX_JSON)?;
        let trace = Trace {
            about: Rc::new(About { formats, texts }),
            tasks,
            nanos,
        };
        Ok((trace, layout))
    }

    /// How members are called in errors.
    pub fn member_name(&self, name: &str) -> String {
        format!("{}: {name}", self.name)
    }

    /// The stacks.
    pub fn stacks(&mut self) -> Result<Stacks> {
        let source = self.member_name(member::STACK_MAP_BIN);
        let input = self.member(member::STACK_MAP_BIN)?;
        Stacks::read(BufReader::with_capacity(64 << 10, input), &source)
    }

    /// Gives `out` all user stacks, and returns their ids.
    pub fn user_stacks(&mut self, out: &mut dyn FnMut(Stack<'_>)) -> Result<Ids> {
        let source = self.member_name(member::STACK_MAP_USER_BIN);
        let input = self.member(member::STACK_MAP_USER_BIN)?;
        Stacks::read_user_ids(BufReader::with_capacity(64 << 10, input), &source, out)
    }

    /// The files that user stacks have frames in; none in a capture without user stacks.
    pub fn binaries(&mut self) -> Result<Binaries> {
        if !self.has(member::STACK_MAP_USER_BIN) {
            return Ok(Binaries::default());
        }
        let source = self.member_name(member::BINARIES);
        let lines = BufReader::new(self.member(member::BINARIES)?);
        Binaries::read(lines).map_err(|error| Error::reading(&source, 0, error))
    }

    /// Where the files are loaded.
    pub fn segments(&mut self) -> segments::Recorded {
        let segments = match self.has(member::SEGMENTS) {
            true => self.json(member::SEGMENTS, segments::MAX_JSON),
            false => Ok(segments::Recorded::default()),
        };
        segments.unwrap_or_else(|error| {
            // The rest of the capture is good.
            warn(format_args!("{error}: not used"));
            segments::Recorded::default()
        })
    }

    /// The tasks that waited when the recording began.
    pub fn sleepers(&mut self) -> Result<Vec<Sleeper<u64>>> {
        match self.has(member::SLEEPERS) {
            true => self.json(member::SLEEPERS, tasks::MAX_JSON),
            false => Ok(Vec::new()),
        }
    }

    /// The image of the vDSO, and its index among the files.
    fn vdso(&mut self) -> Result<Option<(u32, Vec<u8>)>> {
        if !self.has(member::VDSO) {
            return Ok(None);
        }
        let image = self.bounded(member::VDSO, live::MAX_VDSO)?;
        Ok(vdso_index(&image).map(|index| (index, image)))
    }

    /// What a process says of the code that it generated, if the capture has that.
    pub fn perf_map(&mut self, process: Process) -> Result<Option<Vec<u8>>> {
        let name = member::perf_map(process);
        match self.has(&name) {
            true => self.bounded_with(&name, live::MAX_PERF_MAP, 0).map(Some),
            false => Ok(None),
        }
    }

    /// The user stacks and what names their frames; none in a capture without. `places`: where files
    /// with names are looked for. `later`: of the stacks only the ids are read.
    pub fn user(&mut self, places: Places, later: bool) -> Result<User> {
        if !self.has(member::STACK_MAP_USER_BIN) {
            return Ok(User::default());
        }
        let (mut stacks, mut processes) = (Stacks::default(), BTreeSet::new());
        let mut unread = Ids::default();
        match later {
            true => {
                unread =
                    self.user_stacks(&mut |stack| processes.extend(words::processes(stack)))?;
            }
            false => {
                let source = self.member_name(member::STACK_MAP_USER_BIN);
                let input = self.member(member::STACK_MAP_USER_BIN)?;
                stacks = Stacks::read_user(BufReader::with_capacity(64 << 10, input), &source)?;
                processes.extend(stacks.iter().flat_map(words::processes));
            }
        }
        let binaries = self.binaries()?;
        let mut names = Names::new(places).with_segments(self.segments());
        if let Some((index, image)) = self.vdso()? {
            names.set_vdso(index, image);
        }
        self.add_perf_maps(processes, live::Space::default(), &mut names);
        Ok(User {
            stacks,
            unread,
            binaries,
            names,
        })
    }

    /// Adds the perf maps of processes for which there is space.
    fn add_perf_maps(
        &mut self,
        processes: BTreeSet<Process>,
        mut space: live::Space,
        names: &mut Names,
    ) {
        for process in processes {
            // There may be many.
            match self.perf_map(process) {
                Ok(Some(text)) if space.has(process, &text) => names.add_perf_map(process, text),
                Ok(_) => {}
                // The rest of the capture is good.
                Err(error) => warn(format_args!("{error}: not used")),
            }
        }
    }

    /// The modules.
    pub fn modules(&mut self) -> Result<Modules> {
        let text = self.small(member::MODULES)?;
        Ok(Modules::parse(&String::from_utf8_lossy(&text)))
    }

    /// The kernel's names.
    pub fn kallsyms(&mut self) -> Result<Kallsyms> {
        let modules = self.modules()?;
        let text = self.bounded(member::KALLSYMS, kallsyms::MAX_LEN)?;
        Kallsyms::parse(text, &modules, &self.member_name(member::KALLSYMS))
    }

    /// The counters of the map after the recording.
    pub fn stat(&mut self) -> Result<Stat> {
        Ok(Stat::parse(&self.small_text(member::STAT)?))
    }

    /// The counters of user stacks after the recording; none in a capture without.
    pub fn user_stat(&mut self) -> Result<Stat> {
        match self.has(member::USER_STAT) {
            true => Ok(Stat::parse(&self.small_text(member::USER_STAT)?)),
            false => Ok(Stat::default()),
        }
    }

    fn small_text(&mut self, name: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.small(name)?).into_owned())
    }

    fn small(&mut self, name: &str) -> Result<Vec<u8>> {
        self.bounded(name, MAX_SMALL)
    }

    /// A member that may have `max` bytes, however few it is packed in.
    fn json<T: DeserializeOwned>(&mut self, name: &str, max: u64) -> Result<T> {
        let json = self.bounded_with(name, max, max)?;
        serde_json::from_slice(&json)
            .map_err(|error| Error::input(self.member_name(name), error.to_string()))
    }

    fn bounded(&mut self, name: &str, max: u64) -> Result<Vec<u8>> {
        self.bounded_with(name, max, FREE)
    }

    fn bounded_with(&mut self, name: &str, max: u64, free: u64) -> Result<Vec<u8>> {
        let source = self.member_name(name);
        let mut content = Vec::new();
        let mut input = self.member_with(name, free)?.take(max + 1);
        input
            .read_to_end(&mut content)
            .map_err(|error| Error::reading(&source, content.len() as u64, error))?;
        if content.len() as u64 > max {
            return Err(Error::input_at(
                source,
                max,
                format!("more than {max} bytes"),
            ));
        }
        Ok(content)
    }
}

/// A member of a capture.
pub struct Member<'a> {
    /// How many bytes the archive says it has.
    pub size: u64,
    /// How many more may come.
    left: u64,
    input: Box<dyn Read + 'a>,
}

impl Read for Member<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        match self.left.checked_sub(len as u64) {
            Some(left) => self.left = left,
            None => {
                let what = format!("this unpacks to more than {MAX_RATIO} times its size");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capture::Writer,
        user::{segments::Recorded, words::At, WhichFrame},
    };

    #[test]
    fn unpacking_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bomb");
        let mut writer = Writer::create(&path).unwrap();
        let mut zeros = io::repeat(0).take(2 * FREE);
        writer.member(member::PAGES, &mut zeros).unwrap();
        let mut zeros = io::repeat(0).take(FREE);
        writer.member("large", &mut zeros).unwrap();
        writer.finish(&Manifest::default()).unwrap();

        let mut capture = Capture::open(&path).unwrap();
        let mut read = |name| io::copy(&mut capture.member(name).unwrap(), &mut io::sink());
        assert_eq!(read("large").unwrap(), FREE);
        let error = read(member::PAGES).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        let error = capture.bounded_with("large", FREE, 0).unwrap_err();
        assert!(error.to_string().contains("100 times its size"), "{error}");
    }

    #[test]
    fn a_long_command_line_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        let mut manifest = Manifest::default();
        manifest.recorded.command = vec!["\u{1}".repeat(1 << 20)];
        Writer::create(&path).unwrap().finish(&manifest).unwrap();
        let capture = Capture::open(&path).unwrap();
        assert_eq!(capture.manifest.recorded.command, manifest.recorded.command);
    }

    #[test]
    fn segments_that_cannot_be_read_cost_nothing_else() {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/user.data");
        let mut old = Capture::open(Path::new(data)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        let mut copy = |segments: &str| {
            let mut writer = Writer::create(&path).unwrap();
            for name in [member::STACK_MAP_USER_BIN, member::BINARIES] {
                let mut content = old.member(name).unwrap();
                writer.member(name, &mut content).unwrap();
            }
            let mut segments = segments.as_bytes();
            writer.member(member::SEGMENTS, &mut segments).unwrap();
            writer.finish(&Manifest::default()).unwrap();
            Capture::open(&path).unwrap()
        };
        let long = format!("[]{}", " ".repeat(FREE as usize));
        for (text, is_read) in [
            (&*long, true),
            ("[[2,[{\"offset\":1}]]]", false),
            ("[[", false),
        ] {
            let mut capture = copy(text);
            let segments = capture.json::<Recorded>(member::SEGMENTS, segments::MAX_JSON);
            assert_eq!(segments.is_ok(), is_read);
            let user = capture.user(Places::default(), false).unwrap();
            assert!(!user.is_empty() && user.binaries.iter().count() > 0);
        }
    }

    #[test]
    fn perf_maps_take_no_more_than_their_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        let mut writer = Writer::create(&path).unwrap();
        let process = |tgid| Process { tgid, start: 9 };
        let packed_well = format!("10 10 a\n{}", " ".repeat(1 << 20));
        for (tgid, text) in [
            (1, &*packed_well),
            (2, "10 10 a\n"),
            (3, "10 10 b\n"),
            (4, "1 1 c"),
            (5, "1 1 d"),
        ] {
            let name = member::perf_map(process(tgid));
            writer.member(&name, &mut text.as_bytes()).unwrap();
        }
        writer.finish(&Manifest::default()).unwrap();
        let mut capture = Capture::open(&path).unwrap();
        let mut names = Names::default();
        for (tgids, space) in [(0..2, live::Space::default()), (2..9, live::Space::of(14))] {
            capture.add_perf_maps(tgids.map(process).collect(), space, &mut names);
        }
        let frame = |tgid, address| WhichFrame {
            at: At::Address {
                address,
                process: Some(process(tgid)),
            },
            exact: true,
        };
        let frames = || (1..=5).map(|tgid| frame(tgid, if tgid < 4 { 0x10 } else { 1 }));
        names.prime(frames(), &Binaries::default(), &mut |_| {});
        let named = frames().map(|frame| !names.frames(frame).is_empty());
        let named: Vec<_> = named.collect();
        assert_eq!(named, [false, true, false, true, false]);
    }
}
