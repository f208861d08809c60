//! Create → Ready on a whole stack, and how much of it is the control plane's.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use cnlab_proto::scheduler::v1::{
    CreateServerRequest, DeleteServerRequest, Server, ServerState, WatchServerRequest,
    server_service_client::ServerServiceClient,
};
use cnlab_service::{Runtime, channel};
use cnlab_testkit::{OtlpReceiver, ScratchDir, SpanRecord, free_port};
use cnlab_tests::{cli::Cli, stack::Up};
use tokio::time::Instant;
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use crate::{
    Extent,
    figures::{median, millis, quantile},
    rows::{Row, say},
};

/// What is created: the smallest image, so that the warm part is what a user of any image
/// waits for.
pub(crate) const IMAGE: &str = "jupyter:minimal";
/// On which slice.
pub(crate) const PROFILE: &str = "l40s-block";
/// With how much storage.
pub(crate) const STORAGE: &str = "1gb";
const STORAGE_BYTES: u64 = 1_000_000_000;

/// The span of the node that lasts as long as a workload does, and what it notes when the
/// workload reaches a phase.
const LIFE: &str = "node.RunWorkload";
const PHASE_CHANGED: &str = "workload changed";

/// A stack that runs, with somebody signed in and the image's environment built.
pub(crate) struct Site {
    pub(crate) cli: Cli,
    up: Up,
    spans: OtlpReceiver,
    token: String,
    _folder: ScratchDir,
}

impl Site {
    /// Starts `cnlab up` and builds the environment.
    pub(crate) async fn start() -> Result<Self> {
        let spans = OtlpReceiver::start()?;
        let cli = Cli::new()?.with_env("CNLAB_OTLP_ENDPOINT", spans.endpoint());
        let folder = ScratchDir::new("front")?;
        let data: PathBuf = folder.path().join("data");
        let up = Up::start(&cli, &data, free_port()?, &[]).await?;
        cli.login(up.endpoint(), &up.admin_token()).await?;
        let token = std::fs::read_to_string(up.admin_token())?.trim().to_owned();
        let site = Self {
            cli,
            up,
            spans,
            token,
            _folder: folder,
        };
        say("building the environment, which is not measured");
        if let Err(error) = site.build().await {
            let said = site.up.said();
            site.stop().await?;
            return Err(error.context(said));
        }
        Ok(site)
    }

    async fn build(&self) -> Result<()> {
        self.create("warm-up").await?;
        self.delete("warm-up").await
    }

    /// `cnlab server create`, until it is ready.
    pub(crate) async fn create(&self, name: &str) -> Result<()> {
        let arguments = [
            "server",
            "create",
            "--name",
            name,
            "--image",
            IMAGE,
            "--profile",
            PROFILE,
            "--storage",
            STORAGE,
        ];
        self.cli.ok(&arguments).await.map(drop)
    }

    /// `cnlab server delete`, until it is gone.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.cli
            .ok(&["server", "delete", name, "--yes"])
            .await
            .map(drop)
    }

    /// Ends the stack and its servers.
    pub(crate) async fn stop(self) -> Result<()> {
        self.up.interrupt().await.map(drop)
    }
}

/// One creation as its user saw it.
struct Creation {
    trace: String,
    /// From the call to the news that it is ready, in milliseconds.
    total: f64,
}

/// Creates servers one after another through the public API.
pub(crate) async fn measure(site: &Site, extent: Extent) -> Result<Vec<Row>> {
    let runtime = Runtime::system();
    let client = Client {
        servers: ServerServiceClient::new(channel::plain(site.up.endpoint())?),
        token: format!("Bearer {}", site.token).parse()?,
    };
    let count = extent.pick(25, 3);
    let mut creations = Vec::new();
    for number in 0..count {
        let trace = format!("{:032x}", runtime.ids.ulid().0);
        let name = format!("bench-{number}");
        creations.push(client.create(&name, &trace).await?);
        client.delete(&name).await?;
        say(&format!("created {} of {count}", number + 1));
    }
    let spans = site
        .spans
        .wait_for("the spans of every life", |spans| {
            creations
                .iter()
                .all(|creation| life(spans, &creation.trace).is_some())
        })
        .await?;
    let lives = creations
        .iter()
        .map(|creation| {
            let span = life(&spans, &creation.trace).context("a life without a span")?;
            Life::of(span)
        })
        .collect::<Result<Vec<_>>>()?;
    rows(&creations, &lives)
}

fn life<'a>(spans: &'a [SpanRecord], trace: &str) -> Option<&'a SpanRecord> {
    spans
        .iter()
        .find(|span| span.trace_id == trace && span.name == LIFE)
}

/// When a workload got where, in milliseconds since its node accepted it.
#[derive(Debug, Clone, Copy)]
struct Life {
    process_runs: f64,
    page_answers: f64,
}

impl Life {
    fn of(span: &SpanRecord) -> Result<Self> {
        let reached = |phase: &str| {
            span.events
                .iter()
                .find(|event| {
                    event.name == PHASE_CHANGED
                        && event.attributes.get("phase").is_some_and(|it| it == phase)
                })
                .map(|event| {
                    #[expect(
                        clippy::cast_precision_loss,
                        reason = "nanoseconds of seconds are far below 2^52"
                    )]
                    let nanos = event.time_ns.saturating_sub(span.start_ns) as f64;
                    nanos / 1e6
                })
                .with_context(|| {
                    format!("the span of a life does not say when it was {phase}: {span:?}")
                })
        };
        Ok(Self {
            process_runs: reached("WaitingForPage")?,
            page_answers: reached("Ready")?,
        })
    }
}

fn rows(creations: &[Creation], lives: &[Life]) -> Result<Vec<Row>> {
    let pairs = || creations.iter().zip(lives);
    let totals: Vec<f64> = creations.iter().map(|creation| creation.total).collect();
    let starts: Vec<f64> = lives
        .iter()
        .map(|life| life.page_answers - life.process_runs)
        .collect();
    let nodes: Vec<f64> = lives.iter().map(|life| life.process_runs).collect();
    let shares: Vec<f64> = pairs()
        .map(|(creation, life)| creation.total - (life.page_answers - life.process_runs))
        .collect();
    let services: Vec<f64> = pairs()
        .map(|(creation, life)| creation.total - life.page_answers)
        .collect();
    ensure!(
        services.iter().all(|share| *share >= 0.0),
        "a server was ready before its page answered: {services:?}"
    );
    let each = format!("{} creations, one after another", creations.len());
    let p50 = |values: &[f64]| median(values).context("nothing was created");
    let row = |name: &str, value| Row::new(format!("(a) {name}"), value, "ms", &each);
    Ok(vec![
        row("create to Ready, p50", p50(&totals)?),
        row("of it JupyterLab's own start, p50", p50(&starts)?),
        row("of it the node until the process runs, p50", p50(&nodes)?),
        row("of it gateway and scheduler, p50", p50(&services)?),
        row("control-plane share of create to Ready, p50", p50(&shares)?).target("<= 100"),
        row(
            "control-plane share of create to Ready, p90",
            quantile(&shares, 0.9).context("nothing was created")?,
        ),
    ])
}

struct Client {
    servers: ServerServiceClient<Channel>,
    token: MetadataValue<Ascii>,
}

impl Client {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("authorization", self.token.clone());
        request
    }

    async fn create(&self, name: &str, trace: &str) -> Result<Creation> {
        let mut request = self.request(CreateServerRequest {
            name: name.to_owned(),
            image: IMAGE.to_owned(),
            profile: PROFILE.to_owned(),
            storage_bytes: STORAGE_BYTES,
            ..CreateServerRequest::default()
        });
        let parent: MetadataValue<Ascii> = format!("00-{trace}-00000000000000ff-01").parse()?;
        let metadata = request.metadata_mut();
        metadata.insert("traceparent", parent);
        metadata.insert("idempotency-key", trace.parse()?);
        let began = Instant::now();
        let created = self.servers.clone().create_server(request).await?;
        self.wait(created.into_inner(), ServerState::Ready).await?;
        Ok(Creation {
            trace: trace.to_owned(),
            total: millis(began.elapsed()),
        })
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let request = self.request(DeleteServerRequest {
            server: name.to_owned(),
        });
        let deleting = self.servers.clone().delete_server(request).await?;
        self.wait(deleting.into_inner(), ServerState::Deleted).await
    }

    async fn wait(&self, server: Server, state: ServerState) -> Result<()> {
        if server.state() == state {
            return Ok(());
        }
        let request = self.request(WatchServerRequest { server: server.id });
        let mut changes = match self.servers.clone().watch_server(request).await {
            // It was gone before the watch began.
            Err(status)
                if state == ServerState::Deleted && status.code() == tonic::Code::NotFound =>
            {
                return Ok(());
            }
            changes => changes?.into_inner(),
        };
        while let Some(server) = changes.message().await? {
            if server.state() == state {
                return Ok(());
            }
            if server.state() == ServerState::Failed {
                bail!("server {} failed: {:?}", server.name, server.failure);
            }
        }
        bail!("the watch of {} ended early", server.name)
    }
}
