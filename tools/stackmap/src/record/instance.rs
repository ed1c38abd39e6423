// SPDX-License-Identifier: MIT OR Apache-2.0

//! The buffer to record into: that of the top level, or of an instance.

use super::undo::{self, listed};
use crate::{
    error::{Error, Result},
    tracefs::Tracefs,
};
use std::{fs, io};

/// The buffer to record into. An instance that was created for the recording is removed again,
/// unless [`Undo`](undo::Undo) removes it: see [`settle`](Self::settle).
pub(super) struct Place {
    tracefs: Tracefs,
    made: bool,
}

impl Place {
    /// The place in `tracefs` itself, or the instance `name`, which is made if it is not there.
    pub(super) fn find(tracefs: Tracefs, name: Option<&str>) -> Result<Self> {
        let Some(name) = name else {
            return Ok(Self {
                tracefs,
                made: false,
            });
        };
        if let Some(other) = tracefs.instance_name() {
            return Err(Error::Refused(format!(
                "--tracefs is already an instance, {other}\n  hint: use --instance with the \
                 top-level tracefs"
            )));
        }
        if name.is_empty() || name.contains(['/', '\n']) || [".", ".."].contains(&name) {
            return Err(Error::Refused(format!(
                "\"{}\" is not a valid name for an instance",
                name.escape_debug()
            )));
        }
        let path = tracefs.instance_path(name);
        let made = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => {
                return Err(Error::io(format!("create {}", path.display()), error));
            }
        };
        match tracefs.instance(name) {
            Ok(tracefs) => Ok(Self { tracefs, made }),
            Err(error) => {
                if made {
                    let _ = fs::remove_dir(path);
                }
                Err(error)
            }
        }
    }

    pub(super) fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// What restoring tracefs does to the instance.
    pub(super) fn undo(&self) -> Result<undo::Instance> {
        let unlist = match self.tracefs.instance_name() {
            Some(name) if !listed(&self.tracefs, &name)? => Some(name),
            _ => None,
        };
        Ok(undo::Instance {
            unlist,
            remove: self.made,
        })
    }

    /// From now on, the undo list of [`undo`](Self::undo) removes the instance.
    pub(super) fn settle(mut self) -> Tracefs {
        self.made = false;
        self.tracefs.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made {
            // The error that led here is the one to report.
            let _ = fs::remove_dir(self.tracefs.root());
        }
    }
}

/// Lists an instance in `stack_map_instances`, so that its stacks become ids.
pub(super) fn list(tracefs: &Tracefs) -> Result {
    let Some(name) = tracefs.instance_name() else {
        return Ok(());
    };
    if listed(tracefs, &name)? {
        return Ok(());
    }
    let written = tracefs.append(undo::INSTANCES, &format!("{name}\n"));
    written.map_err(|error| match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::StorageFull => Error::Refused(
            "the module serves no more instances\n  hint: stack_map_instances in tracefs lists \
             them; writing \"!NAME\" removes one"
                .to_owned(),
        ),
        Error::Io { error, .. } if error.kind() == io::ErrorKind::Unsupported => {
            Error::Refused(format!(
                "the buffer of instance {name} survives a reboot; the stacks of its ids do not\n  \
                 hint: record into another instance"
            ))
        }
        error => error,
    })
}
