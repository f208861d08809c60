//! Runs a real `redis-server` that keeps nothing on disk.
//!
//! The port stays the same across `kill` and `restart`, so that clients can be seen to recover.

use std::net::Ipv4Addr;
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::{ChildGuard, find_program, tied_command};
use crate::scratch::ScratchDir;
use crate::wait::{GENEROUS, wait_for};
use crate::{Signal, free_port};

/// A `redis-server` process of this test's own.
#[derive(Debug)]
pub struct RedisServer {
    // Declared before the folder: the process must be gone before its folder goes.
    process: Option<ChildGuard>,
    port: u16,
    extra: Vec<String>,
    dir: ScratchDir,
}

impl RedisServer {
    /// Starts an empty server on a free loopback port and waits until it answers `PING`.
    ///
    /// # Errors
    /// When `redis-server` is not installed (the text names the package) or does not come up (the
    /// text has its log).
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    /// Like [`start`](Self::start), with more command line arguments for the server, which win
    /// over the default ones.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(extra: &[&str]) -> anyhow::Result<Self> {
        let mut server = Self {
            process: None,
            port: free_port()?,
            extra: extra.iter().map(ToString::to_string).collect(),
            dir: ScratchDir::new("redis")?,
        };
        server.restart().await?;
        Ok(server)
    }

    /// Where clients connect: `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The TCP port, the same for all lives of this server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the server with SIGKILL; its data are lost. Does nothing when it is down already.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the server again on the same port after ending the present one, with nothing in it
    /// (unless the extra arguments asked for persistence).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let program = find_program("redis-server", "redis-server")?;
        let log = self.dir.path().join("redis.log");
        let mut command = tied_command(&program, Signal::SIGKILL);
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .arg("--logfile")
            .arg(&log)
            .args(&self.extra)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = self.process.insert(ChildGuard::spawn(command)?);
        let port = self.port;
        let up = wait_for(GENEROUS, "redis-server to answer PING", async || {
            if ping(port).await.is_ok() {
                return Some(Ok(()));
            }
            match process.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(Err(format!("redis-server ended with {status}"))),
                Err(error) => Some(Err(error.to_string())),
            }
        })
        .await
        .map_err(|late| late.to_string())
        .flatten();
        if let Err(why) = up {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            bail!("{why}; its log: {log}");
        }
        Ok(())
    }

    /// Freezes the server with SIGSTOP: connections stay open and nothing answers.
    ///
    /// # Errors
    /// When the server is not running.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.running()?.signal(Signal::SIGSTOP)
    }

    /// Lets a frozen server go on with SIGCONT; it then answers what had been sent meanwhile.
    ///
    /// # Errors
    /// When the server is not running.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.running()?.signal(Signal::SIGCONT)
    }

    fn running(&self) -> anyhow::Result<&ChildGuard> {
        self.process.as_ref().context("redis-server is not running")
    }
}

async fn ping(port: u16) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut answer = [0_u8; 5];
    stream.read_exact(&mut answer).await?;
    if &answer != b"+PONG" {
        bail!("redis-server is still loading");
    }
    Ok(())
}
