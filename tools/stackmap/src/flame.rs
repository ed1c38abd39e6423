// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flame graphs, drawn by inferno.

use crate::error::{Error, Result};
use inferno::{
    differential,
    flamegraph::{
        self,
        color::{BackgroundColor, Color, PaletteMap},
        Direction, Options, TextTruncateDirection,
    },
};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::{Cursor, Write},
};

/// What the colours mean, for the subtitle.
pub const LEGEND: &str = "orange: the kernel, green: modules, blue: what is counted together";

/// What a flame graph says about itself, and how it stands.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The first line.
    pub title: String,
    /// The second line, if there is one.
    pub subtitle: Option<String>,
    /// Whether the innermost frames are at the bottom, icicles rather than flames.
    pub inverted: bool,
}

impl Look {
    fn options(&self) -> Options<'static> {
        let mut options = Options::default();
        options.title = self.title.clone();
        options.subtitle = self.subtitle.clone();
        options.count_name = "events".to_owned();
        options.name_type = "Frame:".to_owned();
        options.bgcolors = Some(BackgroundColor::Flat(Color::new(255, 255, 255)));
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.font_type = "sans-serif".to_owned();
        if self.inverted {
            options.direction = Direction::Inverted;
        }
        options
    }
}

/// Draws folded lines as a flame graph. `grouped`: their first frames are no functions.
pub fn draw(lines: &[String], grouped: bool, look: &Look, out: &mut impl Write) -> Result {
    require_some(lines)?;
    let mut colors = colors(lines, grouped);
    let mut options = look.options();
    options.palette_map = Some(&mut colors);
    let lines = lines.iter().map(|line| &line[..]);
    flamegraph::from_lines(&mut options, lines, out).map_err(Error::from)
}

/// Draws what became more (red) and less (blue) from `before` to `after`: the widths are those
/// of `after`, as if both had the same number of events.
pub fn draw_difference(
    before: &[String],
    after: &[String],
    look: &Look,
    out: &mut impl Write,
) -> Result {
    require_some(after)?;
    let mut lines = Vec::new();
    let differential_options = differential::Options {
        normalize: true,
        strip_hex: false,
    };
    let [before, after] = [before, after].map(|lines| Cursor::new(lines.join("\n")));
    differential::from_readers(differential_options, before, after, &mut lines)?;
    let mut options = look.options();
    // What has not changed is nearly white.
    options.bgcolors = Some(BackgroundColor::Flat(Color::new(225, 225, 225)));
    flamegraph::from_reader(&mut options, &lines[..], out).map_err(Error::from)
}

/// A colour for each frame: its hue says what it is, and its shade sets it off from others.
fn colors(lines: &[String], grouped: bool) -> PaletteMap {
    let mut colors = PaletteMap::default();
    // The frame below all others, which is shown as "all".
    colors.insert("", Color::new(215, 215, 215));
    for line in lines {
        let frames = line
            .rsplit_once(' ')
            .map_or(&line[..], |(frames, _)| frames);
        for (depth, frame) in frames.split(';').enumerate() {
            let base = match frame {
                _ if grouped && depth == 0 => (135, 170, 215),
                _ if frame.ends_with(']') && frame.contains(" [") => (130, 190, 110),
                _ => (240, 160, 85),
            };
            colors.insert(frame, shade(base, frame));
        }
    }
    colors
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

fn require_some(lines: &[String]) -> Result {
    match lines.is_empty() {
        true => Err(Error::Refused(
            "there are no stacks to draw a flame graph of".to_owned(),
        )),
        false => Ok(()),
    }
}
