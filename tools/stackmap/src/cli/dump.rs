// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap dump`: the stacks of a map.

use super::args::{Global, SymbolArgs};
use crate::{
    error::{Error, Result},
    export::json::UserStack,
    filter::{number, Selection},
    notes::{count_of, Notes},
    output::{self, JsonText, Out, DIM, NUMBER, TITLE},
    source::{Loaded, Source},
    stable::{Identity, Prefix, StableId, StableIds},
    stack_map_bin::Stack,
    stacks::Stacks,
    symbols::{texts::Texts, At, Frame, Place, Symbol},
    tally::Key,
    user::User,
};
use clap::{builder::styling::Style, Args, ValueEnum};
use regex::Regex;
use serde::{Serialize, Serializer};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashSet},
    io::Write,
    path::PathBuf,
};

const EXAMPLES: &str = "\
examples:
  stackmap dump                          the stacks of the running kernel
  stackmap dump --top 10 stackmap.data   the ten stacks of a capture with the most references
  stackmap dump --json stack_map_bin     a copy of stack_map_bin, for another program
  stackmap dump --stack '^vfs_'          the stacks of the running kernel with such a function
  stackmap dump --stable --stack 5d1c6a90 stackmap.data
                                         the stack with this stable id, as other machines call it
  stackmap dump --user stackmap.data     the user stacks of a capture
  ssh host cat /sys/kernel/tracing/stack_map_bin | stackmap dump --vmlinux vmlinux -";

/// Print the stacks of a map
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Dump {
    /// Capture or copy of stack_map_bin, - for standard input [default: the running kernel's]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only the first N stacks, in the order of --sort or by references; 0 prints all
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 0, hide_default_value = true)]
    top: usize,
    /// Print only stacks with a frame that matches REGEX, by the name of its function or by the
    /// line that report shows of it, or the stack with a stable id that begins with these 8 digits or
    /// more; can be repeated
    #[arg(long, value_name = "REGEX|ID", value_parser = Regex::new)]
    stack: Vec<Regex>,
    /// Print the stable id of each stack, which is the same on every machine; JSON always has it
    #[arg(long)]
    stable: bool,
    /// Order of the stacks [default: that of the file]
    #[arg(long, value_name = "KEY")]
    sort: Option<Sort>,
    #[command(flatten)]
    symbols: SymbolArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    /// Most references first
    Ref,
    /// Deepest first
    Depth,
    /// Lowest id first
    Id,
}

impl Dump {
    pub(super) fn run(&self, global: &Global) -> Result {
        let mut source = Source::open(self.file.as_deref(), global.tracefs())?;
        let mut loaded = self.symbols.load(&mut source)?;
        let (by_id, by_frame) = self.selected(&loaded)?;
        let is_any = self.stack.is_empty() || !by_frame.is_empty();
        loaded.filter.stacks = by_frame;
        let (all, key) = loaded.map();
        let user = key(1) == Key::of_user_id(1);
        let mut ids = StableIds::new(&loaded);
        let mut selection = Selection::new(&loaded);
        let order = self.order(all, |id| {
            by_id.contains(&id) || is_any && selection.keeps_stack(key(id))
        });
        if order.is_empty() && !all.is_empty() {
            let stacks = count_of(all.len() as u64, "stack");
            let why = format!("none of {stacks} matches --stack");
            return Err(Error::input(source.name(), why));
        }
        let stacks = order.iter().map(|index| all.at(*index as usize));

        let mut out = Out::paged(global.pager() && !self.json);
        let mut notes = Notes::default();
        if user {
            self.write_user(&mut out, &loaded.user, stacks, &mut ids)?;
        } else if self.json {
            write_json(&mut out, &loaded, stacks, &mut ids)?;
        } else {
            let mut writer = TextWriter::new(&out);
            for stack in stacks {
                let identity = self.stable.then(|| ids.kernel(stack.id)).flatten();
                writer.write(&mut out, &loaded, &stack, identity)?;
            }
            notes = writer.notes;
        }
        out.finish()?;
        output::say_notes(&notes.lines(Some(&loaded)));
        output::say(format_args!("Total: {} unique stacks", order.len()));
        Ok(())
    }

    /// What `--stack` asks for: stacks of the map by their stable ids, and frames.
    fn selected(&self, loaded: &Loaded) -> Result<(HashSet<u32>, Vec<Regex>)> {
        let (all, key) = loaded.map();
        let mut ids = StableIds::new(loaded);
        let (mut by_id, mut by_frame) = (HashSet::new(), Vec::new());
        for asked in &self.stack {
            let Some(prefix) = Prefix::new(asked.as_str()) else {
                by_frame.push(asked.clone());
                continue;
            };
            let identity = |id| ids.of(key(id)).map(|identity| (identity.stable_id, id));
            let all = all.iter().map(|stack| stack.id).filter_map(identity);
            let found: Vec<_> = all.filter(|(stable, _)| prefix.fits(*stable)).collect();
            let stable: BTreeSet<_> = found.iter().map(|(stable, _)| *stable).collect();
            if stable.len() > 1 {
                let ids: Vec<_> = stable.iter().take(2).map(StableId::to_string).collect();
                return Err(Error::Refused(format!(
                    "--stack {asked}: {} stable ids begin so\n  hint: give more digits: {}",
                    stable.len(),
                    ids.join(", ")
                )));
            }
            by_id.extend(found.iter().map(|(_, id)| *id));
            // The name of a function may have such digits alone.
            by_frame.extend(found.is_empty().then(|| asked.clone()));
        }
        Ok((by_id, by_frame))
    }

    /// The stacks that are printed, in their order.
    fn order(&self, stacks: &Stacks, mut keeps: impl FnMut(u32) -> bool) -> Vec<u32> {
        let at = |index: &u32| stacks.at(*index as usize);
        let all = 0..stacks.len() as u32;
        let mut order: Vec<u32> = all.filter(|index| keeps(at(index).id)).collect();
        let by_references = (self.top > 0).then_some(Sort::Ref);
        match self.sort.or(by_references) {
            Some(Sort::Ref) => order.sort_by_key(|index| Reverse(at(index).ref_count)),
            Some(Sort::Depth) => order.sort_by_key(|index| Reverse(at(index).ips.len())),
            Some(Sort::Id) => order.sort_by_key(|index| at(index).id),
            None => {}
        }
        if self.top > 0 {
            order.truncate(self.top);
        }
        order
    }

    /// Writes user stacks, as `stack_map_user` has them or as JSON.
    fn write_user<'a>(
        &self,
        out: &mut Out,
        user: &User,
        stacks: impl Iterator<Item = Stack<'a>>,
        ids: &mut StableIds<'_>,
    ) -> Result {
        if self.json {
            let mut json = serde_json::Serializer::pretty(JsonText(&mut *out));
            let stacks = stacks.map(|stack| UserStack::new(&stack, user, ids));
            json.collect_seq(stacks).map_err(std::io::Error::from)?;
            return Ok(out.write_all(b"\n")?);
        }
        for stack in stacks {
            let id = out.style(TITLE, stack.id);
            let number = out.style(NUMBER, stack.ref_count);
            let which: Vec<_> = user.stack(stack.ips).collect();
            let (depth, end) = (which.len(), user.end(stack.ips));
            let identity = self.stable.then(|| ids.user(stack.id)).flatten();
            let identity = identity_text(identity);
            writeln!(
                out,
                "user_stack_id {id} [ref {number}, depth {depth}, {end}{identity}]"
            )?;
            for (depth, which) in which.into_iter().enumerate() {
                for frame in user.frames(which) {
                    let text = match frame.source() {
                        Some(source) => format!("{frame} ({source})"),
                        None => frame.to_string(),
                    };
                    writeln!(out, "  [{depth}] {}", output::safe(&text))?;
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// What the head of a stack says of its stable id, if that is wanted.
fn identity_text(identity: Option<Identity>) -> String {
    identity.map_or_else(String::new, |identity| format!(", {identity}"))
}

/// Writes stacks as text.
struct TextWriter {
    texts: Texts,
    /// The text of one stack.
    text: Vec<u8>,
    id: Style,
    number: Style,
    notes: Notes,
}

impl TextWriter {
    fn new(out: &Out) -> Self {
        let address = out.styled(DIM);
        Self {
            texts: Texts::new(move |frame, text| write_frame(address, frame, text)),
            text: Vec::new(),
            id: out.styled(TITLE),
            number: out.styled(NUMBER),
            notes: Notes::default(),
        }
    }

    fn write(
        &mut self,
        out: &mut Out,
        loaded: &Loaded,
        stack: &Stack<'_>,
        identity: Option<Identity>,
    ) -> Result {
        let identity = identity_text(identity);
        let (id, number, text) = (self.id, self.number, &mut self.text);
        let depth = stack.ips.len();
        text.clear();
        writeln!(
            text,
            "stack_id {id}{}{id:#} [ref {number}{}{number:#}, depth {depth}{identity}]",
            stack.id, stack.ref_count
        )?;
        self.texts.fetch(stack.ips);
        for at in loaded.symbols.stack(stack.ips) {
            let frames = self.texts.of(&loaded.symbols, at.ip, at.exact);
            for frame in frames.lines() {
                text.extend_from_slice(b"  [");
                text.extend_from_slice(itoa::Buffer::new().format(at.depth).as_bytes());
                text.extend_from_slice(b"] ");
                text.extend_from_slice(frame);
                text.push(b'\n');
            }
        }
        text.push(b'\n');
        Ok(out.write_all(text)?)
    }
}

/// The address, and all that is known of it.
fn write_frame(address: Style, frame: &Frame<'_>, text: &mut Vec<u8>) {
    let ip = output::Hex(frame.ip);
    // Writing into a vector does not fail.
    let _ = write!(text, "{address}{ip}{address:#}");
    let name = match (frame.place, frame.source) {
        (Place::Unknown, _) => return,
        (_, Some(source)) => format!(" {frame} ({source})"),
        (_, None) => format!(" {frame}"),
    };
    text.extend_from_slice(output::safe(&name).as_bytes());
}

/// A stack as JSON. The first four keys are those that the script of the C series writes.
#[derive(Serialize)]
struct JsonStack<'a> {
    stack_id: u32,
    ref_count: u32,
    ips: Vec<Hex>,
    /// For each of `ips` its name, if names are known at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbols: Option<Vec<Name<'a>>>,
    /// For each of `ips` its functions, inlined ones first, if there is debug information.
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<Vec<Vec<JsonFrame<'a>>>>,
    #[serde(flatten)]
    identity: Option<Identity>,
}

#[derive(Serialize)]
struct JsonFrame<'a> {
    function: Option<&'a str>,
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
}

fn write_json<'a>(
    out: &mut Out,
    loaded: &Loaded,
    stacks: impl Iterator<Item = Stack<'a>>,
    ids: &mut StableIds<'_>,
) -> Result {
    let mut json = serde_json::Serializer::pretty(JsonText(&mut *out));
    let result = json.collect_seq(stacks.map(|stack| JsonStack {
        identity: ids.kernel(stack.id),
        ..json_stack(loaded, &stack)
    }));
    result.map_err(std::io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

fn json_stack<'a>(loaded: &'a Loaded, stack: &Stack<'_>) -> JsonStack<'a> {
    let symbols = &loaded.symbols;
    let each: Vec<At> = symbols.stack(stack.ips).collect();
    let each = || each.iter();
    // The last of them is the one that the others were inlined into.
    let name = |at: &At| symbols.frames(at.ip, at.exact).last().map(Name);
    let functions = |at: &At| symbols.frames(at.ip, at.exact).map(json_frame).collect();
    JsonStack {
        stack_id: stack.id,
        ref_count: stack.ref_count,
        ips: each().map(|at| Hex(at.ip)).collect(),
        symbols: (!symbols.is_empty()).then(|| each().filter_map(name).collect()),
        frames: symbols
            .debug_info
            .is_some()
            .then(|| each().map(functions).collect()),
        identity: None,
    }
}

/// An address as a string.
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&output::Hex(self.0))
    }
}

/// The name of a frame as a string.
struct Name<'a>(Frame<'a>);

impl Serialize for Name<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.place {
            Place::Symbol(Symbol {
                name, module: None, ..
            }) => serializer.serialize_str(name),
            _ => serializer.collect_str(&self.0.plain()),
        }
    }
}

fn json_frame(frame: Frame<'_>) -> JsonFrame<'_> {
    JsonFrame {
        function: frame.name(),
        module: frame.module(),
        file: frame.source.map(|source| &source.file[..]),
        line: frame.source.map(|source| source.line),
        inlined: frame.inlined,
    }
}
