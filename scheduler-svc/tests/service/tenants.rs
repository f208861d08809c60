//! What belongs to others does not exist (S-01).

use cnlab_model::ErrorKind;
use cnlab_proto::scheduler::v1 as pb;
use cnlab_service::status::PublicError;

use crate::{
    on_both,
    world::{Database, World, ada, ask, by, done, person},
};

async fn nobody_sees_the_servers_of_others(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let server = world.ready(&ada(), &node, "secret").await;
    let bob = person(2, &["bob/default"]);
    for wanted in [server.id.as_str(), "secret", "ada/default/secret"] {
        let name = || wanted.to_owned();
        let mut servers = world.servers();
        let answers: Vec<Result<(), Box<PublicError>>> = vec![
            world.get(&bob, wanted).await.map(drop),
            world.start_server(&bob, wanted).await.map(drop),
            world.stop_server(&bob, wanted).await.map(drop),
            world.delete_server(&bob, wanted).await.map(drop),
            done(
                servers
                    .watch_server(by(&bob, pb::WatchServerRequest { server: name() }))
                    .await,
            )
            .map(drop),
            done(
                servers
                    .open_server(by(&bob, pb::OpenServerRequest { server: name() }))
                    .await,
            )
            .map(drop),
            done(
                servers
                    .get_server_logs(by(
                        &bob,
                        pb::GetServerLogsRequest {
                            server: name(),
                            ..pb::GetServerLogsRequest::default()
                        },
                    ))
                    .await,
            )
            .map(drop),
        ];
        for answer in answers {
            let refused = answer.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::NotFound);
            assert_eq!(refused.reason, "SERVER_NOT_FOUND");
            assert_eq!(refused.try_this.as_deref(), Some("see `cnlab server list`"));
        }
    }
    let list = by(&bob, pb::ListServersRequest::default());
    let seen = world
        .servers()
        .list_servers(list)
        .await
        .unwrap()
        .into_inner();
    assert!(seen.servers.is_empty());
    let list = by(
        &bob,
        pb::ListServersRequest {
            project: "ada/default".to_owned(),
            ..pb::ListServersRequest::default()
        },
    );
    let refused = done(world.servers().list_servers(list).await).unwrap_err();
    assert_eq!(refused.reason, "PROJECT_NOT_FOUND");
    // Ada's is as it was.
    assert_eq!(world.get(&ada(), "secret").await.unwrap(), server);

    // Nobody at all: refused before anything is looked at.
    let request = tonic::Request::new(ask("a"));
    let refused = done(world.servers().create_server(request).await).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unauthenticated);
}

on_both!(nobody_sees_the_servers_of_others);
