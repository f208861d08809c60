//! Draws a grid: for each workload a line, for each policy a dot, and the bound as a bar.

use std::fmt::Write as _;

use crate::contender::Contender;
use crate::report::Row;

const LEFT: f64 = 110.0;
const WIDTH: f64 = 700.0;
const LINE: f64 = 26.0;
const TOP: f64 = 60.0;
/// The least allocation shown, in per cent.
const LEAST: f64 = 78.0;
const COLOURS: [&str; 11] = [
    "#9e9e9e", "#c49c94", "#c5b0d5", "#98df8a", "#ffbb78", "#1f77b4", "#d62728", "#ff9896",
    "#2ca02c", "#bcbddc", "#9467bd",
];

fn x(percent: f64) -> f64 {
    LEFT + (percent.clamp(LEAST, 100.0) - LEAST) / (100.0 - LEAST) * WIDTH
}

/// The drawing, as SVG.
#[must_use]
pub fn svg(rows: &[Row]) -> String {
    let mut y = TOP;
    let mut text = String::new();
    let policies: Vec<Contender> = rows
        .first()
        .map(|row| row.results.iter().map(|r| r.0).collect())
        .unwrap_or_default();
    let mut body = String::new();
    let mut at = LEFT;
    for (policy, colour) in policies.iter().zip(COLOURS) {
        let _ = writeln!(
            body,
            "<circle cx=\"{at}\" cy=\"20\" r=\"5\" fill=\"{colour}\"/><text x=\"{}\" y=\"24\">{}</text>",
            at + 9.0,
            policy.name()
        );
        at += 72.0;
    }
    let mut mark = LEAST;
    while mark <= 100.0 {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{mark}</text>",
            x(mark),
            TOP - 14.0
        );
        mark += 2.0;
    }
    for row in rows {
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#ddd\"/>",
            LEFT - 8.0,
            y + 4.0,
            row.known.workload,
            LEFT + WIDTH
        );
        let bound = x(row.bound());
        let _ = writeln!(
            body,
            "<line x1=\"{bound:.1}\" x2=\"{bound:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"black\" stroke-width=\"2\"/>",
            y - 9.0,
            y + 9.0
        );
        for ((_, end, _), colour) in row.results.iter().zip(COLOURS) {
            let _ = writeln!(
                body,
                "<circle cx=\"{:.1}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\" fill-opacity=\"0.85\"/>",
                x(end.mean)
            );
        }
        y += LINE;
    }
    let (width, height) = (LEFT + WIDTH + 90.0, y + 30.0);
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}\
         <text x=\"{LEFT}\" y=\"{:.0}\" fill=\"#666\">GPU allocation in per cent; black bar: bound without moves</text>\n</svg>",
        y + 10.0
    );
    text
}
