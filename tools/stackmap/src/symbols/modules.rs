// SPDX-License-Identifier: MIT OR Apache-2.0

//! `/proc/modules`: which modules were loaded, and where.

/// A loaded module.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// Where its code begins; 0 if the reader of the file was not allowed to know.
    pub base: u64,
    /// How much memory it takes in all, in bytes.
    pub size: u64,
}

/// The loaded modules, in the order of the file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Modules(Vec<Module>);

impl Modules {
    /// Reads the text of `/proc/modules`; lines that are not of its form are left out.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.0.iter()
    }

    /// The one with this name.
    pub fn get(&self, name: &str) -> Option<&Module> {
        self.0.iter().find(|module| module.name == name)
    }
}

/// `name size references users state address (flags)`
fn parse_line(line: &str) -> Option<Module> {
    let mut words = line.split_ascii_whitespace();
    let name = words.next()?.to_owned();
    let size = words.next()?.parse().ok()?;
    let base = words.nth(3)?;
    let base = u64::from_str_radix(base.strip_prefix("0x").unwrap_or(base), 16).ok()?;
    Some(Module { name, base, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_prints() {
        let text = "stackmap 57344 0 - Live 0xffffffffc0a00000 (OE)\n\
                    9p 86016 1 - Live 0xffffffffc09e0000\n\
                    nonsense\n\
                    9pnet 122880 2 9pnet_virtio,9p, Live 0x0000000000000000\n";
        let modules = Modules::parse(text);
        let names: Vec<_> = modules.iter().map(|module| &module.name[..]).collect();
        assert_eq!(names, ["stackmap", "9p", "9pnet"]);
        let stackmap = modules.get("stackmap").unwrap();
        assert_eq!(stackmap.base, 0xffff_ffff_c0a0_0000);
        assert_eq!(stackmap.size, 57344);
        assert_eq!(modules.get("9pnet").unwrap().base, 0);
        assert!(modules.get("ext4").is_none());
    }
}
