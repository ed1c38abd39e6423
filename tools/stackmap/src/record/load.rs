// SPDX-License-Identifier: MIT OR Apache-2.0

//! Loads the module if it is not there.

use crate::{
    error::{Error, Result},
    kernel,
    output::say,
    tracefs::Tracefs,
};
use std::{fs::File, path::Path, process::Command};

/// Makes sure that the module is loaded: from the file `module`, or as `modprobe` finds it.
pub(super) fn ensure(tracefs: &Tracefs, module: Option<&Path>) -> Result {
    if tracefs.has_stackmap() {
        return Ok(());
    }
    match module {
        Some(path) => insert(path)?,
        None => modprobe()?,
    }
    if !tracefs.has_stackmap() {
        return tracefs.require_stackmap();
    }
    say("note: loaded the module stackmap; rmmod stackmap unloads it");
    Ok(())
}

fn insert(path: &Path) -> Result {
    let file = File::open(path).map_err(|error| Error::read(path, error))?;
    rustix::system::finit_module(&file, c"", 0).map_err(|error| {
        if error == rustix::io::Errno::NOEXEC {
            return Error::Refused(format!(
                "{}: not a module for this kernel, {}\n  hint: dmesg says more; build it for this \
                 kernel, or use modprobe, without --module",
                path.display(),
                kernel::release()
            ));
        }
        let what = format!("load {} (dmesg says why)", path.display());
        Error::io(what, error.into())
    })
}

fn modprobe() -> Result {
    let refused = |why: String| {
        Error::Refused(format!(
            "the stackmap module is not loaded, and modprobe cannot load it: {why}\n  hint: \
             --module FILE loads it from a file; \"stackmap doctor\" says what is missing"
        ))
    };
    let output = Command::new("modprobe")
        .arg("stackmap")
        .output()
        .map_err(|error| refused(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let why = match why.trim() {
        "" => output.status.to_string(),
        why => why.to_owned(),
    };
    Err(refused(why))
}
