//! What the bench says: rows on the terminal and as JSON.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) name: String,
    /// The figure.
    pub(crate) value: f64,
    /// Its unit; empty for a ratio.
    pub(crate) unit: &'static str,
    /// What it should be, such as `<= 100`; empty for a figure that only explains others.
    pub(crate) target: &'static str,
    /// What it is measured against, or how many times.
    pub(crate) anchor: String,
}

impl Row {
    /// A figure without a target.
    pub(crate) fn new(
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
        anchor: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            value: round(value),
            unit,
            target: "",
            anchor: anchor.into(),
        }
    }

    /// With a target.
    pub(crate) fn target(mut self, target: &'static str) -> Self {
        self.target = target;
        self
    }

    /// `yes`, `no`, or nothing where there is no target.
    pub(crate) fn met(&self) -> &'static str {
        let bound = |text: &str| text.trim().parse::<f64>().ok();
        let met = match self.target.split_at_checked(2) {
            Some(("<=", most)) => bound(most).map(|most| self.value <= most),
            Some((">=", least)) => bound(least).map(|least| self.value >= least),
            _ => None,
        };
        match met {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        }
    }

    /// As cells of a table.
    pub(crate) fn cells(&self) -> [String; 6] {
        [
            self.name.clone(),
            text(self.value),
            self.unit.to_owned(),
            self.target.to_owned(),
            self.met().to_owned(),
            self.anchor.clone(),
        ]
    }
}

/// The heads of [`Row::cells`].
pub(crate) const HEADS: [&str; 6] = ["figure", "value", "unit", "target", "met", "against"];

/// Four digits say all that such measurements can.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

fn text(value: f64) -> String {
    format!("{value}")
}

/// Prints the table.
pub(crate) fn show(rows: &[Row]) {
    let cells: Vec<[String; 6]> = std::iter::once(HEADS.map(str::to_owned))
        .chain(rows.iter().map(Row::cells))
        .collect();
    let mut widths = [0; 6];
    for line in &cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for line in &cells {
        let padded: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        print(padded.join("  ").trim_end());
    }
}

/// Writes `target/bench/front.json` below the root of the workspace.
pub(crate) fn write_json(root: &Path, rows: &[Row]) -> Result<PathBuf> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join("front.json");
    let mut text = serde_json::to_string_pretty(rows)?;
    text.push('\n');
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[expect(clippy::print_stdout, reason = "the table is what the bench is for")]
fn print(line: &str) {
    println!("{line}");
}

/// Says what is going on.
#[expect(clippy::print_stderr, reason = "this is a tool for a terminal")]
pub(crate) fn say(line: &str) {
    eprintln!("front: {line}");
}
