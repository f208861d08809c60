//! `scheduler-sim grid` replays the trace and prints the tables; `scheduler-sim figures` prints
//! the rows of the bench; `scheduler-sim days` lets synthetic days pass.

use std::io::Write as _;
use std::process::ExitCode;

use scheduler_sim::experiment::Workload;
use scheduler_sim::figures::{self, Extent};
use scheduler_sim::options::{Options, USAGE};
use scheduler_sim::published::HARD_LINE;
use scheduler_sim::{chart, day, grid, report};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "error: {failure}\n\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    match arguments
        .split_first()
        .map(|(verb, rest)| (verb.as_str(), rest))
    {
        Some(("figures", rest)) => {
            let extent = match rest {
                [] => Extent::Full,
                [only] if only == "--quick" => Extent::Quick,
                _ => return Err("figures takes --quick or nothing".into()),
            };
            return figures::run(extent, &mut std::io::stdout().lock());
        }
        Some(("days", rest)) => return days(rest),
        _ => {}
    }
    let options = Options::parse(arguments)?;
    let workloads: Vec<Workload> = options
        .workloads
        .iter()
        .map(|name| Workload::read(name))
        .collect::<Result<_, _>>()?;
    #[expect(clippy::disallowed_methods, reason = "says how long the grid took")]
    let start = std::time::Instant::now();
    let cells = grid::run(
        &options.policies,
        &workloads,
        &options.seeds,
        options.threads,
    )?;
    let took = start.elapsed();
    let rows = report::rows(&cells, &options.policies, &options.workloads);
    let text = report::markdown(&rows, &options.seeds);
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    writeln!(
        out,
        "{} runs in {:.1} s on {} threads",
        cells.len(),
        took.as_secs_f64(),
        options.threads
    )?;
    for row in rows.iter().filter(|row| row.known.workload == "default") {
        for (policy, end, _) in &row.results {
            if policy.is_bounded() && end.mean * 100.0 > f64::from(HARD_LINE) {
                return Err(format!("{} is above what is possible", policy.name()).into());
            }
        }
    }
    if let Some(file) = &options.markdown {
        std::fs::write(file, &text)?;
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, chart::svg(&rows))?;
    }
    Ok(())
}

fn days(rest: &[String]) -> Result<(), Failure> {
    let (mut seed, mut drawing) = (42, None);
    for argument in rest {
        match argument.split_once('=') {
            Some(("seed", number)) => seed = number.parse()?,
            Some(("svg", file)) => drawing = Some(file),
            _ => return Err(format!("days takes seed=N and svg=FILE, not {argument:?}").into()),
        }
    }
    let days = day::report::compare(seed, &day::report::LOADS, None)?;
    write!(std::io::stdout().lock(), "{}", day::report::markdown(&days))?;
    if let Some(file) = drawing {
        std::fs::write(file, day::report::svg(&days))?;
    }
    Ok(())
}
