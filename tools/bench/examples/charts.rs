// SPDX-License-Identifier: GPL-2.0

//! Draws the charts that its standard input describes, in JSON, as SVG files.

use plotters::{coord::Shift, prelude::*};
use serde::Deserialize;
use std::{error::Error, io, path::PathBuf};

/// A figure of several series over the same places of the x axis.
#[derive(Deserialize)]
struct Chart {
    file: PathBuf,
    title: String,
    y: String,
    kind: Kind,
    places: Vec<String>,
    series: Vec<Series>,
    /// A value that is to be reached, or not to be exceeded.
    aim: Option<f64>,
}

#[derive(Clone, Copy, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Bars side by side.
    Bars,
    /// Bars on top of each other.
    Stacked,
    /// Lines.
    Lines,
}

#[derive(Deserialize)]
struct Series {
    name: String,
    /// One for each position on the x axis, or none.
    values: Vec<Option<f64>>,
}

/// Distinguishable with colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
];

const SIZE: (u32, u32) = (860, 440);
/// The height of the legend, below the axes.
const LEGEND: u32 = 32;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Chart {
    /// The largest value on the y axis.
    fn top(&self) -> f64 {
        let height = |place: usize| {
            let values = self.series.iter().filter_map(|series| series.values[place]);
            match self.kind {
                Kind::Stacked => values.sum(),
                _ => values.fold(0.0, f64::max),
            }
        };
        let top = (0..self.places.len()).map(height).fold(0.0, f64::max);
        top.max(self.aim.unwrap_or(0.0)) * 1.08
    }

    /// The rectangles of one series: left, right, bottom, top.
    fn bars(&self, index: usize) -> Vec<[f64; 4]> {
        const WIDTH: f64 = 0.8;
        let one = WIDTH / self.series.len() as f64;
        let values = self.series[index].values.iter().enumerate();
        values
            .filter_map(|(place, value)| {
                let (height, left) = ((*value)?, place as f64 - WIDTH / 2.0);
                Some(if self.kind == Kind::Stacked {
                    let below = self.series[..index].iter();
                    let below: f64 = below.filter_map(|series| series.values[place]).sum();
                    [left, left + WIDTH, below, below + height]
                } else {
                    let left = left + one * index as f64;
                    [left, left + one, 0.0, height]
                })
            })
            .collect()
    }

    fn points(&self, index: usize) -> Vec<(f64, f64)> {
        let values = self.series[index].values.iter().enumerate();
        values
            .filter_map(|(place, value)| Some((place as f64, (*value)?)))
            .collect()
    }

    /// The names of the series, side by side.
    fn draw_legend(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        let font = (FONT, 14).into_font();
        let mut x = 90;
        for (series, colour) in self.series.iter().zip(COLOURS) {
            area.draw(&Rectangle::new([(x, 8), (x + 12, 18)], colour.filled()))?;
            area.draw(&Text::new(series.name.as_str(), (x + 18, 7), font.clone()))?;
            x += 42 + series.name.len() as i32 * 7;
        }
        if let Some(aim) = self.aim {
            let text = format!("- - aim: {}", number(aim));
            area.draw(&Text::new(text, (x, 7), font))?;
        }
        Ok(())
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        area.fill(&WHITE)?;
        let (area, below) = area.split_vertically(SIZE.1 - LEGEND);
        self.draw_legend(&below)?;
        let last = self.places.len() as f64 - 1.0;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(76)
            .build_cartesian_2d(-0.5..last + 0.5, 0.0..self.top())?;
        let place = |x: &f64| {
            let near = x.round();
            let named = (x - near).abs() < 1e-6 && near >= 0.0;
            named
                .then(|| self.places.get(near as usize).cloned())
                .flatten()
                .unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_labels(self.places.len())
            .x_label_formatter(&place)
            .y_label_formatter(&|y| number(*y))
            .y_desc(&self.y)
            .label_style((FONT, 14))
            .draw()?;
        for (index, colour) in COLOURS.into_iter().take(self.series.len()).enumerate() {
            if self.kind == Kind::Lines {
                chart.draw_series(
                    self.points(index)
                        .into_iter()
                        .map(|at| Circle::new(at, 4, colour.filled())),
                )?;
                chart.draw_series(LineSeries::new(self.points(index), colour.stroke_width(2)))?
            } else {
                chart.draw_series(
                    self.bars(index)
                        .into_iter()
                        .map(|[left, right, low, high]| {
                            Rectangle::new([(left, low), (right, high)], colour.filled())
                        }),
                )?
            };
        }
        if let Some(aim) = self.aim {
            let line = [(-0.5, aim), (last + 0.5, aim)];
            let style = BLACK.mix(0.7).into();
            chart.draw_series(DashedLineSeries::new(line, 6, 4, style))?;
        }
        Ok(())
    }
}

/// A number as people read it: 12,345 or 1.25.
fn number(value: f64) -> String {
    if value.abs() < 20.0 && value.fract() != 0.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn main() -> Result<(), Box<dyn Error>> {
    let charts: Vec<Chart> = serde_json::from_reader(io::stdin())?;
    for chart in &charts {
        let area = SVGBackend::new(&chart.file, SIZE).into_drawing_area();
        chart.draw(&area)?;
        area.present()?;
    }
    Ok(())
}
