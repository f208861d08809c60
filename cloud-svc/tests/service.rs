//! The service alone, over real gRPC.

use cloud_svc::{Cloud, Config};
use cnlab_db::DatabaseConfig;
use cnlab_service::{CommonConfig, Runtime, Secret, channel, start};
use tokio::net::TcpListener;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

#[tokio::test]
async fn starts_on_an_empty_folder_and_again_on_what_it_left() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        common: CommonConfig {
            internal_key: Secret::new("k".repeat(32)),
            ..CommonConfig::on_port(0)
        },
        database: DatabaseConfig::sqlite(&folder.path().join("cloud-svc.sqlite")),
    };
    for _ in 0..2 {
        let listener = TcpListener::bind(config.common.listen).await.unwrap();
        let running = start::<Cloud>(config.clone(), Runtime::system(), listener)
            .await
            .unwrap();
        let health = HealthClient::new(channel::plain(&running.endpoint()).unwrap())
            .check(HealthCheckRequest {
                service: "cloud-svc".to_owned(),
            })
            .await
            .unwrap();
        assert_eq!(health.into_inner().status, 1, "SERVING");
        running.stop().await;
    }
}

#[tokio::test]
async fn a_corrupt_database_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud-svc.sqlite");
    std::fs::write(&path, b"this is no database").unwrap();
    let config = Config {
        common: CommonConfig::on_port(0),
        database: DatabaseConfig::sqlite(&path),
    };
    let listener = TcpListener::bind(config.common.listen).await.unwrap();
    let error = start::<Cloud>(config, Runtime::system(), listener)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("cloud-svc.sqlite"), "{error}");
    assert!(error.advice().is_some(), "{error:?}");
}
