//! Runs workloads on one machine, and is the last judge of who uses its GPUs.
//!
//! ```text
//! scheduler ── gRPC ──▶ api ─▶ app ─▶ node_core::book          persist, then carry out
//!                               ├──▶ environment               one Python environment per image
//!                               └──▶ ports: Gpus, Runner ─▶ adapters (simulated, nvml, process)
//! gateway ─ HTTP/1.1 ─▶ notebook ─▶ the life's Unix socket
//! worker ── gRPC ──▶ scheduler: register, renew, report
//! ```
#![warn(missing_docs)]

pub mod adapters;
mod api;
mod app;
pub mod config;
mod convert;
mod disk;
pub mod environment;
mod error;
pub mod failure;
mod machine;
pub mod notebook;
pub mod ports;
mod worker;

use std::{ffi::OsString, io, process::ExitCode, sync::Arc};

use async_trait::async_trait;
use cnlab_proto::node::v1::node_service_server::{self, NodeServiceServer};
use cnlab_service::{GrpcStack, Runtime, Service, StartError, Worker, net};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use app::Node;
pub use config::Config;
pub use error::NodeError;

/// Takes over when this process was started to become the supervisor of a workload. Every
/// program that links this crate and runs a node calls it first in its `main`, before any
/// thread is started.
#[must_use]
pub fn sandbox_main(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    (args.nth(1)? == node_sandbox::EXEC_VERB).then(|| node_sandbox::sandbox_exec_main(args))
}

/// The service.
#[derive(Debug)]
pub struct NodeSvc {
    node: Arc<Node>,
    roster: worker::Roster,
}

#[async_trait]
impl Service for NodeSvc {
    const NAME: &'static str = "node-svc";
    const DEFAULT_PORT: u16 = 7102;
    const SERVES: &'static [&'static str] = &[node_service_server::SERVICE_NAME];
    type Config = Config;

    async fn build(config: Config, runtime: Runtime) -> Result<Arc<Self>, StartError> {
        let node = Node::open(config, runtime).await?;
        let roster = worker::roster(&node)?;
        node.environments.look_for_python();
        Ok(Arc::new(Self { node, roster }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::new(NodeServiceServer::new(api::Api(Arc::clone(&self.node))))
    }

    fn workers(self: &Arc<Self>) -> Vec<Worker> {
        worker::all(&self.node, &self.roster)
    }

    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        grpc: GrpcStack,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let bound = format!("http://{}", listener.local_addr()?);
        let endpoint = self.node.config.advertise.clone().unwrap_or(bound);
        if self.node.endpoint.set(endpoint).is_ok() {
            self.node.register.wake();
        }
        let front = notebook::Front::new(Arc::clone(&self.node), grpc);
        net::serve(listener, front, net::Limits::internal(), stop).await
    }

    async fn shutdown(&self) {
        match self.node.config.process.at_shutdown {
            config::AtShutdown::End => self.node.end_all().await,
            config::AtShutdown::Keep => {}
        }
        worker::report_the_rest(&self.node, &self.roster).await;
    }
}

impl NodeSvc {
    /// Which GPUs this node offers, and why: one sentence.
    #[must_use]
    pub fn gpus(&self) -> &str {
        &self.node.gpus.why
    }

    /// Whether all GPUs of this node are simulated.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.node.gpus.gpus.facts().iter().all(|gpu| gpu.simulated)
    }
}
