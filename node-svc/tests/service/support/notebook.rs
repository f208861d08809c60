use std::net::SocketAddr;

use bytes::Bytes;
use cnlab_proto::node::v1::Workload;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use super::KEY;

/// A server's notebook through the node's port, as the gateway would reach it.
#[derive(Clone)]
pub(crate) struct Notebook {
    pub(crate) addr: SocketAddr,
    pub(crate) workload_id: String,
    pub(crate) fence: u64,
    pub(crate) key: String,
}

impl Notebook {
    pub(crate) fn new(addr: SocketAddr, workload: &Workload) -> Self {
        Self {
            addr,
            workload_id: workload.workload_id.clone(),
            fence: workload.fence,
            key: KEY.to_owned(),
        }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Bytes) -> Response<Incoming> {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        cnlab_service::Runtime::system()
            .tasks
            .spawn("client", connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "notebook.test")
            .header("cnlab-internal-key", &self.key)
            .header("cnlab-workload-id", &self.workload_id)
            .header("cnlab-fence", self.fence.to_string())
            .body(Full::new(body))
            .unwrap();
        sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Bytes) {
        let response = self.send(Method::GET, path, Bytes::new()).await;
        let status = response.status();
        (
            status,
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    }

    /// Status and `reason` of a refusal.
    pub(crate) async fn refusal(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = self.get(path).await;
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        (
            status,
            value["reason"].as_str().unwrap_or_default().to_owned(),
        )
    }

    pub(crate) async fn json(&self, method: Method, path: &str, body: &Value) -> Value {
        let response = self.send(method, path, body.to_string().into()).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert!(status.is_success(), "{path}: {status} {bytes:?}");
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    pub(crate) async fn socket(
        &self,
        path: &str,
        protocol: Option<&'static str>,
    ) -> WebSocketStream<TcpStream> {
        let mut request = format!("ws://notebook.test{path}")
            .into_client_request()
            .unwrap();
        let headers = request.headers_mut();
        headers.insert("cnlab-internal-key", self.key.parse().unwrap());
        headers.insert("cnlab-workload-id", self.workload_id.parse().unwrap());
        headers.insert("cnlab-fence", self.fence.to_string().parse().unwrap());
        if let Some(protocol) = protocol {
            headers.insert("sec-websocket-protocol", protocol.parse().unwrap());
        }
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (socket, response) = tokio_tungstenite::client_async(request, stream)
            .await
            .unwrap();
        assert_eq!(
            response
                .headers()
                .get("sec-websocket-protocol")
                .map(|value| value.to_str().unwrap()),
            protocol
        );
        socket
    }

    /// Starts a kernel and connects to it.
    pub(crate) async fn kernel(&self) -> Kernel {
        let started = self.json(Method::POST, "/api/kernels", &json!({})).await;
        self.connect(started["id"].as_str().unwrap()).await
    }

    /// What a browser does after a restart: it closes its socket and opens another one. A
    /// session has one; Jupyter waits for the end of the former.
    pub(crate) async fn connect_anew(&self, kernel: Kernel) -> Kernel {
        let id = kernel.id.clone();
        drop(kernel);
        self.connect(&id).await
    }

    /// Connects to a kernel that runs already.
    pub(crate) async fn connect(&self, id: &str) -> Kernel {
        let path = format!("/api/kernels/{id}/channels?session_id=test");
        let mut kernel = Kernel {
            id: id.to_owned(),
            socket: self.socket(&path, None).await,
            sent: 0,
        };
        tokio::time::timeout(cnlab_testkit::GENEROUS, kernel.listen())
            .await
            .unwrap_or_else(|_| panic!("the kernel {id} is not heard"));
        kernel
    }
}

/// A kernel over its WebSocket.
pub(crate) struct Kernel {
    pub(crate) id: String,
    socket: WebSocketStream<TcpStream>,
    sent: u32,
}

impl Kernel {
    /// Runs code and returns what its last expression, or its print, gave.
    pub(crate) async fn run(&mut self, code: &str) -> String {
        // Over the whole answer: pings of the server come for ever.
        tokio::time::timeout(cnlab_testkit::GENEROUS, self.execute(code))
            .await
            .unwrap_or_else(|_| panic!("the kernel does not answer {code}"))
    }

    /// Asks until what the kernel publishes arrives: what it says before this socket's listener
    /// is there goes to nobody. Jupyter waits for that itself, but not where it takes the
    /// kernel for busy, as it may after a restart.
    async fn listen(&mut self) {
        loop {
            let id = self.send("kernel_info_request", &json!({})).await;
            let heard = async {
                loop {
                    let value = self.next().await;
                    if value["parent_header"]["msg_id"] == id.as_str()
                        && value["msg_type"] == "status"
                    {
                        return;
                    }
                }
            };
            let patience = std::time::Duration::from_millis(500);
            if tokio::time::timeout(patience, heard).await.is_ok() {
                return;
            }
        }
    }

    /// Sends a message on the shell channel and answers its id.
    async fn send(&mut self, kind: &str, content: &Value) -> String {
        self.sent += 1;
        let id = format!("message-{}", self.sent);
        let message = json!({
            "channel": "shell",
            "header": {
                "msg_id": id, "msg_type": kind, "session": "test",
                "username": "test", "version": "5.3", "date": "2026-01-01T00:00:00Z",
            },
            "parent_header": {}, "metadata": {},
            "content": content,
        });
        self.socket
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
        id
    }

    async fn next(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.socket.next().await.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }

    async fn execute(&mut self, code: &str) -> String {
        let content = json!({
            "code": code, "silent": false, "store_history": true,
            "user_expressions": {}, "allow_stdin": false, "stop_on_error": true,
        });
        let id = self.send("execute_request", &content).await;
        let mut answer = String::new();
        loop {
            let value = self.next().await;
            if value["parent_header"]["msg_id"] != id.as_str() {
                continue;
            }
            let content = &value["content"];
            match value["msg_type"].as_str().unwrap_or_default() {
                "stream" => answer.push_str(content["text"].as_str().unwrap()),
                "execute_result" => {
                    answer.push_str(content["data"]["text/plain"].as_str().unwrap());
                }
                "error" => panic!("{code}: {} {}", content["ename"], content["evalue"]),
                "status" if content["execution_state"] == "idle" => {
                    return answer.trim().to_owned();
                }
                _ => {}
            }
        }
    }
}
