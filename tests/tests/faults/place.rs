//! A data folder with its port and its person, and what must not change or stay behind.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{ScratchDir, free_port, tree_of, wait_until};
use cnlab_tests::{
    cli::{Answer, Cli},
    stack::Up,
};
use serde_json::Value;

/// For what takes seconds on an idle machine, and an environment less than a minute.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Where `cnlab up` runs, or has run.
#[derive(Debug)]
pub(crate) struct Place {
    // Dropped in this order: the process ends before its folder goes.
    pub(crate) up: Option<Up>,
    pub(crate) cli: Cli,
    pub(crate) port: u16,
    data: PathBuf,
    scratch: ScratchDir,
}

impl Place {
    /// A folder that no stack has used.
    pub(crate) fn new() -> Result<Self> {
        let scratch = ScratchDir::new("faults")?;
        let data = scratch.path().join("data");
        Self::at(scratch, data, Cli::new()?)
    }

    /// The same with another person, or on another disk.
    pub(crate) fn at(scratch: ScratchDir, data: PathBuf, cli: Cli) -> Result<Self> {
        Ok(Self {
            up: None,
            cli,
            port: free_port()?,
            data,
            scratch,
        })
    }

    /// A stack on a Python that cannot make environments: what it knows of a server stays a
    /// record, and no time is spent on building.
    pub(crate) async fn with_a_record() -> Result<Self> {
        let scratch = ScratchDir::new("faults")?;
        let data = scratch.path().join("data");
        let python = crate::environment::bare_python(scratch.path())?;
        let cli = Cli::new()?.with_env("PATH", &python);
        let mut place = Self::at(scratch, data, cli)?;
        place.start().await?;
        let answer = place.cli.run(&crate::create("kept", &[])).await?;
        ensure!(
            answer.stderr.contains("PYTHON_WITHOUT_VENV"),
            "{answer:?}\n{}",
            place.said()
        );
        Ok(place)
    }

    /// Where everything is kept.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// A folder beside it, which goes with it.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// What the stack has printed so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }

    /// Starts the stack, and signs its person in.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let up = Up::start(&self.cli, &self.data, self.port, &[]).await?;
        self.cli.login(up.endpoint(), &up.admin_token()).await?;
        self.up = Some(up);
        Ok(())
    }

    /// Starts the stack, and kills it before anybody knows how far it has come.
    pub(crate) async fn start_and_kill(&self, after: Duration) -> Result<()> {
        let (data, port) = (self.data.to_str(), self.port.to_string());
        let data = data.context("a folder with an odd name")?;
        let arguments = ["up", "--data-dir", data, "--port", &port];
        let mut up = self
            .cli
            .command(&arguments)
            .args(["--gpu", "simulated"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        tokio::time::sleep(after).await;
        up.kill().await.context("it ended by itself")
    }

    /// `kill -9`.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.up.take().context("nothing runs")?.kill().await
    }

    /// Ctrl-C; then nothing of it may be left.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.up.take().context("nothing runs")?.interrupt().await?;
        self.nothing_runs()
    }

    /// The same, for good.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.stop().await
    }

    /// No process of this folder, no mount and no open port.
    pub(crate) fn nothing_runs(&self) -> Result<()> {
        let left = self.processes();
        ensure!(left.is_empty(), "left running: {left:?}\n{}", self.said());
        ensure!(
            TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).is_ok(),
            "port {} is still in use",
            self.port
        );
        let mounts = fs::read("/proc/self/mountinfo")?;
        let inside = self.data.join("");
        ensure!(
            !names(&mounts, &inside),
            "a mount is left below {}",
            self.data.display()
        );
        Ok(())
    }

    /// Processes that name the data folder on their command line or in their environment, or
    /// see a part of it in a mount namespace of their own.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let own = std::process::id();
        let of = |pid: u32| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let line = read("cmdline");
            let ours = [&line, &read("environ"), &read("mountinfo")]
                .iter()
                .any(|text| names(text, &self.data));
            let shown = String::from_utf8_lossy(&line).replace('\0', " ");
            // The one that removes the folder at the end has it on its command line, too.
            (ours && !line.is_empty() && !shown.contains("sweeper")).then_some((pid, shown))
        };
        fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own)
            .filter_map(of)
            .collect()
    }

    /// Folders of volumes.
    pub(crate) fn volumes(&self) -> Vec<String> {
        entries(&self.data.join("volumes"))
    }

    /// Everything that a refused request must leave as it was.
    async fn state(&self) -> Result<State> {
        let up = self.up.as_ref().context("nothing runs")?;
        let servers = self.cli.json(&["server", "list"]).await?;
        let profiles = self.cli.json(&["profiles", "list"]).await?;
        let available = profiles["profiles"]
            .as_array()
            .context("no profiles")?
            .iter()
            .map(|profile| (profile["name"].to_string(), profile["availableNow"] == true))
            .collect();
        Ok(State {
            servers: servers["servers"].clone(),
            available,
            volumes: self.volumes(),
            workloads: entries(&self.data.join("nodes/local/workloads")),
            children: tree_of(u32::try_from(up.pid()?)?)
                .into_iter()
                .map(|process| process.command)
                .collect(),
        })
    }

    /// Waits until everything is as it was. (The node looks at its Python now and then, in a
    /// process that comes and goes.)
    pub(crate) async fn unchanged_since(&self, before: &State) -> Result<()> {
        let mut last = None;
        let waited = wait_until(PATIENCE, "the state of before", async || {
            last = Some(self.state().await);
            matches!(&last, Some(Ok(now)) if now == before)
        })
        .await;
        waited.with_context(|| format!("before: {before:?}, now: {last:?}"))
    }

    /// Waits until nothing is held, and answers with what is known then.
    pub(crate) async fn idle(&self) -> Result<State> {
        let mut last = None;
        let waited = wait_until(PATIENCE, "an idle node", async || {
            last = Some(self.state().await);
            matches!(&last, Some(Ok(now)) if now.is_idle())
        })
        .await;
        waited.with_context(|| format!("{last:?}"))?;
        last.context("just seen")?
    }

    /// The names of all servers with their ids and volumes, in order.
    pub(crate) async fn records(&self) -> Result<Vec<[String; 3]>> {
        let list = self.cli.json(&["server", "list"]).await?;
        let mut records: Vec<_> = list["servers"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(|server| {
                ["name", "id", "volumeId"]
                    .map(|field| server[field].as_str().unwrap_or_default().to_owned())
            })
            .collect();
        records.sort();
        Ok(records)
    }

    /// What is known of a server.
    pub(crate) async fn show(&self, name: &str) -> Result<Value> {
        self.cli.json(&["server", "show", name]).await
    }

    /// Waits until a server is somewhere, judged by what is known of it.
    pub(crate) async fn wait_for(
        &self,
        name: &str,
        what: &str,
        there: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        let what = format!("{name} to be {what}");
        let waited = wait_until(PATIENCE, &what, async || match self.show(name).await {
            Ok(server) => {
                last = server;
                there(&last)
            }
            Err(_) => false,
        })
        .await;
        waited.with_context(|| format!("{last:#}"))?;
        Ok(last)
    }

    /// Waits until nothing more happens to a server by itself. It may have failed, but then
    /// it says why and can be started again, which is done; in the end it is ready.
    pub(crate) async fn comes_back(&self, name: &str) -> Result<()> {
        let server = self
            .wait_for(name, "settled", |server| {
                ["READY", "FAILED", "STOPPED"]
                    .iter()
                    .any(|state| server["state"] == format!("SERVER_STATE_{state}").as_str())
            })
            .await?;
        if server["state"] != "SERVER_STATE_READY" {
            ensure!(
                server["state"] == "SERVER_STATE_STOPPED"
                    || server["failure"]["reason"]
                        .as_str()
                        .is_some_and(|reason| !reason.is_empty()),
                "it failed without a reason: {server:#}"
            );
            self.cli.ok(&["server", "start", name]).await?;
        }
        Ok(())
    }

    /// Runs `cnlab up` on this folder, which must not start.
    pub(crate) async fn refused_start(&self) -> Result<Answer> {
        refused_start(&self.cli, &self.data, self.port, "simulated").await
    }
}

impl Drop for Place {
    /// Where a test fails half-way, servers that outlive their stack are ended.
    fn drop(&mut self) {
        drop(self.up.take());
        for (pid, _) in self.processes() {
            // It may have ended by itself meanwhile.
            drop(
                std::process::Command::new("kill")
                    .args(["-KILL", &pid.to_string()])
                    .status(),
            );
        }
    }
}

/// Runs `cnlab up`, which must not start.
pub(crate) async fn refused_start(cli: &Cli, data: &Path, port: u16, gpu: &str) -> Result<Answer> {
    let data = data.to_str().context("a folder with an odd name")?;
    let port = port.to_string();
    cli.run(&["up", "--data-dir", data, "--port", &port, "--gpu", gpu])
        .await
}

/// What a refused request must leave as it was.
#[derive(Debug, PartialEq)]
pub(crate) struct State {
    servers: Value,
    available: Vec<(String, bool)>,
    volumes: Vec<String>,
    workloads: Vec<String>,
    children: Vec<String>,
}

impl State {
    /// Nothing is held: every profile is free, no volume exists and nothing runs.
    fn is_idle(&self) -> bool {
        self.available.len() == 4
            && self.available.iter().all(|(_, now)| *now)
            && self.volumes.is_empty()
            && self.children.is_empty()
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn names(text: &[u8], folder: &Path) -> bool {
    let folder = folder.as_os_str().as_bytes();
    text.windows(folder.len()).any(|part| part == folder)
}
