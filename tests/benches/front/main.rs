//! `cargo xtask bench front`: the way from `server create` to a page, and the gateway beside
//! nginx and beside direct calls.
//!
//! It measures and asserts no time. It fails when an answer is wrong, when a peer is missing,
//! or when a program does not start.

mod clone;
mod create;
mod echo;
mod figures;
mod gateway;
mod grpc;
mod http_load;
mod machine;
mod nginx;
mod notebook;
mod peers;
mod proxies;
mod rows;
mod upstream;

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::rows::{Row, say, show};

/// The parts of the bench, as `--only` names them.
const PARTS: [&str; 5] = ["create", "cell", "proxy", "grpc", "clone"];

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Enough for figures that are kept.
    Full,
    /// Enough to see that the bench works.
    Quick,
}

impl Extent {
    /// One of two values.
    fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

#[derive(Debug)]
struct Arguments {
    extent: Extent,
    only: BTreeSet<String>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut arguments = Self {
            extent: Extent::Full,
            only: BTreeSet::new(),
        };
        let mut given = std::env::args().skip(1);
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--quick" => arguments.extent = Extent::Quick,
                "--only" => {
                    let parts = given.next().context("--only needs a list of parts")?;
                    arguments.only.extend(parts.split(',').map(str::to_owned));
                }
                // Cargo says so to every bench.
                "--bench" => {}
                other => bail!("{other}: expected --quick or --only {}", PARTS.join(",")),
            }
        }
        if let Some(part) = arguments
            .only
            .iter()
            .find(|part| !PARTS.contains(&part.as_str()))
        {
            bail!("{part} is none of {}", PARTS.join(", "));
        }
        Ok(arguments)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.contains(part)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut rows = Vec::new();
    // The processors must be free of the stack and the browser while proxies are compared.
    if arguments.wants("proxy") {
        rows.extend(proxies::measure(arguments.extent)?);
    }
    if arguments.wants("grpc") {
        rows.extend(runtime.block_on(grpc::measure(arguments.extent))?);
    }
    if arguments.wants("create") || arguments.wants("cell") {
        rows.extend(runtime.block_on(whole_stack(&arguments))?);
    }
    // Last, since it leaves the disk cache cold for the others. A trial does not wait for it.
    if arguments.wants("clone") && (arguments.extent == Extent::Full || !arguments.only.is_empty())
    {
        rows.extend(runtime.block_on(clone::measure())?);
    }
    show(&rows);
    Ok(())
}

async fn whole_stack(arguments: &Arguments) -> Result<Vec<Row>> {
    let site = create::Site::start().await?;
    let measured = Box::pin(on_site(&site, arguments)).await;
    // What is running is ended, also when the measurement failed.
    let stopped = site.stop().await;
    let rows = measured?;
    stopped?;
    Ok(rows)
}

async fn on_site(site: &create::Site, arguments: &Arguments) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if arguments.wants("create") {
        rows.extend(create::measure(site, arguments.extent).await?);
    }
    if arguments.wants("cell") {
        rows.extend(notebook::measure(site, arguments.extent).await?);
    }
    Ok(rows)
}

/// The root of the workspace.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
