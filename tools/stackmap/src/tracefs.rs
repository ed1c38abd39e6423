// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files of tracefs.

use crate::{
    error::{Error, Result},
    kernel,
    stack_map_bin::{LoadId, Reader},
    stacks::Stacks,
    stat::Stat,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

/// Where tracefs is mounted by default, and where debugfs shows it.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// How often reading is retried if the map is reset meanwhile.
const ATTEMPTS: usize = 5;
/// What the kernel says of a file that was reset while it was read.
const ESTALE: i32 = 116;

/// Where instances are.
const INSTANCES: &str = "instances";
/// Files that only the top level has, for its instances, too; besides those of the module.
const OF_ALL: [&str; 8] = [
    "available_events",
    "available_filter_functions",
    "eval_map",
    "kprobe_events",
    "printk_formats",
    "saved_cmdlines",
    "saved_tgids",
    "uprobe_events",
];

/// A mounted tracefs: its top level, or an instance.
#[derive(Clone, Debug)]
pub struct Tracefs {
    /// The directory with the buffer, its events and options.
    root: PathBuf,
    /// The top level, if `root` is an instance.
    top: Option<PathBuf>,
}

impl Tracefs {
    /// The one that is at `root`, or at one of the usual places. `root` may be an instance.
    pub fn find(root: Option<&Path>) -> Result<Self> {
        let candidates = match root {
            Some(root) => vec![root],
            None => PLACES.iter().map(Path::new).collect(),
        };
        for root in &candidates {
            match fs::metadata(root.join("trace")) {
                Ok(_) => {
                    return Ok(Self {
                        root: root.to_path_buf(),
                        top: top_of(root),
                    })
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Error::io(format!("look into {}", root.display()), error));
                }
            }
        }
        let hint = match kernel::is_confidential(Path::new("/")) {
            true => "kernel lockdown is \"confidentiality\", where tracing is off: boot with lockdown=integrity",
            false => "mount -t tracefs nodev /sys/kernel/tracing",
        };
        Err(Error::Refused(format!(
            "there is no tracefs at {}\n  hint: {hint}",
            candidates[0].display()
        )))
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the top level.
    pub fn top(&self) -> &Path {
        self.top.as_deref().unwrap_or(&self.root)
    }

    /// Returns the top level.
    pub fn into_top(self) -> Result<Self> {
        match &self.top {
            Some(top) => Self::find(Some(top)),
            None => Ok(self),
        }
    }

    /// The name of the instance, if it is one.
    pub fn instance_name(&self) -> Option<String> {
        self.top.as_ref()?;
        // As it is called there, not as the path to it is written.
        let root = fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone());
        Some(root.file_name()?.to_string_lossy().into_owned())
    }

    /// The path of an instance of this name, there or not.
    pub fn instance_path(&self, name: &str) -> PathBuf {
        self.top().join(INSTANCES).join(name)
    }

    /// The instance of this name, which must be there.
    pub fn instance(&self, name: &str) -> Result<Self> {
        Self::find(Some(&self.instance_path(name)))
    }

    /// The path of one of its files. The map, and some lists, are those of the top level.
    pub fn path(&self, name: &str) -> PathBuf {
        match &self.top {
            Some(top) if is_of_all(name) => top.join(name),
            _ => self.root.join(name),
        }
    }

    /// Whether it has a file.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Whether the stackmap module is loaded.
    pub fn has_stackmap(&self) -> bool {
        self.has("options/stackmap")
    }

    /// Says what to do if the stackmap module is not loaded.
    pub fn require_stackmap(&self) -> Result {
        if self.has_stackmap() {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the stackmap module is not loaded: there is no {}\n  hint: modprobe stackmap; \
             \"stackmap doctor\" says what else is missing",
            self.path("options/stackmap").display()
        )))
    }

    /// Opens a file.
    pub fn open(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::open(&path).map_err(|error| Error::read(&path, error))
    }

    /// The text of a file.
    pub fn read(&self, name: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.read_bytes(name)?).into_owned())
    }

    /// What is in a file.
    pub fn read_bytes(&self, name: &str) -> Result<Vec<u8>> {
        let bytes = read_all(&mut self.open(name)?);
        bytes.map_err(|error| Error::read(&self.path(name), error))
    }

    /// Writes a text to a file, by one write as these files want it.
    pub fn write(&self, name: &str, text: &str) -> Result {
        self.write_as(name, text, false)
    }

    /// Writes a text to a file that keeps what it has.
    pub fn append(&self, name: &str, text: &str) -> Result {
        self.write_as(name, text, true)
    }

    fn write_as(&self, name: &str, text: &str, append: bool) -> Result {
        let path = self.path(name);
        let failed = |error| {
            let shown = text.trim_end().escape_debug();
            Error::io(format!("write \"{shown}\" to {}", path.display()), error)
        };
        let mut options = OpenOptions::new();
        let mut file = match append {
            true => options.append(true),
            false => options.write(true).truncate(true),
        }
        .open(&path)
        .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)
    }

    /// The counters of the map.
    pub fn stat(&self) -> Result<Stat> {
        self.require_stackmap()?;
        Ok(Stat::parse(&self.read("stack_map_stat")?))
    }

    /// The counters of user stacks; none if the module is older than these.
    pub fn user_stat(&self) -> Result<Stat> {
        let name = "stack_map_user_stat";
        match self.has(name) {
            true => Ok(Stat::parse(&self.read(name)?)),
            false => Ok(Stat::default()),
        }
    }

    /// The stacks of the map. If it is reset meanwhile, those after the reset.
    pub fn stacks(&self) -> Result<Stacks> {
        self.stack_map_bin("stack_map_bin", Stacks::read)
    }

    /// The user stacks; [`None`]: the module is older than these.
    pub fn user_stacks(&self) -> Result<Option<Stacks>> {
        let name = "stack_map_user_bin";
        match self.has(name) {
            true => self.stack_map_bin(name, Stacks::read_user).map(Some),
            false => Ok(None),
        }
    }

    /// What distinguishes the map from one that is loaded or emptied later.
    pub fn map_state(&self) -> Result<MapState> {
        self.stack_map_bin("stack_map_bin", |file, source| {
            let mut reader = Reader::new(file, source)?;
            Ok(MapState {
                load_id: reader.load_id(),
                first_id: reader.next_stack()?.map(|stack| stack.id),
            })
        })
    }

    /// The result of `read` on a map. If the map is reset meanwhile, the result after the reset.
    fn stack_map_bin<T>(
        &self,
        name: &str,
        read: impl Fn(BufReader<File>, &str) -> Result<T>,
    ) -> Result<T> {
        self.require_stackmap()?;
        let path = self.path(name);
        let source = path.display().to_string();
        let mut attempt = 1;
        loop {
            let result = File::open(&path)
                .map_err(|error| Error::read(&path, error))
                .and_then(|file| read(BufReader::with_capacity(256 << 10, file), &source));
            match result {
                Err(Error::Io { error, .. }) if attempt < ATTEMPTS && is_reset(&error) => {
                    attempt += 1;
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                result => return result,
            }
        }
    }
}

/// What distinguishes a map from another one.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct MapState {
    /// The load of the module; [`None`]: not known.
    pub load_id: Option<LoadId>,
    /// The id of a stack; [`None`]: there is none.
    pub first_id: Option<u32>,
}

fn is_reset(error: &io::Error) -> bool {
    is_stale(error) || error.kind() == io::ErrorKind::ResourceBusy
}

/// Whether the map was reset since the file was opened.
pub(crate) fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ESTALE)
}

/// The top level of the instance at `root`, if it is one.
fn top_of(root: &Path) -> Option<PathBuf> {
    let root = fs::canonicalize(root).ok()?;
    let instances = root.parent()?;
    let top = instances.parent()?;
    (instances.file_name()? == INSTANCES && top.join("trace").exists()).then(|| top.to_owned())
}

/// Whether the top level has the file for its instances, too.
fn is_of_all(name: &str) -> bool {
    let file = name.strip_prefix("options/").unwrap_or(name);
    file.starts_with("stack_map") || file.starts_with("stackmap") || OF_ALL.contains(&name)
}

/// All of a file. Some of tracefs (`events/header_page`, filters) have nothing after what a first
/// read asks for.
fn read_all(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let len = loop {
        match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            len => break len?,
        }
    };
    bytes.truncate(len);
    if len > 0 {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that has nothing after what was asked for first.
    struct OneRead(Vec<u8>);

    impl Read for OneRead {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.0.len().min(buffer.len());
            buffer[..len].copy_from_slice(&self.0[..len]);
            self.0.clear();
            Ok(len)
        }
    }

    #[test]
    fn files_that_are_read_once_are_read_whole() {
        let text = vec![b'x'; 5000];
        assert_eq!(read_all(&mut OneRead(text.clone())).unwrap(), text);
        let long = vec![b'y'; 200 << 10];
        assert_eq!(read_all(&mut &long[..]).unwrap(), long);
        assert!(read_all(&mut &b""[..]).unwrap().is_empty());
    }

    #[test]
    fn an_instance_has_the_map_of_the_top_level() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap();
        let instance = top.join("instances/x");
        fs::create_dir_all(instance.join("options")).unwrap();
        fs::create_dir_all(top.join("options")).unwrap();
        for file in ["trace", "options/stackmap", "instances/x/trace"] {
            fs::write(top.join(file), "").unwrap();
        }
        let tracefs = Tracefs::find(Some(&instance.join("../x"))).unwrap();
        assert!(tracefs.has_stackmap());
        assert_eq!(tracefs.instance_name().as_deref(), Some("x"));
        assert_eq!(tracefs.path("stack_map_bin"), top.join("stack_map_bin"));
        let trace = fs::canonicalize(tracefs.path("trace")).unwrap();
        assert_eq!(trace, instance.join("trace"));

        let tracefs = Tracefs::find(Some(&top)).unwrap();
        assert_eq!(tracefs.instance_name(), None);
        assert_eq!(tracefs.path("trace"), top.join("trace"));
        assert_eq!(tracefs.instance("x").unwrap().top(), top);
        assert!(tracefs.instance("y").is_err());
    }
}
