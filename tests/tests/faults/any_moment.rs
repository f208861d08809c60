//! `kill -9` of the stack at a moment that a seed decides: whatever was acknowledged is there
//! again, record and file.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cnlab_service::Runtime;
use cnlab_tests::cli::Cli;

use crate::{create, place::Place};

/// Rounds of an ordinary test run; `CNLAB_SOAK_ROUNDS` asks for more, and `CNLAB_SOAK_SEED`
/// for the moments of a run that failed, which names its seed.
const ROUNDS: u32 = 5;
/// The kill comes within this time after the actions have begun, in milliseconds.
const WITHIN: u64 = 4_000;
/// The same for a kill while the stack starts.
const STARTING: u64 = 1_000;

/// What was acknowledged, and so must be found again.
#[derive(Debug, Default)]
struct Kept {
    /// Name to id and volume.
    records: BTreeMap<String, [String; 2]>,
    /// Path to content.
    files: BTreeMap<PathBuf, String>,
}

/// Acts, kills, restarts, compares; then brings one server back to a page that answers.
pub(crate) async fn story(place: &mut Place) -> Result<()> {
    let rounds = setting("CNLAB_SOAK_ROUNDS")?.map_or(Ok(ROUNDS), u32::try_from)?;
    let seed = setting("CNLAB_SOAK_SEED")?.unwrap_or_else(|| {
        let random = Runtime::system().ids.secret();
        random
            .iter()
            .take(6)
            .fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    });
    let mut dice = Dice(seed);
    let mut kept = Kept::default();
    for [name, id, volume] in place.records().await? {
        kept.records.insert(name, [id, volume]);
    }
    for round in 0..rounds {
        let moment = Duration::from_millis(dice.below(WITHIN));
        let mut doing = Vec::new();
        tokio::select! {
            result = act(place, &mut dice, round, &mut kept, &mut doing) => {
                result.with_context(|| format!("seed {seed}, round {round}, {doing:?}"))?;
            }
            () = tokio::time::sleep(moment) => {}
        }
        place.kill().await?;
        if dice.below(2) == 0 {
            // Killed again while it finds out what there was.
            let early = Duration::from_millis(dice.below(STARTING));
            doing.push(format!("start, killed after {early:?}"));
            place.start_and_kill(early).await?;
        }
        place.start().await?;
        compare(place, &kept, round).await.with_context(|| {
            format!("seed {seed}, round {round}, killed after {moment:?}: {doing:?}")
        })?;
    }
    let name = kept
        .records
        .keys()
        .next()
        .context("no server is left")?
        .clone();
    place
        .comes_back(&name)
        .await
        .with_context(|| format!("seed {seed}"))?;
    compare(place, &kept, rounds).await
}

/// Creates, writes, stops and starts until it is cut off.
async fn act(
    place: &Place,
    dice: &mut Dice,
    round: u32,
    kept: &mut Kept,
    doing: &mut Vec<String>,
) -> Result<()> {
    for step in 0_u32.. {
        let names: Vec<_> = kept.records.keys().cloned().collect();
        // A name that a request in flight may have made is never used again.
        let fresh = format!("round-{round}-{step}");
        let pick = names[usize::try_from(dice.below(u64::try_from(names.len())?))?].clone();
        match dice.below(4) {
            0 if names.len() < 6 => {
                doing.push(format!("create {fresh}"));
                place.cli.ok(&create(&fresh, &["--no-wait"])).await?;
                let (id, volume) = crate::ids(&place.cli, &fresh).await?;
                kept.records.insert(fresh, [id, volume]);
            }
            1 => {
                doing.push(format!("stop {pick}"));
                tolerant(&place.cli, &["server", "stop", &pick, "--no-wait"]).await?;
            }
            2 => {
                doing.push(format!("start {pick}"));
                tolerant(&place.cli, &["server", "start", &pick, "--no-wait"]).await?;
            }
            _ => {
                let volume = place.data().join("volumes").join(&kept.records[&pick][1]);
                if volume.is_dir() {
                    let file = volume.join(format!("{fresh}.txt"));
                    doing.push(format!("write {}", file.display()));
                    fs::write(&file, &fresh)?;
                    kept.files.insert(file, fresh);
                }
            }
        }
    }
    Ok(())
}

/// A server that is just being stopped cannot be started, and the other way round; that is
/// said with a code of its own.
async fn tolerant(cli: &Cli, command: &[&str]) -> Result<()> {
    let answer = cli.run(command).await?;
    ensure!(
        answer.code == 0 || answer.code == 8,
        "{command:?}: {answer:?}"
    );
    Ok(())
}

async fn compare(place: &Place, kept: &Kept, round: u32) -> Result<()> {
    let now = place.records().await?;
    for (name, [id, volume]) in &kept.records {
        let known = [name.clone(), id.clone(), volume.clone()];
        ensure!(now.contains(&known), "{known:?} is lost: {now:?}");
    }
    for [name, _, _] in &now {
        // A request that was cut off may have been carried out, as a whole.
        ensure!(
            kept.records.contains_key(name) || name.starts_with("round-"),
            "{name} in round {round} was made by nobody"
        );
        let server = place.show(name).await?;
        ensure!(
            server["state"]
                .as_str()
                .is_some_and(|state| state != "SERVER_STATE_UNSPECIFIED"),
            "{server:#}"
        );
    }
    for (file, content) in &kept.files {
        let found = fs::read_to_string(file);
        ensure!(
            found.as_ref().is_ok_and(|found| found == content),
            "{}: {found:?}",
            file.display()
        );
    }
    Ok(())
}

fn setting(name: &str) -> Result<Option<u64>> {
    match std::env::var_os(name) {
        None => Ok(None),
        Some(value) => value
            .to_str()
            .and_then(|text| text.parse().ok())
            .map(Some)
            .with_context(|| format!("{name} is a whole number, not {value:?}")),
    }
}

/// SplitMix64: the same moments for the same seed.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
