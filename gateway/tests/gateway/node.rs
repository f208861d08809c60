//! A hyper server in the place of a node: it checks who a request is for, as node-svc does,
//! and plays the notebook.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use cnlab_model::id::ServerId;
use cnlab_service::runtime::Tasks;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use sha2::{Digest as _, Sha256};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

type Body = BoxBody<Bytes, Infallible>;

pub(crate) struct NodePeer {
    addr: SocketAddr,
    workloads: Mutex<HashMap<String, String>>,
    /// Lets the second event of `/events` go.
    pub(crate) release: Notify,
    pub(crate) connections: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    pub(crate) open_sockets: AtomicUsize,
    tasks: Tasks,
}

/// Bytes that differ everywhere, so that a lost or doubled one shows.
pub(crate) fn pattern(from: usize, length: usize) -> Bytes {
    (from..from + length)
        .map(|at| ((at * 2_654_435_761) >> 16).to_le_bytes()[0])
        .collect::<Vec<_>>()
        .into()
}

pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl NodePeer {
    pub(crate) async fn start(tasks: &Tasks) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Arc::new(Self {
            addr: listener.local_addr().unwrap(),
            workloads: Mutex::default(),
            release: Notify::new(),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            open_sockets: AtomicUsize::new(0),
            tasks: tasks.clone(),
        });
        let accepting = Arc::clone(&peer);
        tasks.spawn("node", async move {
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    () = accepting.tasks.token().cancelled() => return,
                };
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let serving = Arc::clone(&accepting);
                accepting
                    .tasks
                    .spawn("node connection", serving.serve(stream));
            }
        });
        peer
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let token = self.tasks.token().clone();
        let peer = Arc::clone(&self);
        let service = service_fn(move |request| {
            let peer = Arc::clone(&peer);
            async move { Ok::<_, Infallible>(peer.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            _ = connection.with_upgrades() => {}
            () = token.cancelled() => {}
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn run(&self, server: ServerId, fence: u64) {
        self.workloads
            .lock()
            .unwrap()
            .insert(server.to_string(), fence.to_string());
    }

    pub(crate) fn end(&self, server: ServerId) {
        self.workloads.lock().unwrap().remove(&server.to_string());
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let text = |name: &str| {
            request
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (workload, fence) = (text("cnlab-workload-id"), text("cnlab-fence"));
        let known = self.workloads.lock().unwrap().get(&workload).cloned();
        if known.as_deref() != Some(&fence) || text("cnlab-internal-key").is_empty() {
            let mut refusal = full("another workload");
            *refusal.status_mut() = StatusCode::MISDIRECTED_REQUEST;
            refusal
                .headers_mut()
                .insert("cnlab-refused", HeaderValue::from_static("WORKLOAD"));
            return refusal;
        }
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/events" => self.events(),
            "/upload" => upload(request).await,
            "/early" => full("enough"),
            "/cookies" => {
                let mut response = full("cookies");
                for value in ["a=1", "__Host-cnlab=evil; Path=/; Secure"] {
                    response
                        .headers_mut()
                        .append(header::SET_COOKIE, HeaderValue::from_static(value));
                }
                response
                    .headers_mut()
                    .insert("cnlab-caller-user-id", HeaderValue::from_static("evil"));
                response
            }
            "/ws" => self.websocket(request),
            _ => match path.strip_prefix("/download/") {
                Some(length) => download(length.parse().unwrap()),
                None => echo(&request, &workload),
            },
        }
    }

    fn events(self: Arc<Self>) -> Response<Body> {
        let first = futures_util::stream::once(async {
            Ok(Frame::data(Bytes::from_static(b"data: 1\n\n")))
        });
        let second = futures_util::stream::once(async move {
            self.release.notified().await;
            Ok(Frame::data(Bytes::from_static(b"data: 2\n\n")))
        });
        let mut response = Response::new(BodyExt::boxed(StreamBody::new(first.chain(second))));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        response
    }

    /// Echoes, after saying which subprotocols it was offered. It takes the last of them.
    fn websocket(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY).cloned() else {
            return full("no key");
        };
        let offered: Vec<String> = request
            .headers()
            .get_all(header::SEC_WEBSOCKET_PROTOCOL)
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .collect();
        let upgrade = hyper::upgrade::on(&mut request);
        let chosen = offered
            .last()
            .and_then(|list| list.split(',').next_back())
            .map(|name| name.trim().to_owned());
        let peer = Arc::clone(&self);
        self.tasks.spawn("node websocket", async move {
            let upgraded = upgrade.await.unwrap();
            peer.open_sockets.fetch_add(1, Ordering::SeqCst);
            let mut socket =
                WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            let token = peer.tasks.token().clone();
            socket.send(offered.join(" | ").into()).await.ok();
            while let Some(Ok(message)) = tokio::select! {
                message = socket.next() => message,
                () = token.cancelled() => None,
            } {
                if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err()
                {
                    break;
                }
            }
            peer.open_sockets.fetch_sub(1, Ordering::SeqCst);
        });
        let mut response = full("");
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(
            header::SEC_WEBSOCKET_ACCEPT,
            derive_accept_key(key.as_bytes()).parse().unwrap(),
        );
        if let Some(chosen) = chosen {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, chosen.parse().unwrap());
        }
        response
    }
}

fn full(text: &'static str) -> Response<Body> {
    Response::new(Full::from(text).boxed())
}

fn echo(request: &Request<Incoming>, workload: &str) -> Response<Body> {
    let mut headers = BTreeMap::new();
    for (name, value) in request.headers() {
        let entry: &mut String = headers.entry(name.to_string()).or_default();
        if !entry.is_empty() {
            entry.push_str(" + ");
        }
        entry.push_str(value.to_str().unwrap());
    }
    let seen = serde_json::json!({
        "workload": workload,
        "method": request.method().as_str(),
        "target": request.uri().to_string(),
        "headers": headers,
    });
    Response::new(Full::from(seen.to_string()).boxed())
}

async fn upload(request: Request<Incoming>) -> Response<Body> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .map(|value| value.to_str().unwrap().to_owned());
    let mut body = request.into_body();
    let mut hasher = Sha256::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { break };
        if let Ok(data) = frame.into_data() {
            length += data.len();
            hasher.update(&data);
        }
    }
    let hash: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let seen = serde_json::json!({ "length": length, "hash": hash, "announced": announced });
    Response::new(Full::from(seen.to_string()).boxed())
}

fn download(length: usize) -> Response<Body> {
    const PIECE: usize = 64 * 1024;
    let pieces = (0..length)
        .step_by(PIECE)
        .map(move |from| Ok(Frame::data(pattern(from, PIECE.min(length - from)))));
    Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(
        pieces,
    ))))
}
