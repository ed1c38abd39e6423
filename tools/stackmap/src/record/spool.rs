// SPDX-License-Identifier: MIT OR Apache-2.0

//! Takes pages from the ring buffer while it records, so that the disk bounds a recording, and not
//! the buffer.
//!
//! A thread waits until a quarter of the buffer of a CPU is full. Then it moves as many pages to a
//! file without a name beside the capture. Space for them is reserved in the capture first: what
//! was taken can be saved. Without space, or after an error, no more is taken, and the kernel
//! overwrites its oldest records, as without this.

use super::undo::buffer_kb;
use crate::{
    capture::Room,
    error::{Error, Result},
    output::warn,
    ring::page::Layout,
    tracefs::Tracefs,
};
use rustix::{
    event::{eventfd, poll, EventfdFlags, PollFd, PollFlags},
    io::{write, Errno},
};
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Cursor, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    thread::{self, JoinHandle},
};

/// How full the buffer of a CPU is when the kernel wakes its reader, in percent.
pub(super) const PERCENT: (&str, &str) = ("buffer_percent", "25");
/// Room for all of a capture besides pages, in bytes.
const MARGIN: u64 = 32 << 20;
/// So much more space is reserved each time, in bytes.
const STEP: u64 = 16 << 20;

/// The pages of a CPU that were taken from its buffer.
pub(super) struct Taken {
    file: File,
    len: u64,
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

    /// The pages, each with its length before it, from the first one.
    pub(super) fn read(self) -> Result<impl Read> {
        let Self {
            mut file,
            len,
            tail,
        } = self;
        file.rewind()
            .map_err(|error| Error::io("read what was streamed", error))?;
        let file = io::BufReader::with_capacity(256 << 10, file.take(len));
        Ok(file.chain(Cursor::new(tail)))
    }
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
    /// Starts it for the buffers of `cpus`. `room` is that of the capture.
    pub(super) fn start(
        tracefs: &Tracefs,
        cpus: &[u32],
        layout: Layout,
        room: Room,
    ) -> Result<Self> {
        let mut readers = Vec::new();
        let mut margin = MARGIN;
        for cpu in cpus {
            let reader = Reader::open(tracefs, *cpu, layout, &room)?;
            margin += 4 * (reader.batch * layout.page_size()) as u64;
            readers.push(reader);
        }
        let failed = |error: Errno| Error::io("stream the ring buffer", error.into());
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?;
        let stopped = stop
            .try_clone()
            .map_err(|error| Error::io("stream the ring buffer", error))?;
        let mut stream = Stream {
            room,
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
    fn open(tracefs: &Tracefs, cpu: u32, layout: Layout, room: &Room) -> Result<Self> {
        let path = tracefs.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(&path)
            .map_err(|error| Error::read(&path, error))?;
        let kb = tracefs.read(&format!("per_cpu/cpu{cpu}/buffer_size_kb"));
        let kb = kb.ok().and_then(|kb| buffer_kb(&kb)?.parse::<usize>().ok());
        let pages = kb.unwrap_or_default().saturating_mul(1024) / layout.page_size();
        Ok(Self {
            cpu,
            path: path.display().to_string(),
            file,
            layout,
            batch: (pages / 4).max(1),
            taken: Taken {
                file: room.beside()?,
                len: 0,
                tail: Vec::new(),
            },
        })
    }

    /// Takes up to a quarter of the buffer, which leaves out the page that is being written.
    fn batch(&mut self) -> io::Result<Vec<u8>> {
        let mut batch = Vec::new();
        for _ in 0..self.batch {
            let mut page = vec![0; self.layout.page_size()];
            let len = loop {
                match self.file.read(&mut page) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                    // What was read before is kept; the error comes again.
                    Err(_) if !batch.is_empty() => break 0,
                    len => break len?,
                }
            };
            page.truncate(len);
            if len == 0 {
                break;
            }
            // A damaged page is reported when its turn comes.
            page.truncate(self.layout.used(&page).unwrap_or(len));
            batch.extend((page.len() as u32).to_ne_bytes());
            batch.extend(page);
        }
        Ok(batch)
    }

    /// Keeps a batch. After an error it is kept in memory.
    fn keep(&mut self, batch: Vec<u8>) -> io::Result<()> {
        let taken = &mut self.taken;
        let result = taken.file.write_all(&batch);
        match result {
            Ok(()) => taken.len += batch.len() as u64,
            Err(_) => taken.tail = batch,
        }
        result
    }
}

struct Stream {
    room: Room,
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
                    gives_up(&io::Error::from(error).to_string());
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
                        failed = Some(format!("{}: {error}", reader.path));
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

    /// Makes sure that there is room for so many more bytes.
    fn reserve(&mut self, more: u64) -> io::Result<()> {
        let needed = self.len + more + self.margin;
        if needed > self.reserved {
            self.room.reserve(needed + STEP)?;
            self.reserved = needed + STEP;
        }
        Ok(())
    }

    /// Takes pages of a CPU.
    fn take(&mut self, reader: &mut Reader) -> io::Result<()> {
        self.reserve((reader.batch * (4 + reader.layout.page_size())) as u64)?;
        let batch = reader.batch()?;
        self.len += batch.len() as u64;
        reader.keep(batch)
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
        let layout = Layout::parse(text, crate::ring::Order::NATIVE).unwrap();
        Reader {
            cpu: 0,
            path: dir.display().to_string(),
            file,
            layout,
            batch: 2,
            taken: Taken {
                file: tempfile::tempfile_in(dir).unwrap(),
                len: 0,
                tail: Vec::new(),
            },
        }
    }

    /// A page with so many bytes of data.
    fn page(time: u64, used: u64) -> Vec<u8> {
        let mut page = [time.to_ne_bytes(), used.to_ne_bytes()].concat();
        page.resize(64, time as u8);
        page
    }

    fn pages(taken: Taken) -> Vec<Vec<u8>> {
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
                let batch = reader.batch().unwrap();
                let len = batch.len();
                reader.keep(batch).unwrap();
                len
            })
            .collect();
        assert_eq!(lens, [4 + 24 + 4 + 64, 4 + 16 + 4 + 64, 0]);
        assert_eq!(reader.taken.len(), lens.iter().sum::<usize>() as u64);
        let want = [&all[0][..24], &all[1], &all[2][..16], &all[3]];
        assert_eq!(pages(reader.taken), want);
    }

    #[test]
    fn nothing_is_taken_without_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        std::fs::write(&path, [page(1, 8), page(2, 8)].concat()).unwrap();
        let mut reader = reader(dir.path(), File::open(&path).unwrap());
        // No space can be reserved in a file that is not open for writing.
        let mut stream = Stream {
            room: Room::of(File::open(&path).unwrap()),
            margin: 0,
            reserved: 0,
            len: 0,
        };
        stream.take(&mut reader).unwrap_err();
        assert_eq!(reader.file.stream_position().unwrap(), 0);
        stream.room = Room::of(tempfile::tempfile_in(dir.path()).unwrap());
        stream.take(&mut reader).unwrap();
        assert_eq!(pages(reader.taken).len(), 2);
        assert!(stream.reserved >= STEP);
    }

    #[test]
    fn what_cannot_be_written_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        std::fs::write(&path, [page(1, 8), page(2, 8), page(3, 8)].concat()).unwrap();
        let mut reader = reader(dir.path(), File::open(&path).unwrap());
        let batch = reader.batch().unwrap();
        reader.keep(batch).unwrap();
        // From now on, a file that is not open for writing.
        let spool = dir.path().join("spool");
        let mut written = Vec::new();
        let file = &mut reader.taken.file;
        file.rewind().unwrap();
        file.read_to_end(&mut written).unwrap();
        std::fs::write(&spool, written).unwrap();
        reader.taken.file = File::open(&spool).unwrap();
        let batch = reader.batch().unwrap();
        reader.keep(batch).unwrap_err();
        let times: Vec<_> = pages(reader.taken).iter().map(|page| page[0]).collect();
        assert_eq!(times, [1, 2, 3]);
    }
}
