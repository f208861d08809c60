//! The product as an operator runs it: six processes, each with a TOML file of its own, on a
//! real Redis and a real PostgreSQL.
//!
//! **Invariant**: whatever was started here ends with its value, the workloads of the node
//! included, also when a test fails half-way.

mod config;
mod leftovers;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use cnlab_testkit::{
    ChildGuard, PostgresServer, ProcessEntry, RedisServer, ScratchDir, Signal, free_port, marked,
    tied_command, wait_for,
};
use tokio::process::Command;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::cli::{self, Cli};

/// The services in the order in which they are started.
pub const SERVICES: [&str; 6] = [
    "billing-svc",
    "migration-svc",
    "cloud-svc",
    "scheduler-svc",
    "node-svc",
    "gateway",
];
/// Those with a database of their own.
pub const WITH_DATABASE: [&str; 4] = ["billing-svc", "migration-svc", "cloud-svc", "scheduler-svc"];
/// For what takes well below a second on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How much of a log an error shows.
const LAST_WORDS: usize = 6_000;

/// Six running services and what they keep their state in.
#[derive(Debug)]
pub struct Six {
    // Dropped in this order: the services go before what they keep their state in.
    running: BTreeMap<&'static str, ChildGuard>,
    redis: RedisServer,
    postgres: PostgresServer,
    databases: BTreeMap<&'static str, String>,
    ports: BTreeMap<&'static str, u16>,
    folder: ScratchDir,
}

impl Six {
    /// Starts everything, in order, and waits until each answers. `otlp` is where spans go.
    ///
    /// # Errors
    /// When a peer is missing, a configuration is refused or a service does not start; the
    /// error holds the last words of all logs.
    pub async fn start(otlp: Option<&str>) -> Result<Self> {
        let (redis, postgres) = tokio::try_join!(RedisServer::start(), PostgresServer::start())?;
        let mut six = Self {
            running: BTreeMap::new(),
            redis,
            postgres,
            databases: BTreeMap::new(),
            ports: BTreeMap::new(),
            folder: ScratchDir::new("six")?,
        };
        for service in SERVICES {
            six.ports.insert(service, free_port()?);
        }
        for service in WITH_DATABASE {
            let url = six.postgres.create_database().await?;
            six.databases.insert(service, url);
        }
        six.write_configuration(otlp)?;
        for service in SERVICES {
            six.run_once(service, &["check-config"]).await?;
        }
        for service in WITH_DATABASE {
            six.run_once(service, &["migrate"]).await?;
        }
        for service in SERVICES {
            six.launch(service).await?;
        }
        Ok(six)
    }

    fn write_configuration(&self, otlp: Option<&str>) -> Result<()> {
        for folder in ["credentials", "config", "log", "data"] {
            fs::create_dir(self.path(folder))?;
        }
        let mut random = [0_u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let key: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(self.key_file(), key)?;
        for service in SERVICES {
            let text = config::of(service, self, otlp)?;
            fs::write(self.config_file(service), text)?;
        }
        Ok(())
    }

    /// Runs a subcommand of a service, which must succeed, and answers with its output.
    ///
    /// # Errors
    /// When it fails; the error holds what it said.
    pub async fn run_once(&self, service: &str, arguments: &[&str]) -> Result<String> {
        let output = Command::new(cli::binary(service)?)
            .arg("--config")
            .arg(self.config_file(service))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .await?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        ensure!(
            output.status.success(),
            "{service} {arguments:?}: {}: {stdout}{stderr}",
            output.status
        );
        Ok(stdout)
    }

    /// Starts a service that does not run, on its own port, and waits until it answers.
    ///
    /// # Errors
    /// When it ends, or does not answer.
    pub async fn launch(&mut self, service: &'static str) -> Result<()> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(service))?;
        // Asked to end when the test dies, so that a node ends its workloads.
        let mut command = tied_command(cli::binary(service)?, Signal::SIGTERM);
        command
            .arg("--config")
            .arg(self.config_file(service))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = ChildGuard::spawn(command)?;
        self.running.insert(service, process);
        self.wait_until_it_serves(service).await
    }

    async fn wait_until_it_serves(&mut self, service: &'static str) -> Result<()> {
        let channel = self.channel(service)?;
        let process = self.running.get_mut(service).context("it was started")?;
        let up = wait_for(PATIENCE, &format!("{service} to serve"), async || {
            match process.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Some(Err(format!("{service} ended with {status}"))),
                Err(error) => return Some(Err(error.to_string())),
            }
            let answer = health(channel.clone(), service).await;
            answer
                .is_ok_and(|status| status == ServingStatus::Serving)
                .then_some(Ok(()))
        })
        .await
        .map_err(|late| late.to_string())
        .flatten();
        up.map_err(|why| anyhow::anyhow!("{why}\n{}", self.said()))
    }

    /// Ends a service with SIGTERM, which it must obey with success.
    ///
    /// # Errors
    /// When it does not end, or ends with a failure.
    pub async fn terminate(&mut self, service: &str) -> Result<()> {
        let mut process = self.take(service)?;
        process.signal(Signal::SIGTERM)?;
        match process.wait_exit(PATIENCE).await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => bail!("{service} ended with {status}\n{}", self.said()),
            Err(late) => bail!("{late}\n{}", self.said()),
        }
    }

    /// Ends this one process with SIGKILL; what it started lives on.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self, service: &str) -> Result<()> {
        let mut process = self.take(service)?;
        process.signal(Signal::SIGKILL)?;
        process.wait_exit(PATIENCE).await.map(drop)
    }

    fn take(&mut self, service: &str) -> Result<ChildGuard> {
        self.running
            .remove(service)
            .with_context(|| format!("{service} does not run"))
    }

    /// Ends everything in reverse order with SIGTERM, and checks that nothing is left.
    ///
    /// # Errors
    /// When something does not end as it should, or leaves something behind.
    pub async fn stop(mut self) -> Result<()> {
        for service in SERVICES.iter().rev() {
            if self.running.contains_key(service) {
                self.terminate(service).await?;
            }
        }
        let left = leftovers::of(self.folder.path(), self.ports.values())?;
        ensure!(
            left.is_empty(),
            "left behind: {}\n{}",
            left.join(", "),
            self.said()
        );
        Ok(())
    }

    /// A person with the administrator's token, signed in at the gateway, who sees the node's
    /// profiles.
    ///
    /// # Errors
    /// When the token is refused, or no node offers anything.
    pub async fn admin(&self) -> Result<Cli> {
        let cli = Cli::new()?;
        self.sign_in(&cli).await?;
        Ok(cli)
    }

    /// Signs a person in with the administrator's token.
    ///
    /// # Errors
    /// As [`Six::admin`].
    pub async fn sign_in(&self, cli: &Cli) -> Result<()> {
        cli.login(&self.endpoint("gateway"), &self.admin_token())
            .await?;
        wait_for(PATIENCE, "a profile that is available", async || {
            let answer = cli.json(&["profiles", "list"]).await.ok()?;
            let profiles = answer["profiles"].as_array()?;
            profiles
                .iter()
                .any(|profile| profile["availableNow"] == true)
                .then_some(())
        })
        .await
        .with_context(|| self.said())
    }

    /// Makes another account, with a team and a project of its own, the way an operator does
    /// it: billing-svc makes sure of the account that its configuration names whenever it
    /// starts. Answers with the file that holds the account's token.
    ///
    /// # Errors
    /// When the second billing-svc does not start or end as it should.
    pub async fn second_account(&self, name: &str) -> Result<PathBuf> {
        let file = self.path("credentials").join(format!("{name}.token"));
        let token = file.to_str().context("a folder with an odd name")?;
        let port = free_port()?;
        let log = File::create(self.log(&format!("billing-svc-{name}")))?;
        let mut command = tied_command(cli::binary("billing-svc")?, Signal::SIGTERM);
        command
            .arg("--config")
            .arg(self.config_file("billing-svc"))
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--set", &format!("bootstrap.admin_user={name}")])
            .args(["--set", &format!("bootstrap.team={name}-team")])
            .args(["--set", &format!("bootstrap.project={name}/default")])
            .args(["--set", &format!("bootstrap.token_file={token}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut process = ChildGuard::spawn(command)?;
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.connect_lazy();
        // It serves when the account is there.
        wait_for(PATIENCE, "the second billing-svc to serve", async || {
            health(channel.clone(), "billing-svc").await.ok()
        })
        .await?;
        process.signal(Signal::SIGTERM)?;
        let status = process.wait_exit(PATIENCE).await?;
        ensure!(
            status.success(),
            "the second billing-svc ended with {status}"
        );
        Ok(file)
    }

    /// The one `JupyterLab` process of a server, as the machine sees it.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn jupyter(&self, server: &str) -> Result<ProcessEntry> {
        let mut found: Vec<_> = marked("CNLAB_SERVER_ID", server)?
            .into_iter()
            .filter(|process| process.command.contains("start_jupyterlab.py"))
            .collect();
        // A child that was made and has not yet become what it will be has its parent's words.
        let pids: Vec<_> = found.iter().map(|process| process.pid).collect();
        found.retain(|process| !pids.contains(&process.parent));
        ensure!(
            found.len() == 1,
            "expected one JupyterLab of {server}: {found:?}"
        );
        found.pop().context("just counted")
    }

    /// The last words of every log.
    #[must_use]
    pub fn said(&self) -> String {
        SERVICES
            .iter()
            .map(|service| {
                let log = fs::read_to_string(self.log(service)).unwrap_or_default();
                let mut from = log.len().saturating_sub(LAST_WORDS);
                while !log.is_char_boundary(from) {
                    from += 1;
                }
                format!("--- {service}\n{}\n", &log[from..])
            })
            .collect()
    }

    /// Everything that a service has logged.
    ///
    /// # Errors
    /// When it has never run.
    pub fn log_of(&self, service: &str) -> Result<String> {
        fs::read_to_string(self.log(service)).with_context(|| format!("{service} has no log"))
    }

    /// The Redis server that leases are kept in.
    pub fn redis(&mut self) -> &mut RedisServer {
        &mut self.redis
    }

    /// The PostgreSQL server that all state is kept in.
    pub fn postgres(&mut self) -> &mut PostgresServer {
        &mut self.postgres
    }

    /// The URL of a service's database.
    ///
    /// # Errors
    /// When it has none.
    pub fn database(&self, service: &str) -> Result<&str> {
        self.databases
            .get(service)
            .map(String::as_str)
            .with_context(|| format!("{service} has no database"))
    }

    /// The process id of a service.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self, service: &str) -> Result<u32> {
        self.running
            .get(service)
            .map(ChildGuard::pid)
            .with_context(|| format!("{service} does not run"))
    }

    /// A service's port, the same for all of its lives.
    #[must_use]
    pub fn port(&self, service: &str) -> u16 {
        self.ports.get(service).copied().unwrap_or_default()
    }

    /// Where a service answers.
    #[must_use]
    pub fn endpoint(&self, service: &str) -> String {
        format!("http://127.0.0.1:{}", self.port(service))
    }

    /// A connection to a service.
    ///
    /// # Errors
    /// When its address makes no sense.
    pub fn channel(&self, service: &str) -> Result<Channel> {
        Ok(Endpoint::from_shared(self.endpoint(service))?.connect_lazy())
    }

    /// The configuration of a service.
    #[must_use]
    pub fn config_file(&self, service: &str) -> PathBuf {
        self.path("config").join(format!("{service}.toml"))
    }

    /// The file with the key that the services of this deployment share.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.path("credentials").join("internal.key")
    }

    /// The file with the first account's token.
    #[must_use]
    pub fn admin_token(&self) -> PathBuf {
        self.path("credentials").join("admin.token")
    }

    /// The node's data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn log(&self, service: &str) -> PathBuf {
        self.path("log").join(format!("{service}.log"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Six {
    fn drop(&mut self) {
        // The node first, so that nobody starts anew what is ended below.
        self.running.clear();
        leftovers::end(self.folder.path());
    }
}

/// What a service says of its health.
///
/// # Errors
/// When it does not answer.
pub async fn health(channel: Channel, service: &str) -> Result<ServingStatus, tonic::Status> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel).check(request).await?;
    Ok(answer.into_inner().status())
}

/// The folder of software environments that all stacks of this process share: each is built
/// once, whichever test comes first.
fn environments() -> Result<&'static Path> {
    static SHARED: OnceLock<ScratchDir> = OnceLock::new();
    if SHARED.get().is_none() {
        // Of two at once, one is dropped again.
        drop(SHARED.set(ScratchDir::new("six-envs")?));
    }
    let shared = SHARED.get().context("just set")?;
    Ok(shared.path())
}
