//! Columns for people.

use crate::text;

/// Rows under a head line, each column as wide as its widest cell.
#[derive(Debug, Clone)]
pub struct Table {
    head: Vec<&'static str>,
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

/// Blanks between two columns.
const GAP: usize = 2;

impl Table {
    /// A table with these columns.
    #[must_use]
    pub fn new(head: &[&'static str]) -> Self {
        Self {
            widths: head.iter().map(|cell| text::width(cell)).collect(),
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Makes columns at least so wide.
    #[must_use]
    pub fn at_least(mut self, widths: &[usize]) -> Self {
        for (have, want) in self.widths.iter_mut().zip(widths) {
            *have = (*have).max(*want);
        }
        self
    }

    /// Adds a row. Cells are made harmless for a terminal.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        let row: Vec<String> = cells
            .into_iter()
            .map(|cell| text::one_line(cell.as_ref()).into_owned())
            .collect();
        for (width, cell) in self.widths.iter_mut().zip(&row) {
            *width = (*width).max(text::width(cell));
        }
        self.rows.push(row);
    }

    /// The table as lines, without blanks at their ends.
    #[must_use]
    pub fn render(&self) -> String {
        let head = self
            .head
            .iter()
            .map(|cell| (*cell).to_owned())
            .collect::<Vec<_>>();
        let mut all = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&self.widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(width.saturating_sub(text::width(cell)) + GAP));
            }
            all.push_str(line.trim_end());
            all.push('\n');
        }
        all
    }
}

/// `Label:  value` lines with aligned values; further values of a label follow below it.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    lines: Vec<(&'static str, Vec<String>)>,
}

impl Facts {
    /// Adds a value, unless it is empty.
    pub fn add(&mut self, label: &'static str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.lines.push((label, vec![value]));
        }
    }

    /// Adds several values, one a line, unless there are none.
    pub fn add_all(&mut self, label: &'static str, values: impl IntoIterator<Item = String>) {
        let values: Vec<String> = values.into_iter().collect();
        if !values.is_empty() {
            self.lines.push((label, values));
        }
    }

    /// The lines.
    #[must_use]
    pub fn render(&self) -> String {
        let width = self
            .lines
            .iter()
            .map(|(label, _)| text::width(label) + 1)
            .max()
            .unwrap_or(0)
            + GAP;
        let mut all = String::new();
        for (label, values) in &self.lines {
            for (index, value) in values.iter().enumerate() {
                let shown = if index == 0 {
                    format!("{label}:")
                } else {
                    String::new()
                };
                let blanks = width.saturating_sub(text::width(&shown));
                all.push_str(&shown);
                all.push_str(&" ".repeat(blanks));
                all.push_str(&text::one_line(value));
                all.push('\n');
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_width_and_rows_keep_to_a_line() {
        let mut table = Table::new(&["NAME", "STATE"]).at_least(&[6]);
        table.row(["日本", "✓ now"]);
        table.row(["a\nb\u{1b}", ""]);
        assert_eq!(
            table.render(),
            "NAME           STATE\n日本           ✓ now\na\\u{a}b\\u{1b}\n"
        );
    }

    #[test]
    fn facts_align_and_leave_out_what_is_empty() {
        let mut facts = Facts::default();
        facts.add("Name", "a");
        facts.add("Url", "");
        facts.add_all("Enforced", ["one".to_owned(), "two".to_owned()]);
        assert_eq!(
            facts.render(),
            "Name:      a\nEnforced:  one\n           two\n"
        );
    }
}
