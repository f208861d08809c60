//! The gateway as a process of its own, with its default configuration and whole stack.

use std::{
    fs,
    net::SocketAddr,
    process::{Command, Stdio},
};

use anyhow::{Result, anyhow};
use cnlab_service::Secret;
use cnlab_testkit::{ChildGuard, GENEROUS, ScratchDir, Signal, free_port, wait_for};
use cnlab_tests::{cli, stack::http_get};

use crate::machine::pinned;

/// A running gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    // Declared before the folder: the process must be gone before it goes.
    process: ChildGuard,
    address: SocketAddr,
    _folder: ScratchDir,
}

impl Gateway {
    /// Starts it on these processors, in front of these peers.
    pub(crate) async fn start(cores: &[usize], key: &Secret, peers: &str) -> Result<Self> {
        let program = cli::binary("gateway")?;
        let folder = ScratchDir::new("gateway")?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let file = folder.path().join("gateway.toml");
        let log = folder.path().join("gateway.log");
        let key = key.expose();
        fs::write(
            &file,
            format!(
                "scheduler = \"{peers}\"\nbilling = \"{peers}\"\n\
                 [common]\nlisten = \"{address}\"\ninternal_key = \"{key}\"\n"
            ),
        )?;
        let out = fs::File::create(&log)?;
        let mut command = pinned(cores, Signal::SIGKILL);
        command
            .arg(&program)
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        without_own_environment(&mut command);
        let mut process = ChildGuard::spawn(command)?;
        wait_for(GENEROUS, "the gateway to answer", async || {
            if http_get(address.port(), "127.0.0.1", "/readyz")
                .await
                .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
            {
                return Some(Ok(()));
            }
            match process.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(Err(format!("the gateway ended with {status}"))),
                Err(error) => Some(Err(error.to_string())),
            }
        })
        .await
        .map_err(|late| late.to_string())
        .flatten()
        .map_err(|why| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            anyhow!("{why}; its log: {log}")
        })?;
        Ok(Self {
            process,
            address,
            _folder: folder,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Nothing that whoever starts the bench has set may configure the gateway.
fn without_own_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CNLAB_") {
            command.env_remove(name);
        }
    }
}
