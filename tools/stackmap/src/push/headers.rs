// SPDX-License-Identifier: MIT OR Apache-2.0

//! Headers that let a request in. They are secrets, so no argument has them: arguments are public.

use crate::error::{Error, Result};
use rustix::process::geteuid;
use std::{env, ffi::OsString, fmt, fs::File, io::Read, os::unix::fs::MetadataExt, path::Path};
use ureq::http::{header::AUTHORIZATION, HeaderName, HeaderValue};

/// Has a token.
const TOKEN: &str = "STACKMAP_PUSH_TOKEN";
/// Parts of values that are shorter are shown, as words of a message are.
const MIN_SECRET: usize = 4;
/// The most bytes of a file with headers.
const MAX_FILE: u64 = 16 << 10;
/// Those of a request itself.
const OWN: [&str; 6] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "transfer-encoding",
];

/// Headers.
#[derive(Default)]
pub struct Headers(Vec<(HeaderName, HeaderValue)>);

impl Headers {
    /// Those of a file, and the token of the environment.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let mut headers = match path {
            Some(path) => Self::of_file(path)?,
            None => Self::default(),
        };
        if let Some(token) = env::var_os(TOKEN).filter(|token| !token.is_empty()) {
            headers.add_token(token)?;
        }
        Ok(headers)
    }

    fn of_file(path: &Path) -> Result<Self> {
        let failed = |error| Error::read(path, error);
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let is_own = [0, geteuid().as_raw()].contains(&about.uid());
        if about.mode() & 0o026 != 0 || !is_own {
            return Err(Error::Refused(format!(
                "{} has secrets, and others can read or change it\n  hint: chmod 600 {0}",
                path.display()
            )));
        }
        let mut text = String::new();
        file.take(MAX_FILE + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let name = path.display().to_string();
        if text.len() as u64 > MAX_FILE {
            return Err(Error::input(name, "it is too long for headers"));
        }
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let headers = lines.map(|(nr, line)| {
            // The line is a secret.
            let wrong = || {
                let what = format!("line {} is not a header, NAME: VALUE", nr + 1);
                Error::input(name.clone(), what)
            };
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            let name: HeaderName = name.parse().map_err(|_| wrong())?;
            let value = value.trim().parse().map_err(|_| wrong())?;
            match OWN.contains(&name.as_str()) {
                true => Err(wrong()),
                false => Ok((name, value)),
            }
        });
        Ok(Self(headers.collect::<Result<_>>()?))
    }

    fn add_token(&mut self, token: OsString) -> Result {
        let value = token.into_string().ok();
        let value = value.and_then(|token| format!("Bearer {}", token.trim()).parse().ok());
        let value = value.ok_or_else(|| Error::input(TOKEN, "it is not the value of a header"))?;
        if self.iter().any(|(name, _)| name == AUTHORIZATION) {
            let what = format!("{TOKEN} and --header-file both have an authorization");
            return Err(Error::Refused(what));
        }
        self.0.push((AUTHORIZATION, value));
        Ok(())
    }

    /// Names and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A text of the server without what is secret, as it may repeat it.
    pub(super) fn hidden_in(&self, text: &str) -> String {
        let values = self.0.iter().filter_map(|(_, value)| value.to_str().ok());
        let is_part = |c: char| c.is_ascii_alphanumeric();
        // A server may repeat parts, with other characters between them.
        let parts = values.flat_map(|value| {
            let parts = value.split(|c| !is_part(c));
            [value].into_iter().chain(parts)
        });
        let mut secrets: Vec<&str> = parts.filter(|part| part.len() >= MIN_SECRET).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.into_iter().fold(text.to_owned(), |text, secret| {
            text.replace(secret, "(secret)")
        })
    }
}

/// Without the values.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn read(text: &str, mode: u32) -> Result<Headers> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("headers");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Headers::of_file(&path)
    }

    #[test]
    fn headers_are_read() {
        let mut headers = read("X-Scope-OrgID:  a b \n\nX: c:d\n", 0o640).unwrap();
        headers.add_token("t0ken-of-ann".into()).unwrap();
        assert!(headers.add_token("another".into()).is_err());
        let all: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}={value:?}"))
            .collect();
        let want = [
            "x-scope-orgid=\"a b\"",
            "x=\"c:d\"",
            "authorization=\"Bearer t0ken-of-ann\"",
        ];
        assert_eq!(all, want);
        assert!(Headers::default().add_token("a\nb".into()).is_err());
        assert!(read("", 0o400).unwrap().is_empty() && !headers.is_empty());
    }

    #[test]
    fn secrets_are_not_shown() {
        let headers = read("Authorization: Basic s3cret-word\nX: abc\n", 0o600).unwrap();
        let shown = format!("{headers:?}");
        assert_eq!(shown, "[\"authorization\", \"x\"]");
        assert_eq!(
            headers.hidden_in("no: Basic s3cret-word, s3cret%2Dword, abc"),
            "no: (secret), (secret)%2D(secret), abc"
        );
        for text in [
            "s3cret-word",
            "a b: s3cret-word",
            "A: s3cret-word\u{7}",
            "Host: s3cret-word",
        ] {
            let error = read(text, 0o600).unwrap_err().to_string();
            assert!(error.contains("line 1 is not a header"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let long = format!("A: {}", "x".repeat(MAX_FILE as usize - 2));
        assert!(read(&long, 0o600).is_err() && read(&long[1..], 0o600).is_err());
        for mode in [0o604, 0o620, 0o602] {
            assert!(read("A: b", mode).is_err(), "{mode:o}");
        }
    }
}
