//! What a service is, and how one is started in this process.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use cnlab_model::Fault;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    config::ServiceConfig,
    grpc::GrpcStack,
    net::{self, Limits},
    runtime::Runtime,
    task::Worker,
};

/// The least time that a service has to end what it holds: workloads may take their own grace.
const SHUTDOWN: std::time::Duration = std::time::Duration::from_secs(60);

/// One CNLab service.
#[async_trait]
pub trait Service: Sized + Send + Sync + 'static {
    /// Folder, package, binary and `service.name`.
    const NAME: &'static str;
    /// The port of its default configuration.
    const DEFAULT_PORT: u16;
    /// The gRPC services that [`Service::grpc`] answers, by full name: what reflection tells.
    const SERVES: &'static [&'static str] = &[];
    /// Its configuration.
    type Config: ServiceConfig;

    /// Connects to what it needs, and recovers what an earlier run left.
    async fn build(config: Self::Config, runtime: Runtime) -> Result<Arc<Self>, StartError>;

    /// Its gRPC methods. The kit adds health and reflection.
    fn grpc(self: &Arc<Self>) -> Routes;

    /// Whether it can do its work at present, where that changes while it lives: the health of
    /// its own name follows it. The health of the empty name says that the process lives.
    fn ready(&self) -> Option<watch::Receiver<bool>> {
        None
    }

    /// Its loops.
    fn workers(self: &Arc<Self>) -> Vec<Worker> {
        Vec::new()
    }

    /// Brings its database to the present version.
    async fn migrate(_config: &Self::Config) -> Result<(), StartError> {
        Ok(())
    }

    /// Serves until `stop`. By default: its gRPC methods, on a port for services of ours.
    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        grpc: GrpcStack,
        stop: CancellationToken,
    ) -> io::Result<()> {
        net::serve(listener, grpc, Limits::internal(), stop).await
    }

    /// Called after the last request and before the process ends.
    async fn shutdown(&self) {}
}

/// Why a service does not start: what, why, and what to do about it.
#[derive(Debug)]
pub struct StartError {
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    try_this: Option<String>,
}

impl StartError {
    /// An error of this text: lowercase, no full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
            try_this: None,
        }
    }

    /// With its cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// With what to do about it.
    #[must_use]
    pub fn try_this(mut self, text: impl Into<String>) -> Self {
        self.try_this = Some(text.into());
        self
    }

    /// From an error of a service or library of ours; the text and advice are its own.
    pub fn from_fault(fault: &dyn Fault) -> Self {
        let try_this = fault.try_this();
        Self {
            message: fault.to_string(),
            source: None,
            try_this,
        }
        .with_source_of(fault)
    }

    fn with_source_of(mut self, fault: &dyn Fault) -> Self {
        let mut causes = Vec::new();
        let mut next = fault.source();
        while let Some(source) = next {
            causes.push(source.to_string());
            next = source.source();
        }
        if !causes.is_empty() {
            self.source = Some(causes.join(": ").into());
        }
        self
    }

    /// What to do about it, where there is something.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.try_this.as_deref()
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// A service that runs in this process.
#[derive(Debug)]
pub struct Running<S> {
    service: Arc<S>,
    addr: SocketAddr,
    runtime: Runtime,
    stop: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
    grace: std::time::Duration,
}

impl<S: Service> Running<S> {
    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where it listens, as an endpoint for channels.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The service itself.
    #[must_use]
    pub const fn service(&self) -> &Arc<S> {
        &self.service
    }

    /// Ends when serving ends, which without [`Running::stop`] is an error.
    pub async fn ended(&mut self) -> io::Result<()> {
        (&mut self.serving)
            .await
            .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
    }

    /// Finishes open requests, stops its loops, then its tasks.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Ok(Err(error)) = self.serving.await {
            tracing::warn!(service = S::NAME, %error, "serving ended with an error");
        }
        // A database that has stopped answering must not keep the process for ever.
        let bound = self.grace.max(SHUTDOWN);
        if tokio::time::timeout(bound, self.service.shutdown())
            .await
            .is_err()
        {
            tracing::warn!(
                service = S::NAME,
                "the shutdown did not end in time and was given up"
            );
        }
        if !self.runtime.tasks.stop(self.grace).await {
            tracing::warn!(
                service = S::NAME,
                "some tasks were still running at the end of the grace time"
            );
        }
    }
}

async fn set_ready(health: &tonic_health::server::HealthReporter, name: &str, ready: bool) {
    let status = if ready {
        tonic_health::ServingStatus::Serving
    } else {
        tonic_health::ServingStatus::NotServing
    };
    health.set_service_status(name, status).await;
}

/// Starts a service on a listener. `up`, the tests and [`crate::main`] all go through here.
///
/// # Errors
/// When the service cannot be built.
pub async fn start<S: Service>(
    config: S::Config,
    runtime: Runtime,
    listener: TcpListener,
) -> Result<Running<S>, StartError> {
    let common = config.common().clone();
    let addr = listener
        .local_addr()
        .map_err(|error| StartError::new("the listener has no address").caused_by(error))?;
    let service = S::build(config, runtime.clone()).await?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_service_status("", tonic_health::ServingStatus::Serving)
        .await;
    match service.ready() {
        None => set_ready(&health, S::NAME, true).await,
        Some(mut ready) => {
            let now = *ready.borrow_and_update();
            set_ready(&health, S::NAME, now).await;
            runtime.tasks.spawn("health", async move {
                while ready.changed().await.is_ok() {
                    let now = *ready.borrow_and_update();
                    set_ready(&health, S::NAME, now).await;
                }
            });
        }
    }
    // Every descriptor is known to it, for the types; told are only the methods that are here.
    let reflection = S::SERVES
        .iter()
        .chain(&[
            tonic_health::pb::health_server::SERVICE_NAME,
            tonic_reflection::pb::v1::server_reflection_server::SERVICE_NAME,
        ])
        .fold(
            tonic_reflection::server::Builder::configure(),
            |reflection, name| reflection.with_service_name(*name),
        )
        .register_encoded_file_descriptor_set(cnlab_proto::DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| StartError::new("the descriptor set makes no sense").caused_by(error))?;
    let routes = service
        .grpc()
        .add_service(health_service)
        .add_service(reflection);
    let grpc = GrpcStack::new(S::NAME, common.internal_key.clone(), routes);
    for worker in service.workers() {
        let name = worker.name();
        runtime.tasks.spawn(name, worker.run(runtime.tasks.clone()));
    }
    let stop = CancellationToken::new();
    let serving = runtime.tasks.spawn(
        "serve",
        Arc::clone(&service).serve(listener, grpc, stop.clone()),
    );
    tracing::info!(service = S::NAME, %addr, "listening");
    Ok(Running {
        service,
        addr,
        runtime,
        stop,
        serving,
        grace: common.shutdown_grace.0,
    })
}
