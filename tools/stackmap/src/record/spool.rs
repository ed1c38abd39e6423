// SPDX-License-Identifier: MIT OR Apache-2.0

//! Takes pages from the ring buffer, also while it records, so that the disk bounds a recording, and not
//! the buffer.
//!
//! A thread waits until a quarter of the buffer of a CPU is full. Then it moves as many pages to a
//! file of that CPU, in a directory beside the capture. Space for them is reserved in the capture first: what
//! was taken can be saved. Without space, or after an error, no more is taken, and the kernel
//! overwrites its oldest records, as without this. At the end, what is left in the buffer is moved, too: a
//! capture is made of the files. The directory is removed when the capture is complete.

use crate::{
    capture::Space,
    error::{reason, Error, Result},
    output::warn,
    ring::page::Layout,
    tracefs::Tracefs,
};
use rustix::{
    event::{eventfd, poll, EventfdFlags, PollFd, PollFlags},
    fs::{openat, unlinkat, AtFlags, Mode, OFlags, CWD},
    io::{write, Errno},
    process::geteuid,
};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Cursor, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

/// How full the buffer of a CPU is when the kernel wakes its reader, in percent.
pub(super) const PERCENT: (&str, &str) = ("buffer_percent", "25");
/// Space for all of a capture besides pages, in bytes.
const MARGIN: u64 = 32 << 20;
/// The space that is reserved each time, in bytes.
const STEP: u64 = 16 << 20;
/// How the files of the recording begin, and those of the names of tasks.
pub(super) const OF_EVENTS: &str = "cpu";
pub(super) const OF_COMMS: &str = "names-cpu";
/// The number of pages that are written at once.
const CHUNK: usize = 64;
/// The errno for the buffer of a CPU that was never online.
const ENODEV: i32 = 19;

/// The directory of the files. It is closed to other users.
pub(super) struct Directory {
    path: PathBuf,
    dir: File,
}

impl Directory {
    /// Makes it.
    pub(super) fn create(path: &Path) -> Result<Self> {
        DirBuilder::new()
            .mode(0o700)
            .create(path)
            .map_err(|error| Error::io(format!("create {}", path.display()), error))?;
        Self::open(path)
    }

    /// Opens it, if it belongs to this user.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from);
        let dir = opened.map(File::from).and_then(|dir| {
            let found = dir.metadata()?;
            match found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
                true => Ok(dir),
                false => Err(io::ErrorKind::PermissionDenied.into()),
            }
        });
        Ok(Self {
            path: path.to_owned(),
            dir: dir.map_err(|error| Error::read(path, error))?,
        })
    }

    /// Makes or opens a file of a CPU, to write at its end.
    fn file(&self, name: &str) -> Result<Taken> {
        let flags =
            OFlags::CREATE | OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR);
        let file = file.map(File::from).map_err(io::Error::from);
        let len = file.and_then(|file| Ok((keep_whole(&file)?, file)));
        let failed = |error| Error::io(format!("write {}", self.path.join(name).display()), error);
        let (len, file) = len.map_err(failed)?;
        Ok(Taken {
            file,
            len,
            streamed: len,
            tail: Vec::new(),
        })
    }

    /// Opens the files of `cpus`: those whose names begin so.
    pub(super) fn spool(&self, cpus: &[u32], of: &str) -> Result<Spool> {
        cpus.iter()
            .map(|cpu| Ok((*cpu, self.file(&format!("{of}{cpu}"))?)))
            .collect()
    }

    /// How many bytes of the recording it has.
    pub(super) fn len(&self) -> u64 {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_of_events = |name: OsString| name.to_string_lossy().starts_with(OF_EVENTS);
        entries
            .filter(|entry| is_of_events(entry.file_name()))
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    }

    /// Removes it with its files.
    pub(super) fn remove(self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let _ = unlinkat(&self.dir, entry.file_name(), AtFlags::empty());
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// The pages of a CPU that were taken from its buffer.
pub(super) struct Taken {
    file: File,
    len: u64,
    /// How many bytes of them were taken while the buffer recorded.
    streamed: u64,
    /// What could not be written to the file.
    tail: Vec<u8>,
}

/// Pages that were taken, by CPU.
pub(super) type Spool = BTreeMap<u32, Taken>;

impl Taken {
    /// How many bytes it has.
    pub(super) fn len(&self) -> u64 {
        self.len + self.tail.len() as u64
    }

    /// Whether some of it is in memory alone.
    pub(super) fn is_in_memory(&self) -> bool {
        !self.tail.is_empty()
    }

    /// How many of them were taken while the buffer recorded.
    pub(super) fn streamed(&self) -> u64 {
        self.streamed
    }

    /// The pages, each with its length before it, from the first one.
    pub(super) fn read(&self) -> Result<impl Read + '_> {
        let failed = |error| Error::io("read what was streamed", error);
        let mut file = self.file.try_clone().map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let file = io::BufReader::with_capacity(256 << 10, file.take(self.len));
        Ok(file.chain(Cursor::new(&self.tail[..])))
    }

    /// Adds pages; returns the error if they could not be written, and are kept in memory.
    fn keep(&mut self, pages: &[u8]) -> io::Result<()> {
        if !self.tail.is_empty() {
            self.tail.extend_from_slice(pages);
            return Ok(());
        }
        let result = self.file.write_all(pages);
        match result {
            Ok(()) => self.len += pages.len() as u64,
            Err(_) => {
                // A part of them may be in the file.
                let _ = self.file.set_len(self.len);
                self.tail.extend_from_slice(pages);
            }
        }
        result
    }
}

/// Cuts off an incomplete page at the end, whose writer was killed. Returns the number of bytes before it.
fn keep_whole(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let (mut whole, mut head) = (0, [0; 4]);
    while whole + 4 <= len {
        file.read_exact_at(&mut head, whole)?;
        let end = whole + 4 + u64::from(u32::from_ne_bytes(head));
        if end > len {
            break;
        }
        whole = end;
    }
    file.set_len(whole)?;
    Ok(whole)
}

/// Reads the next of such pages; an empty one is none.
pub(super) fn next_page(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    match from.read(&mut len[..1])? {
        0 => return Ok(Vec::new()),
        _ => from.read_exact(&mut len[1..])?,
    }
    let mut page = vec![0; u32::from_ne_bytes(len) as usize];
    from.read_exact(&mut page)?;
    Ok(page)
}

/// The thread, which ends with this.
pub(super) struct Streaming {
    thread: Option<JoinHandle<Spool>>,
    stop: OwnedFd,
}

impl Streaming {
    /// Starts it for the buffers of the CPUs of `spool`. `space` is that of the capture, if they become a part of it.
    pub(super) fn start(
        tracefs: &Tracefs,
        spool: Spool,
        layout: Layout,
        space: Option<Space>,
    ) -> Result<Self> {
        let mut readers = Vec::new();
        let mut margin = MARGIN;
        for (cpu, taken) in spool {
            let reader = Reader::open(tracefs, cpu, layout, taken)?;
            margin += 4 * (reader.batch * layout.page_size()) as u64;
            readers.push(reader);
        }
        let failed = |error: Errno| Error::io("stream the ring buffer", error.into());
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?;
        let stopped = stop
            .try_clone()
            .map_err(|error| Error::io("stream the ring buffer", error))?;
        let mut stream = Stream {
            space,
            margin,
            reserved: 0,
            len: 0,
        };
        // Some file systems take long to reserve, and the first buffer should not wait for that. Without
        // space, the buffer may hold all of a short recording: then nothing is amiss.
        drop(stream.reserve(0));
        Ok(Self {
            thread: Some(thread::spawn(move || stream.run(readers, &stopped))),
            stop,
        })
    }

    /// Ends it; returns what it has taken.
    pub(super) fn end(mut self) -> Result<Spool> {
        let panicked = || Error::Refused("the thread that streams has panicked".to_owned());
        self.join().ok_or_else(panicked)
    }

    fn join(&mut self) -> Option<Spool> {
        let thread = self.thread.take()?;
        // An eventfd takes this.
        let _ = write(&self.stop, &1u64.to_ne_bytes());
        thread.join().ok()
    }
}

/// The kernel refuses changes of the tracer while buffers are open.
impl Drop for Streaming {
    fn drop(&mut self) {
        drop(self.join());
    }
}

/// The buffer of a CPU.
struct Reader {
    cpu: u32,
    path: String,
    file: File,
    layout: Layout,
    /// How many pages are taken at once.
    batch: usize,
    taken: Taken,
}

impl Reader {
    fn open(tracefs: &Tracefs, cpu: u32, layout: Layout, taken: Taken) -> Result<Self> {
        let path = tracefs.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(&path)
            .map_err(|error| Error::read(&path, error))?;
        let kb = tracefs.read(&format!("per_cpu/cpu{cpu}/buffer_size_kb"));
        let kb = kb.ok().and_then(|kb| buffer_kb(&kb));
        let pages = kb.unwrap_or_default().saturating_mul(1024) / layout.page_size();
        Ok(Self {
            cpu,
            path: path.display().to_string(),
            file,
            layout,
            batch: (pages / 4).max(1),
            taken,
        })
    }

    /// Moves up to `nr_pages` pages to the file, and returns how many there were.
    fn take(&mut self, nr_pages: usize) -> io::Result<usize> {
        let mut nr_taken = 0;
        while nr_taken < nr_pages {
            let wanted = CHUNK.min(nr_pages - nr_taken);
            let (chunk, nr, error) = self.read(wanted);
            let kept = match chunk.is_empty() {
                true => Ok(()),
                false => self.taken.keep(&chunk),
            };
            nr_taken += nr;
            match (error, kept) {
                (Some(error), _) | (None, Err(error)) => return Err(error),
                (None, Ok(())) if nr < wanted => break,
                (None, Ok(())) => {}
            }
        }
        Ok(nr_taken)
    }

    /// Reads up to `nr_pages` pages; returns them, how many there are, and why there are no more, if that is an
    /// error.
    fn read(&mut self, nr_pages: usize) -> (Vec<u8>, usize, Option<io::Error>) {
        let mut chunk = Vec::new();
        let mut page = vec![0; self.layout.page_size()];
        for nr in 0..nr_pages {
            let len = loop {
                match self.file.read(&mut page) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                    // The buffer of a CPU that was never online.
                    Err(error) if error.raw_os_error() == Some(ENODEV) => break 0,
                    Err(error) => return (chunk, nr, Some(error)),
                    Ok(len) => break len,
                }
            };
            if len == 0 {
                return (chunk, nr, None);
            }
            // A damaged page is reported when its turn comes.
            let len = self.layout.used(&page[..len]).unwrap_or(len).min(len);
            chunk.extend((len as u32).to_ne_bytes());
            chunk.extend(&page[..len]);
        }
        (chunk, nr_pages, None)
    }
}

/// Moves what is left in the buffers to `spool`, but not more than each buffer can have: it may still record.
pub(super) fn drain(tracefs: &Tracefs, layout: Layout, spool: Spool) -> Result<Spool> {
    let mut drained = Spool::new();
    for (cpu, taken) in spool {
        let mut reader = Reader::open(tracefs, cpu, layout, taken)?;
        if let Err(error) = reader.take(4 * (reader.batch + 1)) {
            warn(format_args!(
                "{}: {error}: the rest is skipped",
                reader.path
            ));
        }
        drained.insert(cpu, reader.taken);
    }
    Ok(drained)
}

/// The size in `1408` or, of a buffer that was never used, `7 (expanded: 1408)`.
fn buffer_kb(text: &str) -> Option<usize> {
    let text = text.trim();
    let text = match text.split_once("(expanded: ") {
        Some((_, expanded)) => expanded.trim_end_matches(')'),
        None => text,
    };
    text.parse().ok()
}

struct Stream {
    space: Option<Space>,
    /// What a capture needs besides the pages that were taken, in bytes.
    margin: u64,
    /// What is reserved, and what was taken.
    reserved: u64,
    len: u64,
}

impl Stream {
    fn run(&mut self, mut readers: Vec<Reader>, stop: &OwnedFd) -> Spool {
        let mut spool = Spool::new();
        let mut keep = |reader: Reader| drop(spool.insert(reader.cpu, reader.taken));
        while !readers.is_empty() {
            let mut files: Vec<_> = readers
                .iter()
                .map(|reader| PollFd::from_borrowed_fd(reader.file.as_fd(), PollFlags::IN))
                .chain([PollFd::new(stop, PollFlags::IN)])
                .collect();
            match poll(&mut files, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => {
                    gives_up(&reason(&error.into()));
                    break;
                }
            }
            let found: Vec<_> = files.iter().map(PollFd::revents).collect();
            if found.last().is_some_and(|found| !found.is_empty()) {
                break;
            }
            let mut left = Vec::new();
            let mut failed = None;
            for (mut reader, found) in readers.into_iter().zip(found) {
                let readable = found.contains(PollFlags::IN);
                if readable && failed.is_none() {
                    if let Err(error) = self.take(&mut reader) {
                        failed = Some(format!("{}: {}", reader.path, reason(&error)));
                    }
                }
                // The buffer of a CPU that was never online has nothing. A FIFO may end, in tests.
                let over = PollFlags::ERR | PollFlags::NVAL | PollFlags::HUP;
                match readable || !found.intersects(over) {
                    true => left.push(reader),
                    false => keep(reader),
                }
            }
            readers = left;
            if let Some(error) = failed {
                gives_up(&error);
                break;
            }
        }
        readers.into_iter().for_each(keep);
        spool
    }

    /// Makes sure that there is space for this many more bytes.
    fn reserve(&mut self, more: u64) -> io::Result<()> {
        let needed = self.len + more + self.margin;
        if needed > self.reserved {
            if let Some(space) = &self.space {
                space.reserve(needed + STEP)?;
            }
            self.reserved = needed + STEP;
        }
        Ok(())
    }

    /// Takes pages of a CPU.
    fn take(&mut self, reader: &mut Reader) -> io::Result<()> {
        self.reserve((reader.batch * (4 + reader.layout.page_size())) as u64)?;
        let before = reader.taken.len();
        let result = reader.take(reader.batch);
        reader.taken.streamed = reader.taken.len();
        self.len += reader.taken.len() - before;
        result.map(drop)
    }
}

fn gives_up(why: &str) {
    warn(format_args!(
        "no more is streamed: {why}\n  from now on, the latest records are in the ring buffer"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(dir: &std::path::Path, file: File) -> Reader {
        let text = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
                    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
                    \tfield: char data;\toffset:16;\tsize:48;\tsigned:1;\n";
        let layout = Layout::parse(text).unwrap();
        Reader {
            cpu: 0,
            path: dir.display().to_string(),
            file,
            layout,
            batch: 2,
            taken: Directory::create(&dir.join("spool"))
                .unwrap()
                .file("cpu0")
                .unwrap(),
        }
    }

    /// A page with this many bytes of data.
    fn page(time: u64, used: u64) -> Vec<u8> {
        let mut page = [time.to_ne_bytes(), used.to_ne_bytes()].concat();
        page.resize(64, time as u8);
        page
    }

    fn pages(taken: &Taken) -> Vec<Vec<u8>> {
        let mut from = taken.read().unwrap();
        let next = std::iter::from_fn(|| Some(next_page(&mut from).unwrap()));
        next.take_while(|page| !page.is_empty()).collect()
    }

    #[test]
    fn pages_are_taken_in_batches() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        // The last one is damaged.
        let all = [page(1, 8), page(2, 48), page(3, 0), page(4, 1000)];
        std::fs::write(&path, all.concat()).unwrap();
        let mut reader = reader(dir.path(), File::open(&path).unwrap());
        let lens: Vec<_> = (0..3)
            .map(|_| {
                reader.take(2).unwrap();
                reader.taken.len()
            })
            .collect();
        let first = 4 + 24 + 4 + 64;
        assert_eq!(
            lens,
            [first, first + 4 + 16 + 4 + 64, first + 4 + 16 + 4 + 64]
        );
        let want = [&all[0][..24], &all[1], &all[2][..16], &all[3]];
        // As often as a capture is tried to be written.
        assert_eq!(pages(&reader.taken), want);
        assert_eq!(pages(&reader.taken), want);
        // Another process finds the same.
        let spool = Directory::open(&dir.path().join("spool")).unwrap();
        assert_eq!(spool.len(), lens[2]);
        assert_eq!(pages(&spool.spool(&[0], OF_EVENTS).unwrap()[&0]), want);
        spool.remove();
        assert!(!dir.path().join("spool").exists());
    }

    #[test]
    fn a_page_that_was_not_written_whole_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Directory::create(&dir.path().join("spool")).unwrap();
        let mut taken = spool.file("cpu0").unwrap();
        let whole = [&4u32.to_ne_bytes()[..], b"page"].concat();
        for cut in 0..whole.len() {
            taken.keep(&whole).unwrap();
            let len = taken.len();
            taken.file.write_all(&whole[..cut]).unwrap();
            taken = spool.file("cpu0").unwrap();
            assert_eq!(taken.len(), len);
        }
        assert_eq!(pages(&taken), vec![b"page"; whole.len()]);
    }

    #[test]
    fn nothing_is_taken_without_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        std::fs::write(&path, [page(1, 8), page(2, 8)].concat()).unwrap();
        let mut reader = reader(dir.path(), File::open(&path).unwrap());
        // No space can be reserved in a file that is not open for writing.
        let mut stream = Stream {
            space: Some(Space::of(File::open(&path).unwrap())),
            margin: 0,
            reserved: 0,
            len: 0,
        };
        stream.take(&mut reader).unwrap_err();
        assert_eq!(reader.file.stream_position().unwrap(), 0);
        stream.space = Some(Space::of(tempfile::tempfile_in(dir.path()).unwrap()));
        stream.take(&mut reader).unwrap();
        assert_eq!(pages(&reader.taken).len(), 2);
        assert_eq!(reader.taken.streamed(), reader.taken.len());
        assert!(stream.reserved >= STEP);
    }

    #[test]
    fn what_cannot_be_written_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        std::fs::write(&path, [page(1, 8), page(2, 8), page(3, 8)].concat()).unwrap();
        let mut reader = reader(dir.path(), File::open(&path).unwrap());
        reader.take(1).unwrap();
        // From now on, a file that is not open for writing.
        reader.taken.file = File::open(dir.path().join("spool/cpu0")).unwrap();
        reader.take(1).unwrap_err();
        assert!(reader.taken.is_in_memory());
        reader.take(1).unwrap();
        let times: Vec<_> = pages(&reader.taken).iter().map(|page| page[0]).collect();
        assert_eq!(times, [1, 2, 3]);
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        Directory::create(&path).unwrap();
        assert!(Directory::create(&path).is_err());
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert!(Directory::open(&dir.path().join("link")).is_err());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o770);
        fs::set_permissions(&path, mode).unwrap();
        assert!(Directory::open(&path).is_err());
    }

    #[test]
    fn sizes_of_buffers_are_read() {
        assert_eq!(buffer_kb("1408\n"), Some(1408));
        assert_eq!(buffer_kb("7 (expanded: 1408)\n"), Some(1408));
        assert_eq!(buffer_kb("X\n"), None);
    }
}
