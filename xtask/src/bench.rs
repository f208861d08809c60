//! Benches: built optimised, run alone, their rows kept beside the commit and the machine.

mod machine;
mod page;
mod rows;

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    provision,
    run::{cargo, lines, root, run, say},
};
use page::Words;
use rows::Row;

/// Which bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// The way from `server create` to a page, and the gateway beside nginx
    Front,
}

impl Name {
    const fn words(self) -> Words {
        match self {
            Self::Front => Words {
                name: "front",
                title: "Front: from a command to a page",
                definitions: include_str!("bench/front.md"),
            },
        }
    }

    /// What is built before, so that no measurement waits for a compiler.
    fn build(self) -> Result<()> {
        match self {
            Self::Front => {
                let packages = ["-p", "cnlab", "-p", "gateway"];
                let mut arguments = vec!["build", "--release", "--locked"];
                arguments.extend(packages);
                run(cargo(&arguments))
            }
        }
    }

    /// The commands that print the rows.
    const fn commands(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Front => &[&[
                "bench",
                "--locked",
                "-p",
                "cnlab-tests",
                "--bench",
                "front",
                "--",
            ]],
        }
    }
}

/// How much is measured.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Extent {
    /// Fewer rounds, nothing written under docs: to see whether the bench works
    #[arg(long)]
    quick: bool,
    /// Only these parts, with commas between them; nothing written under docs
    #[arg(long, value_name = "PARTS")]
    only: Option<String>,
}

/// Runs one bench.
pub(crate) fn bench(name: Name, extent: &Extent) -> Result<()> {
    provision::for_benches()?;
    name.build()?;
    let mut all = Vec::new();
    for command in name.commands() {
        let mut arguments = command.to_vec();
        if extent.quick {
            arguments.push("--quick");
        }
        if let Some(parts) = &extent.only {
            arguments.extend(["--only", parts]);
        }
        lines(cargo(&arguments), |line| {
            all.extend(Row::of_line(line)?);
            Ok(())
        })?;
    }
    show(&rows::table(&all));
    let words = name.words();
    say(&format!(
        "wrote {}",
        rows::write_json(&root(), words.name, &all)?.display()
    ));
    if !extent.quick && extent.only.is_none() {
        say(&format!(
            "wrote {}",
            page::write(&root(), words, &all)?.display()
        ));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the table is what a bench is for")]
fn show(table: &str) {
    print!("{table}");
}
