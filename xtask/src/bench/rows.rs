//! The rows that a bench prints, as a table and as JSON.
//!
//! A bench says each figure on a line of its own: `row`, name, value, unit, target, anchor, with
//! tabs between them. Whatever else it prints is for the person who waits.

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
    pub(crate) unit: String,
    /// What it should be, such as `<= 100`; empty for a figure that only explains others.
    pub(crate) target: String,
    /// What it is measured against, or how many times.
    pub(crate) anchor: String,
}

/// The heads of [`Row::cells`].
pub(crate) const HEADS: [&str; 6] = ["figure", "value", "unit", "target", "met", "against"];

impl Row {
    /// The row of a line, or nothing when the line is none.
    ///
    /// # Errors
    /// When it begins as a row and does not go on like one.
    pub(crate) fn of_line(line: &str) -> Result<Option<Self>> {
        let Some(rest) = line.strip_prefix("row\t") else {
            return Ok(None);
        };
        let cells: Vec<&str> = rest.split('\t').collect();
        let [name, value, unit, target, anchor] = cells.as_slice() else {
            anyhow::bail!("no row of five cells: {line:?}");
        };
        let value: f64 = value
            .parse()
            .with_context(|| format!("the value of {line:?}"))?;
        Ok(Some(Self {
            name: (*name).to_owned(),
            value: round(value),
            unit: (*unit).to_owned(),
            target: (*target).to_owned(),
            anchor: (*anchor).to_owned(),
        }))
    }

    /// `yes`, `no`, or nothing where there is no target.
    fn met(&self) -> &'static str {
        let bound = |text: &str| text.trim().parse::<f64>().ok();
        let met = match self.target.split_at_checked(2) {
            Some(("<=", most)) => bound(most).map(|most| self.value <= most),
            Some((">=", least)) => bound(least).map(|least| self.value >= least),
            Some(("==", exact)) => bound(exact).map(|exact| same(self.value, exact)),
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
            format!("{}", self.value),
            self.unit.clone(),
            self.target.clone(),
            self.met().to_owned(),
            self.anchor.clone(),
        ]
    }
}

fn same(one: f64, other: f64) -> bool {
    (one - other).abs() < f64::EPSILON
}

/// Five digits say all that such measurements can.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powf(4.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

/// The table for a terminal.
pub(crate) fn table(rows: &[Row]) -> String {
    let cells: Vec<[String; 6]> = std::iter::once(HEADS.map(str::to_owned))
        .chain(rows.iter().map(Row::cells))
        .collect();
    let mut widths = [0; 6];
    for line in &cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &cells {
        let padded: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Writes `target/bench/<name>.json` below the root of the workspace.
pub(crate) fn write_json(root: &Path, name: &str, rows: &[Row]) -> Result<PathBuf> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(name).with_extension("json");
    let mut text = serde_json::to_string_pretty(rows)?;
    text.push('\n');
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_judged_and_told_from_other_lines() {
        let row = Row::of_line("row\tcreate, p50\t29.29123\tms\t<= 100\t25 creations")
            .unwrap()
            .unwrap();
        assert_eq!(
            row.cells(),
            [
                "create, p50",
                "29.291",
                "ms",
                "<= 100",
                "yes",
                "25 creations"
            ]
        );
        assert_eq!(Row::of_line("rows are coming").unwrap(), None);
        assert!(Row::of_line("row\ttoo\tfew").is_err());
        assert!(Row::of_line("row\tname\tfast\t\t\t").is_err());
        let missed = Row::of_line("row\tratio\t0.86\t\t>= 1.0\tnginx")
            .unwrap()
            .unwrap();
        assert_eq!(missed.cells()[4], "no");
    }
}
