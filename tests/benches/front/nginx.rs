//! nginx as people run it in front of notebooks: one worker, connections to the upstream kept
//! alive, WebSockets passed on, no access log.

use std::{fs, net::SocketAddr, process::Stdio};

use anyhow::{Context as _, Result, bail};
use cnlab_testkit::{ChildGuard, GENEROUS, ScratchDir, Signal, find_program, free_port, wait_for};
use tokio::net::TcpStream;

use crate::machine::pinned;

/// A running nginx.
#[derive(Debug)]
pub(crate) struct Nginx {
    // Declared before the folder: the processes must be gone before it goes.
    process: ChildGuard,
    address: SocketAddr,
    version: String,
    _folder: ScratchDir,
}

impl Nginx {
    /// Starts it on one processor, in front of this upstream.
    pub(crate) async fn start(core: usize, upstream: SocketAddr) -> Result<Self> {
        let program = find_program("nginx", "nginx")?;
        let folder = ScratchDir::new("nginx")?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let file = folder.path().join("nginx.conf");
        let log = folder.path().join("error.log");
        fs::write(&file, configuration(address, upstream, folder.path()))?;
        let mut command = pinned(&[core], Signal::SIGTERM);
        command
            .arg(&program)
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = ChildGuard::spawn(command)?;
        wait_for(GENEROUS, "nginx to listen", async || {
            if TcpStream::connect(address).await.is_ok() {
                return Some(Ok(()));
            }
            match process.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(Err(format!("nginx ended with {status}"))),
                Err(error) => Some(Err(error.to_string())),
            }
        })
        .await?
        .map_err(|why| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            anyhow::anyhow!("{why}; its log: {log}")
        })?;
        let version = version(&program)?;
        Ok(Self {
            process,
            address,
            version,
            _folder: folder,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its first process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Such as `nginx/1.22.1`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

fn version(program: &std::path::Path) -> Result<String> {
    let output = std::process::Command::new(program).arg("-v").output()?;
    if !output.status.success() {
        bail!("nginx -v ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.split_once(':')
        .map(|(_, version)| version.trim().to_owned())
        .context("nginx does not say its version")
}

fn configuration(address: SocketAddr, upstream: SocketAddr, folder: &std::path::Path) -> String {
    // Root's nginx would work as another user, who may not look into our folder.
    let user = if nix::unistd::Uid::effective().is_root() {
        "user root;"
    } else {
        ""
    };
    let folder = folder.display();
    format!(
        "{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/client;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' '';
    }}
    upstream node {{
        server {upstream};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://node;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_read_timeout 1h;
        }}
    }}
}}
"
    )
}
