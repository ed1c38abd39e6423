// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flame graphs, drawn by inferno.
//!
//! inferno keeps every frame of every stack in memory and then leaves out frames that are too
//! narrow to see. Here these frames are left out first: millions of frames become some thousands.

use crate::{
    address::without_addresses,
    error::{Error, Result},
    folded::{self, frame_text, push_frames, Folded, Frames, Kind, Names},
    output::{safe, Progress},
};
use inferno::flamegraph::{
    self,
    color::{BackgroundColor, Color, PaletteMap},
    defaults::MIN_WIDTH,
    Direction, Options, TextTruncateDirection,
};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
};

/// The meaning of the colours, for the subtitle.
pub const LEGEND: &str = "orange: the kernel, green: modules, blue: groups (--by)";
/// The same beside user stacks.
pub const LEGEND_USER: &str =
    "orange: the kernel, green: modules, yellow: user space, blue: groups (--by)";

/// What stands for an address that is not shown.
pub const UNKNOWN: &str = "[unknown]";

/// Title and form of a flame graph.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The first line.
    pub title: String,
    /// The second line, if there is one.
    pub subtitle: Option<String>,
    /// Whether it is drawn from the top down, as an icicle graph.
    pub inverted: bool,
    /// Whether frames without a name are shown as their addresses.
    pub addresses: bool,
    /// What is counted; empty: events.
    pub unit: String,
}

impl Look {
    fn options(&self) -> Options<'static> {
        let mut options = Options::default();
        options.title = safe(&self.title).into_owned();
        options.subtitle = self.subtitle.as_deref().map(|text| safe(text).into_owned());
        options.count_name = match &self.unit[..] {
            "" => "events".to_owned(),
            unit => safe(unit).into_owned(),
        };
        options.name_type = "Frame:".to_owned();
        options.bgcolors = Some(BackgroundColor::Flat(Color::new(255, 255, 255)));
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.font_type = "sans-serif".to_owned();
        if self.inverted {
            options.direction = Direction::Inverted;
        }
        options
    }

    /// The text of a frame.
    fn frame(&self, name: &str, kind: Kind) -> String {
        let text = frame_text(name);
        match kind {
            _ if self.addresses => text.into_owned(),
            Kind::Address => UNKNOWN.to_owned(),
            _ => without_addresses(&text).into_owned(),
        }
    }
}

/// Draws stacks, which are in order, as a flame graph.
pub fn draw(folded: &Folded, names: &Names, look: &Look, out: &mut impl Write) -> Result {
    require_some(folded)?;
    let mut colors = PaletteMap::default();
    // The frame below all others, which is shown as "all".
    colors.insert("", Color::new(215, 215, 215));
    // inferno chooses colours by name, and frames of several kinds may have the same name. So the
    // kind is appended to the name, in a form that inferno does not show.
    let texts = names.map(|name, kind| match letter(kind) {
        Some(letter) => format!("{}_[{letter}]", look.frame(name, kind)),
        None => look.frame(name, kind),
    });
    for (number, text) in texts.iter().enumerate() {
        let (_, kind) = names.get(number as u32);
        colors.insert(text, color(kind, text));
    }
    let stacks = folded.iter().zip(depths(folded));
    let stacks = stacks.map(|((frames, count), depth)| (frames.outermost(depth as usize), count));
    let mut lines: Vec<String> = Vec::new();
    // Stacks whose visible frames are the same become one line.
    let mut same: Option<folded::Stack<'_>> = None;
    for (frames, count) in stacks {
        match &mut same {
            Some((before, total)) if *before == frames => *total = total.saturating_add(count),
            _ => lines.extend(
                same.replace((frames, count))
                    .map(|stack| line(stack, &texts)),
            ),
        }
    }
    lines.extend(same.map(|stack| line(stack, &texts)));
    let mut options = look.options();
    options.palette_map = Some(&mut colors);
    flamegraph::from_lines(&mut options, shown(&lines), out).map_err(Error::from)
}

fn line((frames, count): folded::Stack<'_>, texts: &[String]) -> String {
    let mut line = String::new();
    push_frames(frames, texts, &mut line);
    format!("{line} {count}")
}

/// The lines, with a report of progress.
fn shown(lines: &[String]) -> impl Iterator<Item = &str> {
    let mut progress = Progress::new("drawing", Some(lines.len() as u64));
    lines.iter().enumerate().map(move |(done, line)| {
        progress.set(done as u64);
        &line[..]
    })
}

/// How many frames of each stack, from the outermost, are wide enough to be seen. At least 1,
/// because inferno does not count a stack without frames.
fn depths(folded: &Folded) -> Vec<u32> {
    let stacks: Vec<_> = folded.iter().collect();
    let least = folded.total() as f64 * MIN_WIDTH / 100.0;
    let outermost = stacks.iter().map(|(frames, _)| frames.len().min(1) as u32);
    let mut depths: Vec<u32> = outermost.collect();
    // Ranges of stacks with the same outermost frames: from, to, and the number of these frames.
    let mut work = vec![(0, stacks.len(), 0)];
    while let Some((mut from, to, depth)) = work.pop() {
        while from < to {
            let Some(frame) = stacks[from].0.get(depth) else {
                from += 1;
                continue;
            };
            let same = stacks[from..to]
                .iter()
                .take_while(|(frames, _)| frames.get(depth) == Some(frame));
            let counts = same.map(|(_, count)| *count);
            let (mut len, mut total) = (0, 0u64);
            for count in counts {
                len += 1;
                total = total.saturating_add(count);
            }
            if total as f64 >= least {
                depths[from..from + len].fill(depth as u32 + 1);
                work.push((from, from + len, depth + 1));
            }
            from += len;
        }
    }
    depths
}

/// How the counts of the earlier recording are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// So that both recordings have the same total.
    Shares,
    /// By this factor.
    Before(f64),
}

/// Draws what became more (red) and less (blue) from `before` to `after`, which are in order: the
/// widths are those of `after`.
pub fn draw_difference(
    before: &Folded,
    after: &Folded,
    names: &Names,
    scale: Scale,
    look: &Look,
    out: &mut impl Write,
) -> Result {
    require_some(after)?;
    let scale = match (scale, before.total()) {
        (Scale::Before(scale), _) => scale,
        (Scale::Shares, 0) => 0.0,
        (Scale::Shares, total) => after.total() as f64 / total as f64,
    };
    let earlier: HashMap<Frames<'_>, u64> = before.iter().collect();
    let depths = depths(after);
    // For each visible stack: its events after, and the growth of the stacks that end there.
    let mut seen: HashMap<Frames<'_>, (u64, i64)> = HashMap::new();
    for ((frames, count), depth) in after.iter().zip(depths) {
        let (total, grown) = seen.entry(frames.outermost(depth as usize)).or_default();
        *total = total.saturating_add(count);
        if depth as usize == frames.len() {
            let then = earlier.get(&frames).copied().unwrap_or(0) as f64 * scale;
            *grown = grown
                .saturating_add(count as i64)
                .saturating_sub(then as i64);
        }
    }
    let texts = names.map(|name, kind| look.frame(name, kind));
    let line = |(frames, (total, grown)): (Frames<'_>, (u64, i64))| {
        let mut line = String::new();
        push_frames(frames, &texts, &mut line);
        let before = i128::from(total) - i128::from(grown);
        format!("{line} {before} {total}")
    };
    let lines: Vec<_> = seen.into_iter().map(line).collect();
    let mut options = look.options();
    // What has not changed is nearly white.
    options.bgcolors = Some(BackgroundColor::Flat(Color::new(225, 225, 225)));
    flamegraph::from_lines(&mut options, shown(&lines), out).map_err(Error::from)
}

/// The letter of a kind, in inferno's form of annotations (`_[k]`), which has four.
fn letter(kind: Kind) -> Option<char> {
    match kind {
        Kind::Kernel => Some('k'),
        Kind::Module => Some('j'),
        Kind::Group => Some('i'),
        Kind::Address | Kind::Missing => Some('w'),
        Kind::User | Kind::UserAddress => None,
    }
}

/// A frame's colour: its hue says what it is, and its shade sets it off from others.
fn color(kind: Kind, text: &str) -> Color {
    let base = match kind {
        Kind::Kernel => (240, 160, 85),
        Kind::Module => (130, 190, 110),
        Kind::Group => (135, 170, 215),
        Kind::User => (235, 215, 105),
        Kind::UserAddress => (225, 215, 165),
        Kind::Address | Kind::Missing => (190, 190, 190),
    };
    shade(base, text)
}

fn shade((red, green, blue): (u8, u8, u8), frame: &str) -> Color {
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    let hash = hasher.finish();
    // From 15 below to 15 above, and a little more of green for some.
    let by = (hash % 31) as i16 - 15;
    let tint = (hash >> 8) % 25;
    let add = |part: u8, by: i16| (i16::from(part) + by).clamp(0, 255) as u8;
    Color::new(add(red, by), add(green, by + tint as i16), add(blue, by))
}

fn require_some(folded: &Folded) -> Result {
    let what = match (folded.is_empty(), folded.total()) {
        (true, _) => "there are no stacks to draw a flame graph of",
        (_, 0) => "all stacks count 0: there is nothing to draw a flame graph of",
        _ => return Ok(()),
    };
    Err(Error::Refused(what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks of names, each of a kind.
    fn folded(stacks: &[(&[(&str, Kind)], u64)], names: &mut Names) -> Folded {
        let mut folded = Folded::default();
        for (frames, count) in stacks {
            let frames = frames.iter().map(|(name, kind)| names.number(name, *kind));
            folded.push(frames.collect::<Vec<_>>(), *count);
        }
        folded.sort(names);
        folded
    }

    fn drawn(folded: &Folded, names: &Names, look: &Look) -> String {
        let mut svg = Vec::new();
        draw(folded, names, look, &mut svg).unwrap();
        String::from_utf8(svg).unwrap()
    }

    /// The colours of the frames with a title.
    fn fills(svg: &str, name: &str) -> Vec<String> {
        let frames = svg.split("<title>").skip(1);
        let frames = frames.filter(|frame| frame.starts_with(&format!("{name} (")));
        let fill = |frame: &str| {
            frame
                .split("fill=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        };
        frames.map(fill).collect()
    }

    #[test]
    fn a_frame_shows_no_address() {
        let mut look = Look::default();
        let name = "kfree <ffffffff81000000>";
        assert_eq!(look.frame(name, Kind::Kernel), "kfree <(address)>");
        assert_eq!(look.frame("0x1234", Kind::Address), UNKNOWN);
        look.addresses = true;
        assert_eq!(look.frame(name, Kind::Kernel), name);
    }

    #[test]
    fn colours_depend_on_the_kind_of_frame() {
        let mut names = Names::default();
        // A task, a function of the kernel and one of a module, all of them with the same name.
        let name = "a [b]";
        let frames = [
            (name, Kind::Group),
            (name, Kind::Kernel),
            (name, Kind::Module),
        ];
        let folded = folded(&[(&frames, 1)], &mut names);
        let svg = drawn(&folded, &names, &Look::default());
        let fills = fills(&svg, "a [b]");
        let want = [Kind::Group, Kind::Kernel, Kind::Module].map(|kind| {
            let color = color(kind, &format!("{name}_[{}]", letter(kind).unwrap()));
            format!("rgb({},{},{})", color.r, color.g, color.b)
        });
        assert_eq!(fills, want);
        assert!(!svg.contains("_[k]"));
    }

    #[test]
    fn only_frames_too_narrow_to_see_are_omitted() {
        let mut names = Names::default();
        let mut stacks = vec![("main,rare,rarer".to_owned(), 1)];
        stacks.extend((0..100).map(|index| (format!("main,often{index}"), 200)));
        stacks.push(("main".to_owned(), 5));
        let stacks: Vec<_> = stacks.iter().map(|(stack, nr)| (&stack[..], *nr)).collect();
        let folded = crate::folded::tests::folded(&stacks, &mut names);
        let svg = drawn(&folded, &names, &Look::default());
        assert!(svg.contains("main (20,006 events, 100.00%)"), "{svg}");
        assert!(svg.contains("often99 (200 events, 1.00%)"));
        assert!(!svg.contains("rare"));
    }

    #[test]
    fn narrow_frames_are_drawn_together() {
        let mut names = Names::default();
        let mut folded = Folded::default();
        let outer = names.number("outer", Kind::Kernel);
        for index in 0..20_000 {
            let number = names.number(&format!("f{index}"), Kind::Kernel);
            folded.push([number, number], 1);
            folded.push([outer, number], 1);
        }
        folded.sort(&names);
        let svg = drawn(&folded, &names, &Look::default());
        assert!(svg.contains("all (40,000 events, 100%)"), "{svg}");
        assert!(svg.contains("outer (20,000 events, "), "{svg}");
    }

    #[test]
    fn a_difference_counts_the_stacks_that_end_in_a_frame() {
        let mut names = Names::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| (name, Kind::Kernel));
        let before = folded(&[(&[a, b], 30), (&[a], 10)], &mut names);
        let after = folded(&[(&[a, b], 10), (&[a], 10), (&[a, c], 20)], &mut names);
        let mut svg = Vec::new();
        let (scale, look) = (Scale::Shares, Look::default());
        draw_difference(&before, &after, &names, scale, &look, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for frame in [
            "a (40 events, 100.00%; 0.00%)",
            "b (10 events, 25.00%; -50.00%)",
            "c (20 events, 50.00%; +50.00%)",
        ] {
            assert!(svg.contains(frame), "{frame}: {svg}");
        }
    }

    #[test]
    fn a_difference_is_of_what_is_compared() {
        let mut names = Names::default();
        let [a, b] = ["a", "b"].map(|name| (name, Kind::Kernel));
        let before = folded(&[(&[a], 30), (&[b], 10)], &mut names);
        let after = folded(&[(&[a], 60), (&[b], 60)], &mut names);
        // 75 % and 25 % of 120 events; twice as many in a second, or the same number.
        for (scale, wanted) in [
            (Scale::Shares, ["-25.00%", "+25.00%"]),
            (Scale::Before(2.0), ["0.00%", "+33.33%"]),
            (Scale::Before(1.0), ["+25.00%", "+41.67%"]),
        ] {
            let mut svg = Vec::new();
            let look = Look::default();
            draw_difference(&before, &after, &names, scale, &look, &mut svg).unwrap();
            let svg = String::from_utf8(svg).unwrap();
            for (name, grown) in ["a", "b"].iter().zip(wanted) {
                let frame = format!("{name} (60 events, 50.00%; {grown})");
                assert!(svg.contains(&frame), "{frame}: {svg}");
            }
        }
    }

    #[test]
    fn what_is_too_narrow_to_see_does_not_colour_what_is_below() {
        let mut names = Names::default();
        let main = names.number("main", Kind::Kernel);
        let mut after = Folded::default();
        after.push([main], 10);
        for index in 0..20_000 {
            let number = names.number(&format!("f{index}"), Kind::Kernel);
            after.push([main, number], 1);
        }
        after.sort(&names);
        let mut before = Folded::default();
        before.push([main], 10);
        let mut svg = Vec::new();
        let (scale, look) = (Scale::Before(1.0), Look::default());
        draw_difference(&before, &after, &names, scale, &look, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let frame = "main (20,010 events, 100.00%; 0.00%)";
        assert!(svg.contains(frame), "{frame}: {svg}");
    }
}
