//! gRPC of the command line tool.

use std::{str::FromStr as _, time::Duration};

use cnlab_proto::{
    billing::v1::{
        AuthenticateTokenRequest, WhoAmIRequest, account_service_client::AccountServiceClient,
        credential_service_client::CredentialServiceClient,
    },
    scheduler::v1 as pb,
    scheduler::v1::{
        roster_service_client::RosterServiceClient, server_service_client::ServerServiceClient,
    },
};
use tonic::{Code, Request, metadata::MetadataValue, transport::Channel};
use tonic_types::StatusExt as _;

use crate::world::{GENEROUS, TOKEN, World};

async fn channel(world: &World) -> Channel {
    Channel::from_shared(world.gateway.endpoint())
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn signed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let token = MetadataValue::from_str(&format!("Bearer {TOKEN}")).unwrap();
    request.metadata_mut().insert("authorization", token);
    request
}

#[tokio::test]
async fn public_methods_pass_with_their_errors_and_trailers() {
    let world = World::start().await;
    let channel = channel(&world).await;
    let mut servers = ServerServiceClient::new(channel.clone());
    let name = "first".to_owned();
    let made = servers
        .create_server(signed(pb::CreateServerRequest {
            name,
            storage_bytes: 1,
            ..Default::default()
        }))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.name, "first");
    assert_eq!(made.owner_id, "usr_00000000000000000000000001");
    let error = servers
        .get_server(signed(pb::GetServerRequest {
            server: "missing".into(),
        }))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(
        error.get_details_error_info().unwrap().reason,
        "SERVER_NOT_FOUND",
        "details are kept"
    );
    let me = AccountServiceClient::new(channel)
        .who_am_i(signed(WhoAmIRequest {}))
        .await
        .unwrap();
    assert_eq!(me.get_ref().user_name, "user1");
    let created = world.scheduler.service().0.lock().unwrap().created.clone();
    let (_, metadata) = &created[0];
    assert!(
        metadata.contains_key("idempotency-key") && !metadata.contains_key("authorization"),
        "{metadata:?}"
    );
    world.stop().await;
}

#[tokio::test]
async fn streams_pass_message_by_message() {
    let world = World::start().await;
    let mut servers = ServerServiceClient::new(channel(&world).await);
    let mut watched = servers
        .watch_server(signed(pb::WatchServerRequest {
            server: "forever".into(),
        }))
        .await
        .unwrap()
        .into_inner();
    for expected in ["forever", "second"] {
        let message = tokio::time::timeout(GENEROUS, watched.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(message.name, expected);
    }
    let mut failing = servers
        .watch_server(signed(pb::WatchServerRequest {
            server: "failing".into(),
        }))
        .await
        .unwrap()
        .into_inner();
    let error = loop {
        match failing.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the error is missing"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.get_details_error_info().unwrap().reason, "NODE_LOST");
    drop((watched, failing, servers));
    world.stop().await;
}

#[tokio::test]
async fn internal_methods_do_not_exist() {
    let world = World::start().await;
    let channel = channel(&world).await;
    let token = AuthenticateTokenRequest {
        token: TOKEN.into(),
    };
    let error = CredentialServiceClient::new(channel.clone())
        .authenticate_token(signed(token))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    let route = pb::ResolveRouteRequest {
        server_id: crate::peers::server(7).to_string(),
    };
    let error = RosterServiceClient::new(channel)
        .resolve_route(signed(route))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    world.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let world = World::start().await;
    let mut servers = ServerServiceClient::new(channel(&world).await);
    let error = servers
        .list_servers(Request::new(pb::ListServersRequest::default()))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated);
    assert_eq!(
        error.get_details_error_info().unwrap().reason,
        "TOKEN_MISSING"
    );
    let mut forged = Request::new(pb::ListServersRequest::default());
    for (name, value) in [
        ("cnlab-caller-user-id", "usr_00000000000000000000000001"),
        ("cnlab-internal-key", "0123456789abcdef0123456789abcdef"),
    ] {
        forged.metadata_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(
        servers.list_servers(forged).await.unwrap_err().code(),
        Code::Unauthenticated
    );
    assert!(world.scheduler.service().0.lock().unwrap().calls.is_empty());
    drop(servers);
    world.stop().await;
}

#[tokio::test]
async fn a_callers_deadline_holds() {
    let world = World::start().await;
    let mut servers = ServerServiceClient::new(channel(&world).await);
    let mut request = signed(pb::GetServerRequest {
        server: "slow".into(),
    });
    request
        .metadata_mut()
        .insert("grpc-timeout", "200m".parse().unwrap());
    let answer = tokio::time::timeout(GENEROUS, servers.get_server(request))
        .await
        .unwrap();
    // The client's own timer runs beside, and calls it cancelled.
    let code = answer.unwrap_err().code();
    assert!(
        matches!(code, Code::DeadlineExceeded | Code::Cancelled),
        "{code:?}"
    );
    drop(servers);
    world.stop().await;
}

#[tokio::test]
async fn messages_over_the_limit_are_refused() {
    let world = World::start().await;
    let mut servers = ServerServiceClient::new(channel(&world).await);
    let name = "x".repeat(2 << 20);
    let error = servers
        .create_server(signed(pb::CreateServerRequest {
            name,
            ..Default::default()
        }))
        .await
        .unwrap_err();
    assert!(
        matches!(error.code(), Code::ResourceExhausted | Code::Unavailable),
        "{error:?}"
    );
    assert!(
        world
            .scheduler
            .service()
            .0
            .lock()
            .unwrap()
            .created
            .is_empty()
    );
    drop(servers);
    world.stop().await;
}

#[tokio::test]
async fn health_needs_no_token() {
    let world = World::start().await;
    let channel = channel(&world).await;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let request = Request::new(bytes::Bytes::new());
    let answer = tokio::time::timeout(
        Duration::from_secs(60),
        client.unary(request, path, gateway::transcode::codec::BytesCodec),
    );
    // Field 1, SERVING.
    assert_eq!(answer.await.unwrap().unwrap().into_inner().as_ref(), [8, 1]);
    drop(client);
    world.stop().await;
}
