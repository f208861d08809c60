//! A protocol peer: a tonic server that speaks the public services and keeps state.
//!
//! It knows nothing of scheduling. A server's name says what becomes of it, and a profile's
//! name which refusal it meets, so that a transcript reads by itself.

mod api;
mod nodes;
mod queue;
mod runs;
mod state;

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use cnlab_proto::{
    billing::v1::account_service_server::AccountServiceServer,
    scheduler::v1::{
        catalog_service_server::CatalogServiceServer, node_service_server::NodeServiceServer,
        queue_service_server::QueueServiceServer, run_service_server::RunServiceServer,
        server_service_server::ServerServiceServer,
    },
};
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

pub(crate) use state::{Call, Fault, State};

/// The token that the peer accepts.
pub(crate) const TOKEN: &str = "cnl_5up3r-s3cret";
/// The trace id in every answer.
pub(crate) const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

/// A running peer; it ends with this value.
pub(crate) struct Peer {
    port: u16,
    state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts to listen on a free port.
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::new(port)));
        let api = api::Api(Arc::clone(&state));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let incoming =
                    TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
                let serving = Server::builder()
                    .add_service(ServerServiceServer::new(api.clone()))
                    .add_service(RunServiceServer::new(api.clone()))
                    .add_service(NodeServiceServer::new(api.clone()))
                    .add_service(QueueServiceServer::new(api.clone()))
                    .add_service(CatalogServiceServer::new(api.clone()))
                    .add_service(AccountServiceServer::new(api))
                    .serve_with_incoming(incoming);
                tokio::select! {
                    ended = serving => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self {
            port,
            state,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `http://127.0.0.1:PORT`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it keeps.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests for this method so far.
    pub(crate) fn calls(&self, method: &str) -> Vec<Call> {
        self.state()
            .calls
            .iter()
            .filter(|call| call.method == method)
            .cloned()
            .collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
