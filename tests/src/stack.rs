//! A whole stack as a user starts it: `cnlab up` in one process, or the six services apart.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
};

use crate::cli::Cli;

/// A start takes well below a second; a busy machine may take longer.
const START: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// `cnlab up` as a child process on a folder and a port of its own.
#[derive(Debug)]
pub struct Up {
    child: Child,
    endpoint: String,
    port: u16,
    log: PathBuf,
    data: PathBuf,
    // Set by `kill`: the next start on this folder finds the servers that live on.
    leaves_servers: bool,
}

impl Up {
    /// Starts it for this person and waits until the gateway answers.
    ///
    /// # Errors
    /// When it ends, or does not answer; the error holds what it said.
    pub async fn start(cli: &Cli, data: &Path, port: u16, more: &[&str]) -> Result<Self> {
        let log = data.with_extension("log");
        let data_text = data.to_str().context("a folder with an odd name")?;
        let port_text = port.to_string();
        let mut arguments = vec![
            "up",
            "--data-dir",
            data_text,
            "--port",
            &port_text,
            "--gpu",
            "simulated",
        ];
        arguments.extend(more);
        let out = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)?;
        let child = cli
            .command(&arguments)
            .stdout(Stdio::from(out.try_clone()?))
            .stderr(Stdio::from(out))
            .spawn()
            .context("cnlab up does not start")?;
        let mut up = Self {
            child,
            endpoint: format!("http://127.0.0.1:{port}"),
            port,
            log,
            data: data.to_owned(),
            leaves_servers: false,
        };
        up.wait_until_ready().await?;
        Ok(up)
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let waited = tokio::time::timeout(START, async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    bail!("cnlab up ended with {status}");
                }
                if http_get(self.port, "127.0.0.1", "/readyz")
                    .await
                    .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
                {
                    return Ok(());
                }
                tokio::time::sleep(POLL).await;
            }
        });
        match waited.await {
            Ok(result) => result.with_context(|| self.said()),
            Err(_) => bail!("cnlab up was not ready within {START:?}: {}", self.said()),
        }
    }

    /// What it has printed so far.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where its gateway answers.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The port of its gateway.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The process.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pid(&self) -> Result<i32> {
        i32::try_from(self.child.id().context("cnlab up has ended")?)
            .context("a process id of another world")
    }

    /// The file with the local administrator's token.
    #[must_use]
    pub fn admin_token(&self) -> PathBuf {
        self.data.join("credentials/admin.token")
    }

    /// Ctrl-C, then waits for the end.
    ///
    /// # Errors
    /// When it does not end with success.
    pub async fn interrupt(mut self) -> Result<String> {
        signal(self.pid()?, "INT").await?;
        let status = tokio::time::timeout(STOP, self.child.wait())
            .await
            .with_context(|| format!("cnlab up did not end after Ctrl-C: {}", self.said()))??;
        if !status.success() {
            bail!("cnlab up ended with {status}: {}", self.said());
        }
        Ok(self.said())
    }

    /// `kill -9`, then waits for the end. Servers live on, for the next start to find.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(mut self) -> Result<()> {
        self.leaves_servers = true;
        self.child.start_kill()?;
        self.child.wait().await?;
        Ok(())
    }
}

impl Drop for Up {
    /// Servers outlive a killed stack on purpose; after a test nothing of it may be left.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(self.child.start_kill());
        }
        if self.leaves_servers {
            return;
        }
        for pid in server_pids(&self.data) {
            drop(
                std::process::Command::new("kill")
                    .arg("-9")
                    .arg(pid.to_string())
                    .status(),
            );
        }
    }
}

/// Process ids of the notebooks whose environment lies in this data folder. When one ends,
/// its sandbox ends with it.
#[must_use]
pub fn server_pids(data: &Path) -> Vec<i32> {
    let marker = data.join("envs").display().to_string();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pid_of = |entry: fs::DirEntry| -> Option<i32> {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        (line.contains(&marker) && line.contains("jupyterlab")).then_some(pid)
    };
    processes.flatten().filter_map(pid_of).collect()
}

/// Sends a signal to a process that a test has started.
///
/// # Errors
/// When there is no such process.
pub async fn signal(pid: i32, name: &str) -> Result<()> {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status()
        .await?;
    if !status.success() {
        bail!("kill -{name} {pid}: {status}");
    }
    Ok(())
}

/// One GET without anything clever: answers with the head and body as text.
///
/// # Errors
/// When the connection fails.
pub async fn http_get(port: u16, host: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
