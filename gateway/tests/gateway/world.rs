//! A gateway with its peers, and clients that say exactly what they are told to.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use cnlab_model::id::ServerId;
use cnlab_proto::scheduler::v1 as scheduler;
use cnlab_service::{CommonConfig, Running, Runtime, Secret, runtime::Tasks, start};
use gateway::{Config, Gateway};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    node::NodePeer,
    peers::{BillingPeer, PeerConfig, SchedulerPeer, server, user},
};

const KEY: &str = "0123456789abcdef0123456789abcdef";
/// For waits that end as soon as what they wait for happens.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

pub(crate) const ALICE: u128 = 1;
pub(crate) const MALLORY: u128 = 2;
pub(crate) const TOKEN: &str = "cnl_test_of_alice";

pub(crate) struct World {
    pub(crate) gateway: Running<Gateway>,
    pub(crate) billing: Running<BillingPeer>,
    pub(crate) scheduler: Running<SchedulerPeer>,
    pub(crate) node: Arc<NodePeer>,
    pub(crate) runtime: Runtime,
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

fn common() -> CommonConfig {
    CommonConfig {
        internal_key: Secret::new(KEY.to_owned()),
        ..CommonConfig::on_port(0)
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(adjust: impl FnOnce(&mut Config)) -> Self {
        let runtime = Runtime::system();
        let peer = PeerConfig { common: common() };
        let billing = start::<BillingPeer>(peer.clone(), runtime.fork(), listener().await)
            .await
            .unwrap();
        let scheduler = start::<SchedulerPeer>(peer, runtime.fork(), listener().await)
            .await
            .unwrap();
        let mut config = Config {
            common: common(),
            billing: billing.endpoint(),
            scheduler: scheduler.endpoint(),
            ..Config::default()
        };
        adjust(&mut config);
        let gateway = start::<Gateway>(config, runtime.fork(), listener().await)
            .await
            .unwrap();
        let node = NodePeer::start(&runtime.tasks).await;
        let world = Self {
            gateway,
            billing,
            scheduler,
            node,
            runtime,
        };
        world
            .billing
            .service()
            .0
            .lock()
            .unwrap()
            .tokens
            .insert(TOKEN.to_owned(), ALICE);
        world.serve(server(7), ALICE);
        world
    }

    /// Lets a server run on the node.
    pub(crate) fn serve(&self, server: ServerId, owner: u128) {
        self.node.run(server, 5);
        self.route(server, owner, |_| {});
    }

    pub(crate) fn route(
        &self,
        server: ServerId,
        owner: u128,
        adjust: impl FnOnce(&mut scheduler::Route),
    ) {
        let mut route = scheduler::Route {
            server_id: server.to_string(),
            server_name: "first".to_owned(),
            owner_id: user(owner).to_string(),
            project: "user/default".to_owned(),
            node_endpoint: self.node.endpoint(),
            fence: 5,
            ready: true,
            state_text: String::new(),
        };
        adjust(&mut route);
        self.scheduler
            .service()
            .0
            .lock()
            .unwrap()
            .routes
            .insert(server, route);
    }

    /// A session that is there already.
    pub(crate) fn session(&self, secret: &str, owner: u128, server: ServerId) {
        self.billing
            .service()
            .0
            .lock()
            .unwrap()
            .sessions
            .insert(secret.to_owned(), (owner, server));
    }

    pub(crate) fn revoke(&self, secret: &str) {
        self.billing
            .service()
            .0
            .lock()
            .unwrap()
            .sessions
            .remove(secret);
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.gateway.addr()
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr().port()
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.runtime.tasks
    }

    /// The host of a server's own origin, with the port.
    pub(crate) fn host(&self, server: ServerId) -> String {
        format!("{}.localhost:{}", server.host_label(), self.port())
    }

    /// Ends everything; what is left running would be a leak.
    pub(crate) async fn stop(self) {
        self.gateway.stop().await;
        self.scheduler.stop().await;
        self.billing.stop().await;
        assert!(self.runtime.tasks.stop(GENEROUS).await, "tasks were left");
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.send_body(request).await
    }

    pub(crate) async fn send_body<B>(&self, request: Request<B>) -> Response<Incoming>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = TcpStream::connect(self.addr()).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        self.tasks()
            .spawn("test connection", async move { connection.await.ok() });
        sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn send_h2(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.addr()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        self.tasks()
            .spawn("test connection", async move { connection.await.ok() });
        sender.send_request(request).await.unwrap()
    }

    /// An API request with Alice's token.
    pub(crate) async fn api(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        Answer::of(
            self.send(request.body(Full::from(body.to_owned())).unwrap())
                .await,
        )
        .await
    }

    /// A browser's request to a server's origin.
    pub(crate) async fn browse(
        &self,
        server: ServerId,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        Answer::of(
            self.send(self.request(server, "GET", path, headers, ""))
                .await,
        )
        .await
    }

    pub(crate) fn request(
        &self,
        server: ServerId,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.host(server));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::from(body.to_owned())).unwrap()
    }

    /// Writes bytes as they are and reads until the gateway closes or says nothing more.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.addr()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset is an end as well.
        tokio::time::timeout(GENEROUS, stream.read_to_end(&mut answer))
            .await
            .expect("the connection stayed open")
            .ok();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        Self {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The headers that a node saw, as it echoed them.
    pub(crate) fn seen(&self) -> BTreeMap<String, String> {
        serde_json::from_value(self.json()["headers"].clone()).unwrap()
    }
}

/// Something that tests wait for.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    cnlab_testkit::wait_until(GENEROUS, what, async || condition().await)
        .await
        .unwrap();
}
