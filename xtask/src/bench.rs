//! Benches: built optimised, run alone, their rows kept beside the commit and the machine.

mod machine;
mod page;
mod rows;

use anyhow::{Result, bail};
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
    /// Packing, plan, shares, pre-emption and MIG, and placements per second
    Scheduler,
}

/// A program that prints rows.
struct Source {
    /// What `--only` calls it.
    part: &'static str,
    package: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A bench of the package, by its name.
    Bench(&'static str),
    /// The package's binary, with this verb.
    Run(&'static str),
}

impl Source {
    fn arguments(&self) -> Vec<&'static str> {
        match self.kind {
            Kind::Bench(name) => {
                vec![
                    "bench",
                    "--locked",
                    "-p",
                    self.package,
                    "--bench",
                    name,
                    "--",
                ]
            }
            Kind::Run(verb) => {
                vec![
                    "run",
                    "--release",
                    "--locked",
                    "-p",
                    self.package,
                    "--",
                    verb,
                ]
            }
        }
    }
}

const FRONT: &[Source] = &[Source {
    part: "front",
    package: "cnlab-tests",
    kind: Kind::Bench("front"),
}];

const SCHEDULER: &[Source] = &[
    Source {
        part: "packing",
        package: "scheduler-sim",
        kind: Kind::Run("figures"),
    },
    Source {
        part: "placement",
        package: "scheduler-core",
        kind: Kind::Bench("placement"),
    },
    Source {
        part: "plan",
        package: "scheduler-core",
        kind: Kind::Bench("plan"),
    },
    Source {
        part: "shares",
        package: "scheduler-core",
        kind: Kind::Bench("shares"),
    },
    Source {
        part: "submit",
        package: "cnlab-tests",
        kind: Kind::Bench("scheduler"),
    },
];

impl Name {
    const fn words(self) -> Words {
        match self {
            Self::Front => Words {
                name: "front",
                title: "Front: from a command to a page",
                definitions: include_str!("bench/front.md"),
            },
            Self::Scheduler => Words {
                name: "scheduler",
                title: "Scheduler: packing, plan and speed",
                definitions: include_str!("bench/scheduler.md"),
            },
        }
    }

    /// What is built before, so that no measurement waits for a compiler.
    fn build(self) -> Result<()> {
        let packages: &[&str] = match self {
            Self::Front => &["-p", "cnlab", "-p", "gateway"],
            Self::Scheduler => &["-p", "scheduler-svc", "-p", "scheduler-sim"],
        };
        let mut arguments = vec!["build", "--release", "--locked"];
        arguments.extend(packages);
        run(cargo(&arguments))
    }

    const fn sources(self) -> &'static [Source] {
        match self {
            Self::Front => FRONT,
            Self::Scheduler => SCHEDULER,
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

/// The programs whose parts are wanted.
fn chosen(
    sources: &'static [Source],
    only: Option<&str>,
) -> Result<impl Iterator<Item = &'static Source>> {
    let wanted: Option<Vec<String>> = only
        .filter(|_| sources.len() > 1)
        .map(|only| only.split(',').map(str::to_owned).collect());
    if let Some(stranger) = wanted
        .iter()
        .flatten()
        .find(|part| sources.iter().all(|source| source.part != part.as_str()))
    {
        let known: Vec<&str> = sources.iter().map(|source| source.part).collect();
        bail!("{stranger} is none of {}", known.join(", "));
    }
    Ok(sources.iter().filter(move |source| {
        wanted
            .as_ref()
            .is_none_or(|wanted| wanted.iter().any(|part| part == source.part))
    }))
}

/// Runs one bench.
pub(crate) fn bench(name: Name, extent: &Extent) -> Result<()> {
    provision::for_benches()?;
    name.build()?;
    let mut all = Vec::new();
    for source in chosen(name.sources(), extent.only.as_deref())? {
        let mut arguments = source.arguments();
        if extent.quick {
            arguments.push("--quick");
        }
        // The parts of a bench of one program are that program's own.
        if let ([_], Some(parts)) = (name.sources(), &extent.only) {
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
