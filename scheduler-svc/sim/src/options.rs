//! The command line.

use crate::baseline::Baseline;
use crate::contender::Contender;
use crate::experiment::SEEDS;
use crate::published::PUBLISHED;

/// What is printed when the command line is not understood.
pub const USAGE: &str = "\
usage: scheduler-sim grid [option=value]…
       scheduler-sim figures [--quick]
       scheduler-sim days [seed=N] [svg=FILE]

  workloads=a,b,…   of the 17 of the paper (all)
  policies=a,b,…    Random,DotProd,Clustering,Packing,BestFit,FGD,PLAN,LEARNED,MOVES,
                    QUEUED-FGD,QUEUED (all)
  seeds=N           how many, from the first on (10)
  first=N           the first seed (42, as published)
  threads=N         (2)
  markdown=FILE     writes the tables there too
  svg=FILE          draws them";

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Names of workloads.
    pub workloads: Vec<String>,
    /// The policies.
    pub policies: Vec<Contender>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// How many threads.
    pub threads: usize,
    /// Where to write the tables.
    pub markdown: Option<String>,
    /// Where to draw them.
    pub svg: Option<String>,
}

/// An argument that says nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// The first argument is not `grid`.
    #[error("the command is missing")]
    Command,
    /// No such option.
    #[error("there is no option {0:?}")]
    Unknown(String),
    /// No such value.
    #[error("{0:?} cannot be {1:?}")]
    Value(String, String),
}

impl Options {
    /// Reads the arguments after the program's name.
    pub fn parse(arguments: &[String]) -> Result<Self, BadOption> {
        let (command, rest) = arguments.split_first().ok_or(BadOption::Command)?;
        if command != "grid" {
            return Err(BadOption::Command);
        }
        let mut options = Self {
            workloads: PUBLISHED.iter().map(|p| p.workload.to_owned()).collect(),
            policies: Contender::all(),
            seeds: SEEDS.collect(),
            threads: 2,
            markdown: None,
            svg: None,
        };
        let (mut first, mut count) = (SEEDS.start, SEEDS.end - SEEDS.start);
        for argument in rest {
            let (key, value) = argument
                .split_once('=')
                .ok_or_else(|| BadOption::Unknown(argument.clone()))?;
            let refused = || BadOption::Value(key.to_owned(), value.to_owned());
            match key {
                "workloads" => {
                    options.workloads = value.split(',').map(str::to_owned).collect();
                    if let Some(name) = options
                        .workloads
                        .iter()
                        .find(|name| crate::published::of(name).is_none())
                    {
                        return Err(BadOption::Value(key.to_owned(), name.clone()));
                    }
                }
                "policies" => {
                    options.policies = value
                        .split(',')
                        .map(|name| {
                            Contender::all()
                                .into_iter()
                                .find(|policy| policy.name() == name)
                                .ok_or_else(|| BadOption::Value(key.to_owned(), name.to_owned()))
                        })
                        .collect::<Result<_, _>>()?;
                }
                "seeds" => count = value.parse().map_err(|_| refused())?,
                "first" => first = value.parse().map_err(|_| refused())?,
                "threads" => options.threads = value.parse().map_err(|_| refused())?,
                "markdown" => options.markdown = Some(value.to_owned()),
                "svg" => options.svg = Some(value.to_owned()),
                _ => return Err(BadOption::Unknown(key.to_owned())),
            }
        }
        options.seeds = (first..first.saturating_add(count)).collect();
        Ok(options)
    }

    /// Whether a published policy is among them.
    #[must_use]
    pub fn has(&self, baseline: Baseline) -> bool {
        self.policies.contains(&Contender::Published(baseline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, BadOption> {
        let owned: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        Options::parse(&owned)
    }

    #[test]
    fn defaults_to_the_published_grid() {
        let options = parse(&["grid"]).unwrap();
        assert_eq!(options.workloads.len(), 17);
        assert_eq!(options.seeds, (42..52).collect::<Vec<_>>());
        assert!(Baseline::ALL.iter().all(|&b| options.has(b)));
    }

    #[test]
    fn takes_a_part_of_it() {
        let options = parse(&["grid", "workloads=default", "policies=FGD", "seeds=2"]).unwrap();
        assert_eq!(options.workloads, ["default"]);
        assert_eq!(options.policies, [Contender::Published(Baseline::Fgd)]);
        assert_eq!(options.seeds, [42, 43]);
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert_eq!(parse(&[]), Err(BadOption::Command));
        assert_eq!(
            parse(&["grid", "workloads=cpu072"]),
            Err(BadOption::Value("workloads".into(), "cpu072".into()))
        );
        assert_eq!(
            parse(&["grid", "colour=red"]),
            Err(BadOption::Unknown("colour".into()))
        );
        assert_eq!(
            parse(&["grid", "seeds=few"]),
            Err(BadOption::Value("seeds".into(), "few".into()))
        );
    }
}
