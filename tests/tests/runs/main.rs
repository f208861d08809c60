//! Batch runs on a whole stack, through the command line: how they end, what ends them, and what
//! is known of them after `kill -9` of everything.
//!
//! Needs root, `python3` with `venv` and the Python index.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{ScratchDir, free_port, wait_until};
use cnlab_tests::{
    cli::{Answer, Cli},
    stack::Up,
};
use serde_json::Value;

/// For what takes seconds on an idle machine, and an environment less than a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// A stack, its person and its folder.
struct Place {
    // Dropped in this order: the process ends before its folder goes.
    up: Option<Up>,
    cli: Cli,
    port: u16,
    data: PathBuf,
    _scratch: ScratchDir,
}

impl Place {
    async fn new() -> Result<Self> {
        let scratch = ScratchDir::new("runs")?;
        let mut place = Self {
            up: None,
            cli: Cli::new()?,
            port: free_port()?,
            data: scratch.path().join("data"),
            _scratch: scratch,
        };
        place.start().await?;
        Ok(place)
    }

    async fn start(&mut self) -> Result<()> {
        let up = Up::start(&self.cli, &self.data, self.port, &[]).await?;
        self.cli.login(up.endpoint(), &up.admin_token()).await?;
        self.up = Some(up);
        Ok(())
    }

    async fn submit(&self, name: &str, more: &[&str], command: &[&str]) -> Result<Answer> {
        let mut all = vec![
            "run",
            "submit",
            "--name",
            name,
            "--image",
            "jupyter:minimal",
        ];
        all.extend(["--profile", "l40s-block", "--storage", "10mb"]);
        all.extend(more);
        all.push("--");
        all.extend(command);
        self.cli.run(&all).await
    }

    async fn show(&self, name: &str) -> Result<Value> {
        self.cli.json(&["run", "show", name]).await
    }

    /// Waits until a run is in this state.
    async fn until(&self, name: &str, state: &str) -> Result<Value> {
        let state = format!("RUN_STATE_{state}");
        wait_until(PATIENCE, &format!("{name} to be {state}"), async || {
            let run = self.show(name).await;
            run.is_ok_and(|run| run["state"] == state.as_str())
        })
        .await
        .with_context(|| self.up.as_ref().map(Up::said).unwrap_or_default())?;
        self.show(name).await
    }

    /// Submits a shell that says that it runs, waits for a file in its volume, and then goes on.
    async fn gated(&self, name: &str, then: &str) -> Result<()> {
        let wait =
            "echo runs; n=0; while [ ! -e go ] && [ $n -lt 6000 ]; do sleep 0.05; n=$((n+1)); done";
        let script = format!("{wait}; {then}");
        let answer = self.submit(name, &[], &["sh", "-c", &script]).await?;
        ensure!(answer.code == 0, "{answer:?}");
        self.until(name, "RUNNING").await.map(drop)
    }

    async fn open_gate(&self, name: &str) -> Result<()> {
        let run = self.show(name).await?;
        let volume = run["volumeId"].as_str().context("no volume")?;
        fs::write(self.data.join("volumes").join(volume).join("go"), "")?;
        Ok(())
    }

    async fn log(&self, name: &str) -> Result<String> {
        self.cli.ok(&["run", "logs", name]).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_end_as_their_commands_do() -> Result<()> {
    let mut place = Place::new().await?;
    // First: of later runs it is known that they end soon.
    explained(&place).await?;
    endings(&place).await?;
    wishes(&place).await?;
    killed(&mut place).await?;
    orderly(&mut place).await?;
    drained(&place).await?;
    tidy(&place).await?;
    let up = place.up.take().context("it runs")?;
    up.interrupt().await.map(drop)
}

/// By itself, well and badly, and when its time is over.
async fn endings(place: &Place) -> Result<()> {
    let look = "import os; print('five', 2 + 3, os.environ['TRACEPARENT'][:3], os.getcwd())";
    let answer = place
        .submit("five", &["--wait"], &["python", "-c", look])
        .await?;
    ensure!(
        answer.code == 0 && answer.stdout.contains("✓ Succeeded: five"),
        "{answer:?}"
    );
    let log = place.log("five").await?;
    ensure!(log.starts_with("five 5 00-"), "{log:?}");
    let run = place.show("five").await?;
    ensure!(
        run["exitCode"] == 0 && run["attempt"] == 1 && run["endedAt"].is_string(),
        "{run:#}"
    );
    let usage = place.cli.json(&["run", "list"]).await?;
    ensure!(usage["runs"][0]["name"] == "five", "{usage:#}");

    let script = "echo out; echo err >&2; exit 3";
    let answer = place
        .submit("failing", &["--wait"], &["sh", "-c", script])
        .await?;
    ensure!(
        answer.code == 3 && answer.stderr.contains("error[COMMAND_FAILED]"),
        "{answer:?}"
    );
    let log = place.log("failing").await?;
    ensure!(log.contains("out") && log.contains("err"), "{log:?}");

    let answer = place
        .submit(
            "long",
            &["--wait", "--max-runtime", "1s"],
            &["sleep", "1000"],
        )
        .await?;
    ensure!(
        answer.code == 124 && answer.stderr.contains("error[MAX_RUNTIME_REACHED]"),
        "{answer:?}"
    );
    ensure!(place.show("long").await?["state"] == "RUN_STATE_TIMED_OUT");

    let answer = place
        .submit("nothing", &["--wait"], &["no-such-program"])
        .await?;
    ensure!(
        answer.code == 1 && answer.stderr.contains("error[COMMAND_NOT_FOUND]"),
        "{answer:?}"
    );
    Ok(())
}

/// Followed, and cancelled.
async fn wishes(place: &Place) -> Result<()> {
    place.gated("followed", "echo done").await?;
    let mut follow = place.cli.command(&["run", "logs", "-f", "followed"]);
    let following = follow.stdout(std::process::Stdio::piped()).spawn()?;
    place.open_gate("followed").await?;
    let output = tokio::time::timeout(PATIENCE, following.wait_with_output()).await??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(said == "runs\ndone\n", "{said:?}");
    place.until("followed", "SUCCEEDED").await?;

    place.gated("cancelled", "exit 0").await?;
    let said = place.cli.ok(&["run", "cancel", "cancelled"]).await?;
    ensure!(said.contains("✓ Cancelled: cancelled"), "{said}");
    let run = place.show("cancelled").await?;
    ensure!(
        run["state"] == "RUN_STATE_CANCELLED" && run["grant"].is_null(),
        "{run:#}"
    );
    // What is over stays as it is.
    place.cli.ok(&["run", "cancel", "five"]).await?;
    ensure!(place.show("five").await?["state"] == "RUN_STATE_SUCCEEDED");
    Ok(())
}

/// Why a run waits, what would start it sooner, and where it runs.
async fn explained(place: &Place) -> Result<()> {
    let whole = async |name: &str| {
        let image = ["--image", "jupyter:minimal", "--storage", "10mb"];
        let mut all = vec!["run", "submit", "--name", name, "--profile", "h100-full"];
        all.extend(image);
        all.extend(["--", "sleep", "1000"]);
        place.cli.ok(&all).await
    };
    let mut held = Vec::new();
    loop {
        let name = format!("whole-{}", held.len());
        whole(&name).await?;
        let run = place.show(&name).await?;
        held.push(name);
        if run["state"] == "RUN_STATE_QUEUED" {
            break;
        }
        ensure!(held.len() < 50, "the cell is never full");
    }
    let waits = held.pop().context("one waits")?;
    let why = place.cli.json(&["run", "explain", &waits]).await?;
    ensure!(
        why["standing"] == "STANDING_WAITING" && why["blocker"]["kind"] == "BLOCKER_KIND_BUSY",
        "{why:#}"
    );
    for term in [
        "priority",
        "deadline",
        "fairShare",
        "gpuType",
        "dataLocality",
        "queueDepth",
    ] {
        ensure!(why[term]["text"].is_string(), "{term} in {why:#}");
    }
    // The free L40S are what would start it now; it does as is said.
    let others = why["sooner"].as_array().context("no changes")?;
    let other = others
        .iter()
        .find(|change| change["profile"] == "l40s-block");
    let other = other.with_context(|| format!("{why:#}"))?;
    ensure!(other["text"] == "the profile l40s-block: now", "{other:#}");
    let shown = place.cli.ok(&["run", "explain", &waits]).await?;
    ensure!(
        shown.contains(" waits, number 1 of 1 for H100; starts in ")
            && shown.contains(" no GPU that would do is free\n")
            && shown.contains("(--profile l40s-block)"),
        "{shown}"
    );
    let queue = place.cli.run(&["queue", "--profile", "h100-full"]).await?;
    let line = format!("H100  1      run {waits}");
    ensure!(queue.code == 0 && queue.stdout.contains(&line), "{queue:?}");
    ensure!(
        queue.stderr.contains(&format!("run explain {waits}")),
        "{queue:?}"
    );

    let first = held.first().context("one runs")?;
    place.cli.ok(&["run", "cancel", first]).await?;
    place.until(&waits, "RUNNING").await?;
    let why = place.cli.json(&["run", "explain", &waits]).await?;
    ensure!(
        why["standing"] == "STANDING_RUNNING"
            && why["placement"]["nodeName"].is_string()
            && why["placement"]["why"]
                .as_str()
                .is_some_and(|why| why.contains("100% were free"))
            && why["preemption"]["possible"] == true,
        "{why:#}"
    );
    let why = place.cli.json(&["run", "explain", first]).await?;
    ensure!(why["standing"] == "STANDING_OVER", "{why:#}");
    held.push(waits);
    for name in held.iter().skip(1) {
        place.cli.ok(&["run", "cancel", name]).await?;
    }
    let empty = place.cli.run(&["queue"]).await?;
    ensure!(
        empty.code == 0 && empty.stdout.is_empty() && empty.stderr.contains("nothing waits"),
        "{empty:?}"
    );
    Ok(())
}

/// `kill -9` of everything while two commands run: one ends while nobody looks.
async fn killed(place: &mut Place) -> Result<()> {
    place.gated("unseen", "exit 7").await?;
    place.gated("adopted", "exit 8").await?;
    let (unseen, adopted) = (place.show("unseen").await?, place.show("adopted").await?);
    let volume = unseen["volumeId"].as_str().context("no volume")?.to_owned();
    place.up.take().context("it runs")?.kill().await?;
    fs::write(place.data.join("volumes").join(volume).join("go"), "")?;
    let exit = place.data.join("nodes/local/workloads");
    let exit = exit.join(unseen["id"].as_str().context("no id")?);
    let exit = exit.join(unseen["grant"]["fence"].as_str().context("no fence")?);
    wait_until(PATIENCE, "the record of the end", async || {
        exit.join("exit.json").exists()
    })
    .await?;
    place.start().await?;
    let run = place.until("unseen", "FAILED").await?;
    ensure!(run["exitCode"] == 7 && run["attempt"] == 1, "{run:#}");
    place.open_gate("adopted").await?;
    let run = place.until("adopted", "FAILED").await?;
    ensure!(
        run["exitCode"] == 8 && run["attempt"] == 1 && run["startedAt"] == adopted["startedAt"],
        "{run:#}"
    );
    ensure!(place.log("adopted").await? == "runs\n");
    Ok(())
}

/// Ctrl-C ends what runs, and it begins anew with the next start.
async fn orderly(place: &mut Place) -> Result<()> {
    place.gated("again", "exit 0").await?;
    place.up.take().context("it runs")?.interrupt().await?;
    place.start().await?;
    let run = place.until("again", "RUNNING").await?;
    ensure!(
        run["attempt"] == 2 && run["requeuedBecause"].is_string(),
        "{run:#}"
    );
    place.open_gate("again").await?;
    place.until("again", "SUCCEEDED").await.map(drop)
}

/// A drain ends what runs on the only node there is; it begins anew when that is used again.
async fn drained(place: &Place) -> Result<()> {
    place.gated("moved", "exit 0").await?;
    let node = place.cli.json(&["node", "show", "local"]).await?;
    ensure!(
        node["state"] == "NODE_STATE_READY" && node["workloads"][0]["name"] == "moved",
        "{node:#}"
    );
    let reason = ["--reason", "new fans"];
    let drain = [&["node", "drain", "local", "--wait"][..], &reason].concat();
    let said = place.cli.ok(&drain).await?;
    ensure!(said.contains("✓ Drained: local"), "{said}");
    let listed = place.cli.ok(&["node", "list"]).await?;
    ensure!(listed.contains("drained"), "{listed}");
    let run = place.until("moved", "QUEUED").await?;
    ensure!(
        run["attempt"] == 2 && run["requeuedBecause"] == "the node local was drained: new fans",
        "{run:#}"
    );
    let detail = "waiting for a node with L40S; local is cordoned (new fans)";
    wait_until(PATIENCE, "the run to say what it waits for", async || {
        let run = place.show("moved").await;
        run.is_ok_and(|run| run["phaseDetail"] == detail)
    })
    .await?;
    place.cli.ok(&["node", "uncordon", "local"]).await?;
    place.until("moved", "RUNNING").await?;
    place.open_gate("moved").await?;
    place.until("moved", "SUCCEEDED").await.map(drop)
}

/// Everything can be deleted, and then nothing is left.
async fn tidy(place: &Place) -> Result<()> {
    let names = place.cli.ok(&["run", "list", "-o", "name"]).await?;
    for name in names.lines() {
        place.cli.ok(&["run", "delete", "-y", name]).await?;
    }
    for folder in ["volumes", "nodes/local/workloads"] {
        let left = fs::read_dir(place.data.join(folder))?.count();
        ensure!(left == 0, "{left} left in {folder}");
    }
    Ok(())
}
