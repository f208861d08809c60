//! What an operator sees of each service: its subcommands, its health, its methods.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use cnlab_tests::{
    cli,
    six::{self, SERVICES, Six},
};
use futures_util::{StreamExt as _, stream};
use tokio::process::Command;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::on_six;

/// What every service answers beside its own methods.
const EVERYWHERE: [&str; 2] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
];
/// What each service answers, and nothing else.
const OWN: [(&str, &[&str]); 6] = [
    (
        "billing-svc",
        &[
            "cnlab.billing.v1.AccountService",
            "cnlab.billing.v1.CredentialService",
            "cnlab.billing.v1.MeterService",
            "cnlab.billing.v1.UsageService",
        ],
    ),
    ("migration-svc", &["cnlab.migration.v1.MigrationService"]),
    ("cloud-svc", &["cnlab.cloud.v1.CloudService"]),
    (
        "scheduler-svc",
        &[
            "cnlab.scheduler.v1.CatalogService",
            "cnlab.scheduler.v1.NodeService",
            "cnlab.scheduler.v1.QueueService",
            "cnlab.scheduler.v1.RosterService",
            "cnlab.scheduler.v1.RunService",
            "cnlab.scheduler.v1.ServerService",
        ],
    ),
    ("node-svc", &["cnlab.node.v1.NodeService"]),
    (
        "gateway",
        &[
            "cnlab.billing.v1.AccountService",
            "cnlab.billing.v1.UsageService",
            "cnlab.scheduler.v1.CatalogService",
            "cnlab.scheduler.v1.NodeService",
            "cnlab.scheduler.v1.QueueService",
            "cnlab.scheduler.v1.RunService",
            "cnlab.scheduler.v1.ServerService",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_answer_everywhere() -> Result<()> {
    on_six(None, async |six| {
        for service in SERVICES {
            for name in ["", service] {
                let health = six::health(six.channel(service)?, name).await?;
                ensure!(
                    health == ServingStatus::Serving,
                    "{service} {name:?}: {health:?}"
                );
            }
            let unknown = six::health(six.channel(service)?, "nobody").await;
            ensure!(
                unknown.is_err_and(|status| status.code() == tonic::Code::NotFound),
                "{service} knows a service that does not exist"
            );
        }
        for (service, own) in OWN {
            let mut wanted = [own, &EVERYWHERE].concat();
            let mut listed = reflected(six, service).await?;
            wanted.sort_unstable();
            listed.sort_unstable();
            ensure!(listed == wanted, "{service} lists {listed:?}");
        }
        subcommands(six).await
    })
    .await
}

async fn reflected(six: &Six, service: &str) -> Result<Vec<String>> {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(six.channel(service)?)
        .server_reflection_info(stream::iter([request]))
        .await?
        .into_inner();
    let answer = answers.next().await.context("no answer")??;
    match answer.message_response {
        Some(MessageResponse::ListServicesResponse(list)) => Ok(list
            .service
            .into_iter()
            .map(|service| service.name)
            .collect()),
        other => anyhow::bail!("{service} answered {other:?}"),
    }
}

async fn subcommands(six: &Six) -> Result<()> {
    let key = std::fs::read_to_string(six.key_file())?;
    for service in SERVICES {
        let version = six.run_once(service, &["version"]).await?;
        ensure!(
            version.trim() == format!("{service} {}", env!("CARGO_PKG_VERSION")),
            "{version}"
        );
        let printed = six.run_once(service, &["print-config"]).await?;
        ensure!(!printed.contains(key.trim()), "{service} prints its key");
        ensure!(printed.contains("internal_key = \"***\""), "{printed}");
        ensure!(
            printed.contains(&format!("listen = \"127.0.0.1:{}\"", six.port(service))),
            "{printed}"
        );
        let secret = [
            "--set",
            "database.url=postgres://somebody:geheim@127.0.0.1/x",
            "print-config",
        ];
        if six.database(service).is_ok() {
            let printed = six.run_once(service, &secret).await?;
            ensure!(!printed.contains("geheim"), "{service} prints a password");
        }
        let checked = six.run_once(service, &["check-config"]).await?;
        ensure!(checked.contains("makes sense"), "{checked}");
    }
    Ok(())
}

/// A file with a short key, and one more fault of the service's own.
const BAD: [(&str, &str, &str); 6] = [
    (
        "billing-svc",
        "[bootstrap]\nadmin_user = \"Ada L\"\n",
        "bootstrap.admin_user",
    ),
    (
        "migration-svc",
        "[database]\nurl = \"mysql://x\"\n",
        "database.url",
    ),
    (
        "cloud-svc",
        "[database]\nurl = \"mysql://x\"\n",
        "database.url",
    ),
    (
        "scheduler-svc",
        "[notebook]\ndomain = \"no host\"\n",
        "notebook.domain",
    ),
    ("node-svc", "name = \"a/b\"\n", "name"),
    ("gateway", "scheduler = \"nowhere\"\n", "scheduler"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_is_refused_with_every_fault() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (service, fault, key) in BAD {
        let file = folder.path().join("bad.toml");
        std::fs::write(
            &file,
            format!(
                "{fault}\n[common]\ninternal_key = \"short\"\n\
                 [common.telemetry]\notlp_endpoint = \"here\"\n"
            ),
        )?;
        let said = refused(service, &file).await?;
        for key in [key, "common.internal_key", "common.telemetry.otlp_endpoint"] {
            ensure!(
                said.contains(&format!("  {key}: ")),
                "{key} is not named: {said}"
            );
        }
        ensure!(said.contains("3 fault(s)"), "{said}");
        ensure!(!said.contains("short"), "the key is shown: {said}");

        std::fs::write(&file, "lisden = 1\n[common]\nlisden = 2\n")?;
        let said = refused(service, &file).await?;
        ensure!(said.contains("lisden"), "{said}");
    }
    Ok(())
}

/// What `check-config` says of a file that it must refuse.
async fn refused(service: &str, file: &std::path::Path) -> Result<String> {
    let output = Command::new(cli::binary(service)?)
        .arg("--config")
        .arg(file)
        .arg("check-config")
        .stdin(Stdio::null())
        .output()
        .await?;
    ensure!(
        output.status.code() == Some(2) && output.stdout.is_empty(),
        "{service} took a bad file: {output:?}"
    );
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}
