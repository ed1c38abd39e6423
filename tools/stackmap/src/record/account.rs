// SPDX-License-Identifier: MIT OR Apache-2.0

//! The user whose rights the recorded command has.
//!
//! The users of this machine are read from `/etc/passwd` and `/etc/group`; `getent` and `id` are asked
//! for others, such as those of LDAP. The C library cannot look them up in a program without shared
//! libraries.

use crate::error::{Error, Result};
use rustix::{
    process::{geteuid, Gid, Uid},
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};
use std::{
    ffi::OsString,
    fs, io,
    process::{Child, Command, Stdio},
    thread,
};

/// A user, with all of the groups.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Account {
    name: String,
    home: OsString,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Account {
    /// The user of that name, whose rights only root can take.
    pub(super) fn find(name: &str) -> Result<Self> {
        if !geteuid().is_root() {
            return Err(Error::Refused(format!(
                "only root can run a command as {name}\n  hint: without --user the command runs as you"
            )));
        }
        let text = |path: &str| fs::read(path).unwrap_or_default();
        let (passwd, group) = (text("/etc/passwd"), text("/etc/group"));
        let local = Self::parse(name, &String::from_utf8_lossy(&passwd)).map(|mut account| {
            account.join(&String::from_utf8_lossy(&group));
            account
        });
        local.or_else(|| Self::ask(name)).ok_or_else(|| {
            Error::Refused(format!(
                "there is no user \"{name}\"\n  hint: getent passwd lists the users"
            ))
        })
    }

    /// A user whom the files do not name.
    fn ask(name: &str) -> Option<Self> {
        let mut account = Self::parse(name, &output_of(&["getent", "passwd", "--", name])?)?;
        let groups = output_of(&["id", "-G", "--", name])?;
        account.groups = groups
            .split_ascii_whitespace()
            .map(|group| group.parse().ok())
            .collect::<Option<_>>()?;
        Some(account)
    }

    /// The line of a user in the text of `/etc/passwd`.
    fn parse(name: &str, passwd: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let fields: Vec<_> = line.split(':').collect();
            let &[found, _, uid, gid, _, home, _] = &fields[..] else {
                return None;
            };
            let gid = gid.parse().ok()?;
            (found == name && !name.is_empty()).then_some(Self {
                name: name.to_owned(),
                home: home.into(),
                uid: uid.parse().ok()?,
                gid,
                groups: vec![gid],
            })
        })
    }

    /// Adds the groups that name the user, in the text of `/etc/group`.
    fn join(&mut self, group: &str) {
        for line in group.lines() {
            let fields: Vec<_> = line.split(':').collect();
            let &[_, _, gid, members] = &fields[..] else {
                continue;
            };
            let Ok(gid) = gid.parse() else { continue };
            if members.split(',').any(|member| member == self.name) && !self.groups.contains(&gid) {
                self.groups.push(gid);
            }
        }
    }

    /// Starts `command` with the rights of this user.
    ///
    /// A thread gives up its own rights, for good, and starts it: a process inherits what its
    /// thread has. So the program is found and started with the rights of the user, and errors are
    /// returned as usual.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command
            .env("HOME", &self.home)
            .env("USER", &self.name)
            .env("LOGNAME", &self.name);
        thread::scope(|scope| {
            let started = scope.spawn(|| {
                let groups: Vec<_> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
                set_thread_groups(&groups)?;
                set_thread_gid(Gid::from_raw(self.gid))?;
                set_thread_uid(Uid::from_raw(self.uid))?;
                command.spawn()
            });
            started
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread has panicked")))
        })
    }
}

/// What a command prints, if it succeeds.
fn output_of(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken:x:1\nbad:x:-1:5::/:\n\
                          ann:x:1000:100:Ann,,,:/home/ann:/bin/sh\n";
    const GROUP: &str =
        "users:x:100:\nwheel:x:10:bob,ann\nann:x:1000:anna\nodd:x\nio:x:11:ann\nagain:x:11:ann\n";

    #[test]
    fn an_account_has_its_groups_once() {
        let mut ann = Account::parse("ann", PASSWD).unwrap();
        ann.join(GROUP);
        let wanted = Account {
            name: "ann".to_owned(),
            home: "/home/ann".into(),
            uid: 1000,
            gid: 100,
            groups: vec![100, 10, 11],
        };
        assert_eq!(ann, wanted);
    }

    #[test]
    fn invalid_accounts_are_refused() {
        for name in ["", "broken", "bad", "an", "ann:x", "x"] {
            assert_eq!(Account::parse(name, PASSWD), None, "{name}");
        }
        assert_eq!(Account::parse("", "::0:0:::\n"), None);
    }
}
