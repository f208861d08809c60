//! What stands behind both proxies in place of a node: hyper, answering 1 KiB, and a
//! WebSocket that echoes.

use std::{convert::Infallible, net::SocketAddr};

use anyhow::Result;
use bytes::Bytes;
use cnlab_service::runtime::Tasks;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

/// Bytes of an answer.
pub(crate) const BODY_BYTES: usize = 1024;

/// What every answer holds.
pub(crate) fn body() -> Bytes {
    (0..BODY_BYTES)
        .map(|at| b"0123456789abcdefghijklmnopqrstuvwxyz"[at * 7 % 36])
        .collect()
}

/// Serves on a free port until the tasks are stopped, and says where.
pub(crate) async fn serve(tasks: &Tasks) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let (body, spawner) = (body(), tasks.clone());
    let accepting = async move {
        while let Ok((stream, _)) = listener.accept().await {
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            let (body, tasks) = (body.clone(), spawner.clone());
            let answer = service_fn(move |request| {
                let response = answer(request, &body, &tasks);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .with_upgrades();
            // A proxy that ends takes its connections along: no fault of this side.
            spawner.spawn("upstream connection", async { drop(connection.await) });
        }
    };
    let stopped = tasks.token().clone();
    tasks.spawn("upstream", async move {
        tokio::select! {
            () = accepting => {}
            () = stopped.cancelled() => {}
        }
    });
    Ok(address)
}

fn answer(mut request: Request<Incoming>, body: &Bytes, tasks: &Tasks) -> Response<Full<Bytes>> {
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY) else {
        let mut response = Response::new(Full::new(body.clone()));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        return response;
    };
    let accept = derive_accept_key(key.as_bytes());
    let upgraded = hyper::upgrade::on(&mut request);
    tasks.spawn("echo", async move {
        let Ok(upgraded) = upgraded.await else {
            return;
        };
        let io = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        while let Some(Ok(message)) = socket.next().await {
            if matches!(message, Message::Binary(_) | Message::Text(_))
                && socket.send(message).await.is_err()
            {
                return;
            }
        }
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::try_from(accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}
