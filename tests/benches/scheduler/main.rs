//! `cargo xtask bench scheduler`, the part that crosses the wire: from a gRPC submission to the
//! durable grant, on a cell of many nodes.
//!
//! It measures and asserts no time. It fails when an answer is wrong or a program does not start.

mod load;
mod peers;
mod site;

use std::process::ExitCode;

use anyhow::{Result, bail};

use site::Site;

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Enough for figures that are kept.
    Full,
    /// Enough to see that the bench works.
    Quick,
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
    let mut extent = Extent::Full;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => extent = Extent::Quick,
            // Cargo says so to every bench.
            "--bench" => {}
            other => bail!("{other}: expected --quick"),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(extent))
}

async fn measure(extent: Extent) -> Result<()> {
    let sizes: &[u32] = match extent {
        Extent::Full => &[10, 1_000, 10_000],
        Extent::Quick => &[10],
    };
    for &nodes in sizes {
        let site = Site::start(nodes).await?;
        let measured = load::measure(&site, extent).await;
        site.stop().await?;
        measured?;
    }
    Ok(())
}

/// Prints a figure as `cargo xtask bench` reads it.
#[expect(clippy::print_stdout, reason = "the rows are what the bench is for")]
fn row(name: &str, value: f64, unit: &str, target: &str, anchor: &str) {
    println!("row\t{name}\t{value}\t{unit}\t{target}\t{anchor}");
}

/// Says what is going on.
#[expect(clippy::print_stderr, reason = "this is a tool for a terminal")]
fn say(line: &str) {
    eprintln!("scheduler: {line}");
}
