// SPDX-License-Identifier: GPL-2.0

//! What of real stacks cannot be walked, and where: `limits DIR`, with what `selftests/guest/limits` has
//! left in DIR.
//!
//! Each frame is looked up again in its file, by the module's code; what has no rule is named by the other
//! reader's row. Stacks count as often as they were recorded.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, LittleEndian, UnwindContext, UnwindSection,
};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use stackmap_user::{
    cfi::{learn, Unknown, X86_64},
    rule::{Base, Rule, RuleKind, Saved},
    Bytes,
};
use std::{collections::BTreeMap, env, fs, path::Path};

/// Lines of each list that are shown.
const SHOWN: usize = 25;

/// What is known of an address: its rule, or why it has none.
type Cause = Result<Rule, String>;

/// The files, and what is known of their addresses.
struct Files<'a> {
    directory: &'a Path,
    files: BTreeMap<String, Option<Bytes<Vec<u8>>>>,
    found: BTreeMap<(String, u64), Cause>,
}

impl Files<'_> {
    fn find(&mut self, path: &str, offset: u64) -> Cause {
        let directory = self.directory.join("files");
        let file = self.files.entry(path.to_owned()).or_insert_with(|| {
            let content = fs::read(directory.join(path.trim_start_matches('/')));
            content.ok().map(Bytes)
        });
        let found = self.found.entry((path.to_owned(), offset));
        found
            .or_insert_with(|| cause(file.as_ref(), offset))
            .clone()
    }
}

/// The rule of an address in a file, or why there is none.
fn cause(file: Option<&Bytes<Vec<u8>>>, offset: u64) -> Cause {
    let file = file.ok_or("no file")?;
    let found = learn(file, &X86_64, offset);
    found.map_err(|error| match error {
        Unknown::Inexpressible => row(&file.0, offset).unwrap_or("no row".to_owned()),
        // A search ends at the last description, which has no length.
        Unknown::NoFunction | Unknown::Damaged => "no description".to_owned(),
        Unknown::TooLong => "too many steps".to_owned(),
        other => format!("{other:?}"),
    })
}

/// How the other reader says where the frame ends.
fn row(data: &[u8], offset: u64) -> Option<String> {
    let object = object::File::parse(data).ok()?;
    let section = object.section_by_name(".eh_frame")?;
    let eh_frame = EhFrame::new(section.data().ok()?, LittleEndian);
    let _: &EhFrame<EndianSlice<'_, LittleEndian>> = &eh_frame;
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let address = address_of(&object, offset)?;
    let mut context = UnwindContext::new();
    let row = eh_frame
        .unwind_info_for_address(&bases, &mut context, address, EhFrame::cie_from_offset)
        .ok()?;
    Some(match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } if matches!(register.0, 6 | 7) => {
            match Rule::call(Base::Sp, *offset, Saved::No) {
                Some(_) => "return address or frame pointer elsewhere".to_owned(),
                None => format!("frame of {offset} bytes"),
            }
        }
        CfaRule::RegisterAndOffset { .. } => "frame's end by another register".to_owned(),
        CfaRule::Expression(_) => "frame's end by an expression".to_owned(),
    })
}

fn address_of(object: &object::File<'_>, offset: u64) -> Option<u64> {
    let has = |(start, size): (u64, u64)| offset.wrapping_sub(start) < size;
    let segment = object
        .segments()
        .find(|segment| has(segment.file_range()))?;
    Some(segment.address() + offset - segment.file_range().0)
}

/// The symbol of an address, or its section.
fn symbol(directory: &Path, path: &str, offset: u64) -> Option<String> {
    let data = fs::read(directory.join("files").join(path.trim_start_matches('/'))).ok()?;
    let object = object::File::parse(&*data).ok()?;
    let address = address_of(&object, offset)?;
    let symbols = object.symbols().chain(object.dynamic_symbols());
    let mut within = symbols.filter(|symbol| {
        address.wrapping_sub(symbol.address()) < symbol.size().max(1) && symbol.is_definition()
    });
    let name = within
        .next()
        .and_then(|symbol| Some(symbol.name().ok()?.to_owned()));
    let mut sections = object.sections();
    let section = sections.find(|part| address.wrapping_sub(part.address()) < part.size());
    let entry = address.wrapping_sub(object.entry()) < 64;
    let section = section.and_then(|section| Some(section.name().ok()?.to_owned()));
    Some(match entry {
        true => "first instructions".to_owned(),
        false => name.or(section)?,
    })
}

/// How often something is there.
#[derive(Default)]
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn add(&mut self, what: String, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    fn show(&self, title: &str, all: u64) {
        println!("\n{title}, of {all}:");
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (what, count) in sorted.into_iter().take(SHOWN) {
            println!(
                "{count:9} {:7.3} %  {what}",
                100. * *count as f64 / all as f64
            );
        }
    }
}

/// A stack: how often it was recorded, its end, and the files and offsets of its frames.
struct Stack {
    count: u64,
    end: String,
    frames: Vec<(String, u64)>,
}

fn read(text: &str) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for line in text.lines() {
        if let Some(block) = line.strip_prefix("user_stack_id ") {
            let (_, rest) = block.split_once("[ref ").expect("references");
            let mut parts = rest.trim_end_matches(']').splitn(3, ", ");
            let count = parts.next().and_then(|count| count.parse().ok());
            let end = parts.nth(1).expect("an end").to_owned();
            let count = count.expect("a number");
            let frames = Vec::new();
            stacks.push(Stack { count, end, frames });
        } else if let Some((_, frame)) = line.split_once("] ") {
            let place = frame.rsplit_once("+0x");
            let place = place.and_then(|(path, offset)| {
                Some((path.to_owned(), u64::from_str_radix(offset, 16).ok()?))
            });
            let stack = stacks.last_mut().expect("a stack");
            stack
                .frames
                .push(place.unwrap_or(("no file".to_owned(), 0)));
        }
    }
    stacks
}

fn main() {
    let directory = env::args().nth(1).expect("limits DIR");
    for run in ["cold", "warm"] {
        println!("\n{run}");
        show(Path::new(&directory), run);
    }
}

/// Shows what was recorded in one run.
fn show(directory: &Path, run: &str) {
    let text = fs::read_to_string(directory.join(format!("{run}.stacks")));
    let stacks = read(&text.expect("stacks"));
    let mut files = Files {
        directory,
        files: BTreeMap::new(),
        found: BTreeMap::new(),
    };
    let (mut ends, mut frames, mut cuts, mut places) =
        <(Counts, Counts, Counts, Counts)>::default();
    let (mut nr_stacks, mut nr_frames) = (0, 0);
    for stack in &stacks {
        nr_stacks += stack.count;
        ends.add(stack.end.clone(), stack.count);
        // The instruction that a frame is at is before a return address.
        let mut interrupted = true;
        let mut last = None;
        for (path, offset) in &stack.frames {
            let at = offset - u64::from(!interrupted && *offset > 0);
            let found = match path.as_str() {
                "[vdso]" => Ok(Rule::UNKNOWN),
                path => files.find(path, at),
            };
            interrupted = matches!(&found, Ok(rule) if matches!(rule.kind(), RuleKind::Signal));
            nr_frames += stack.count;
            if let Err(cause) = &found {
                frames.add(cause.clone(), stack.count);
            }
            last = Some((path, at, found));
        }
        if let (true, Some((path, at, found))) = (stack.end.starts_with("cut"), last) {
            let cause = found.err().unwrap_or("it has a rule".to_owned());
            let name = symbol(directory, path, at).unwrap_or_default();
            let first = match name.as_str() {
                ".init" | "_init" => ": _init",
                "first instructions" => ": first instructions",
                _ => "",
            };
            cuts.add(format!("{}: {cause}{first}", stack.end), stack.count);
            places.add(format!("{path}+{at:#x} {name}: {cause}"), stack.count);
        }
    }
    ends.show("How stacks end", nr_stacks);
    frames.show("Frames that have no rule", nr_frames);
    cuts.show("Why stacks are cut", nr_stacks);
    places.show("Where stacks are cut", nr_stacks);
}
