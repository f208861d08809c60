//! The kit as a service meets it: a real listener, real gRPC, health, reflection, the
//! internal key and the end.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cnlab_service::{
    CommonConfig, ConfigFault, Runtime, Secret, Service, ServiceConfig, StartError, channel, net,
    start,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::{Code, service::Routes};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const KEY: &str = "0123456789abcdef0123456789abcdef";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    common: CommonConfig,
}

impl ServiceConfig for Config {
    fn validate(&self) -> Vec<ConfigFault> {
        self.common.validate()
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

struct Empty;

#[async_trait]
impl Service for Empty {
    const NAME: &'static str = "empty-svc";
    const DEFAULT_PORT: u16 = 0;
    type Config = Config;

    async fn build(_: Config, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::default()
    }
}

fn config() -> Config {
    Config {
        common: CommonConfig {
            internal_key: Secret::new(KEY.to_owned()),
            ..CommonConfig::on_port(0)
        },
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test]
async fn health_answers_without_a_key_and_everything_else_wants_one() {
    let running = start::<Empty>(config(), Runtime::system(), listener().await)
        .await
        .unwrap();
    let bare = channel::plain(&running.endpoint()).unwrap();
    let health = HealthClient::new(bare.clone())
        .check(HealthCheckRequest {
            service: "empty-svc".to_owned(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(health.status, 1, "SERVING");

    let mut unknown =
        cnlab_proto::billing::v1::account_service_client::AccountServiceClient::new(bare);
    let refused = unknown
        .who_am_i(cnlab_proto::billing::v1::WhoAmIRequest {})
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);

    let wrong = channel::connect(
        &running.endpoint(),
        &Secret::new("x".repeat(32)),
        Duration::from_secs(5),
    )
    .unwrap();
    let mut wrong =
        cnlab_proto::billing::v1::account_service_client::AccountServiceClient::new(wrong);
    assert_eq!(
        wrong
            .who_am_i(cnlab_proto::billing::v1::WhoAmIRequest {})
            .await
            .unwrap_err()
            .code(),
        Code::Unauthenticated
    );

    let known = channel::connect(
        &running.endpoint(),
        &Secret::new(KEY.to_owned()),
        Duration::from_secs(5),
    )
    .unwrap();
    let mut known =
        cnlab_proto::billing::v1::account_service_client::AccountServiceClient::new(known);
    let absent = known
        .who_am_i(cnlab_proto::billing::v1::WhoAmIRequest {})
        .await
        .unwrap_err();
    assert_eq!(
        absent.code(),
        Code::Unimplemented,
        "let in, but this service has no such method"
    );
    running.stop().await;
}

#[tokio::test]
async fn the_port_is_free_after_the_stop() {
    let running = start::<Empty>(config(), Runtime::system(), listener().await)
        .await
        .unwrap();
    let addr = running.addr();
    running.stop().await;
    TcpListener::bind(addr).await.unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_one_clear_error() {
    let taken = listener().await;
    let error = cnlab_service::run::bind(taken.local_addr().unwrap())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("cannot listen on 127.0.0.1:"),
        "{error}"
    );
    assert!(
        error.advice().unwrap().contains("another port"),
        "{error:?}"
    );
}

#[tokio::test]
async fn more_connections_of_one_address_than_allowed_are_closed_and_others_go_on() {
    let limits = net::Limits {
        per_ip: 2,
        ..net::Limits::internal()
    };
    let listener = listener().await;
    let addr = listener.local_addr().unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let service = tower::util::service_fn(|_request: http::Request<hyper::body::Incoming>| {
        std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(
            http_body_util::Empty::<bytes::Bytes>::new(),
        )))
    });
    let serving = Runtime::system()
        .tasks
        .spawn("serve", net::serve(listener, service, limits, stop.clone()));
    let ask = |mut stream: TcpStream| async move {
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        Some((stream, answer))
    };
    let first = ask(TcpStream::connect(addr).await.unwrap()).await.unwrap();
    let second = ask(TcpStream::connect(addr).await.unwrap()).await.unwrap();
    assert_eq!(&first.1, b"HTTP/1.1 200");
    assert!(
        ask(TcpStream::connect(addr).await.unwrap()).await.is_none(),
        "the third is closed"
    );
    drop(second);
    // The place is free again as soon as the server has seen the close.
    let again = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            if let Some(answered) = ask(TcpStream::connect(addr).await.unwrap()).await {
                break answered;
            }
        }
    });
    again.await.unwrap();
    stop.cancel();
    drop(first);
    serving.await.unwrap().unwrap();
}
