//! What the bench says: rows, as `cargo xtask bench` reads them.

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// What was measured.
    name: String,
    value: f64,
    /// Its unit; empty for a ratio.
    unit: &'static str,
    /// What it should be, such as `<= 100`; empty for a figure that only explains others.
    target: &'static str,
    /// What it is measured against, or how many times.
    anchor: String,
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
            value,
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
}

/// Prints the rows.
#[expect(clippy::print_stdout, reason = "the rows are what the bench is for")]
pub(crate) fn show(rows: &[Row]) {
    for row in rows {
        let Row {
            name,
            value,
            unit,
            target,
            anchor,
        } = row;
        println!("row\t{name}\t{value}\t{unit}\t{target}\t{anchor}");
    }
}

/// Says what is going on.
#[expect(clippy::print_stderr, reason = "this is a tool for a terminal")]
pub(crate) fn say(line: &str) {
    eprintln!("front: {line}");
}
