//! The six services with their configurations, started in order and stopped in reverse.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use billing_svc::Billing;
use cloud_svc::Cloud;
use cnlab_db::DatabaseConfig;
use cnlab_proto::scheduler::v1::{
    ListProfilesRequest, catalog_service_client::CatalogServiceClient,
};
use cnlab_service::{
    CommonConfig, Running, Runtime, Secret, Service, StartError, channel, config::TelemetryConfig,
    run::bind, start,
};
use gateway::Gateway;
use migration_svc::Migration;
use node_svc::NodeSvc;
use node_svc::config::GpuSource;
use scheduler_svc::Scheduler;
use tokio::net::TcpListener;

use crate::data_folder::DataFolder;

/// A node registers at once; on a busy machine it may take longer.
const NODE_THERE: Duration = Duration::from_secs(60);

/// Where the GPUs of the local node come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuChoice {
    /// The machine's own, else simulated ones.
    Auto,
    /// The machine's own, else an error.
    Nvml,
    /// Simulated ones.
    Simulated,
}

/// What `cnlab up` can be told.
#[derive(Debug, Clone)]
pub struct UpConfig {
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// The gateway's port; 0 lets the system choose.
    pub port: u16,
    /// Where GPUs come from.
    pub gpu: GpuChoice,
    /// A Redis server for leases, in place of the embedded store.
    pub redis: Option<String>,
    /// A PostgreSQL server: `postgres://user@host:port`, in which each service finds a
    /// database of its own name with `_` for `-`. Without it, SQLite files.
    pub postgres: Option<String>,
    /// Where spans go; the process has set telemetry up by itself.
    pub telemetry: TelemetryConfig,
}

/// A running stack.
#[derive(Debug)]
pub struct Stack {
    gateway: Running<Gateway>,
    rest: Started,
    // Last: the folder is given free when everybody has ended.
    folder: DataFolder,
}

/// The services behind the gateway that have been started so far.
#[derive(Debug, Default)]
struct Started {
    billing: Option<Running<Billing>>,
    migration: Option<Running<Migration>>,
    cloud: Option<Running<Cloud>>,
    scheduler: Option<Running<Scheduler>>,
    node: Option<Running<NodeSvc>>,
}

/// One listener per service, bound before anybody starts so that everybody can be told
/// where the others are.
struct Listeners {
    gateway: TcpListener,
    scheduler: TcpListener,
    node: TcpListener,
    migration: TcpListener,
    cloud: TcpListener,
    billing: TcpListener,
}

impl Listeners {
    async fn bind(port: u16) -> Result<Self, StartError> {
        let inner = || bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        Ok(Self {
            gateway: bind(SocketAddr::from(([127, 0, 0, 1], port))).await?,
            scheduler: inner().await?,
            node: inner().await?,
            migration: inner().await?,
            cloud: inner().await?,
            billing: inner().await?,
        })
    }
}

fn address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|error| StartError::new("a listener has no address").caused_by(error))
}

fn endpoint(listener: &TcpListener) -> Result<String, StartError> {
    Ok(format!("http://{}", address(listener)?))
}

/// What the configurations of all services are made from.
struct Plan {
    config: UpConfig,
    key: Secret,
    scheduler: String,
    billing: String,
    port: u16,
}

impl Plan {
    fn common(&self, listener: &TcpListener) -> Result<CommonConfig, StartError> {
        Ok(CommonConfig {
            listen: address(listener)?,
            internal_key: self.key.clone(),
            telemetry: self.config.telemetry.clone(),
            ..CommonConfig::default()
        })
    }

    fn lease(&self) -> scheduler_svc::LeaseConfig {
        match &self.config.redis {
            Some(url) => scheduler_svc::LeaseConfig {
                store: scheduler_svc::LeaseStoreKind::Redis,
                url: Secret::new(url.clone()),
                ..scheduler_svc::LeaseConfig::default()
            },
            None => scheduler_svc::LeaseConfig::default(),
        }
    }

    fn database(&self, folder: &DataFolder, service: &str) -> DatabaseConfig {
        match &self.config.postgres {
            Some(server) => DatabaseConfig {
                url: format!(
                    "{}/{}",
                    server.trim_end_matches('/'),
                    service.replace('-', "_")
                ),
            },
            None => DatabaseConfig::sqlite(&folder.database(service)),
        }
    }
}

impl Stack {
    /// Starts the six services on a data folder and waits until the local node is known.
    ///
    /// # Errors
    /// When the folder is in use or cannot be written, the port is taken, a database is
    /// damaged, or a service does not start. Nothing is left running then.
    pub async fn start(config: UpConfig) -> Result<Self, StartError> {
        let folder = DataFolder::open(&config.data_dir)?;
        if config.postgres.is_none() {
            folder.check_databases(&[
                Billing::NAME,
                Migration::NAME,
                Cloud::NAME,
                Scheduler::NAME,
            ])?;
        }
        let runtime = Runtime::system();
        let listeners = Listeners::bind(config.port).await?;
        let plan = Plan {
            key: folder.internal_key(&runtime)?,
            scheduler: endpoint(&listeners.scheduler)?,
            billing: endpoint(&listeners.billing)?,
            port: address(&listeners.gateway)?.port(),
            config,
        };
        let mut started = Started::default();
        match started.start_all(&plan, &folder, &runtime, listeners).await {
            Ok(gateway) => Ok(Self {
                gateway,
                rest: started,
                folder,
            }),
            Err(error) => {
                started.stop_all().await;
                Err(error)
            }
        }
    }

    /// Where the gateway answers.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.gateway.endpoint()
    }

    /// The file that holds the local administrator's token.
    #[must_use]
    pub fn admin_token_file(&self) -> PathBuf {
        self.folder.admin_token()
    }

    /// The data folder, absolute.
    #[must_use]
    pub fn data_dir(&self) -> &std::path::Path {
        self.folder.root()
    }

    /// What the local node offers, and where that comes from, in a few words.
    #[must_use]
    pub fn gpus(&self) -> String {
        self.rest
            .node
            .as_ref()
            .map(|node| node.service().gpus().to_owned())
            .unwrap_or_default()
    }

    /// Whether the GPUs are simulated.
    #[must_use]
    pub fn simulated(&self) -> bool {
        self.rest
            .node
            .as_ref()
            .is_some_and(|node| node.service().is_simulated())
    }

    /// Ends every server of the local node, then every service, front door first.
    pub async fn stop(self) {
        self.gateway.stop().await;
        self.rest.stop_all().await;
    }
}

impl Started {
    /// In the order in which they need each other; the front door opens last.
    async fn start_all(
        &mut self,
        plan: &Plan,
        folder: &DataFolder,
        runtime: &Runtime,
        listeners: Listeners,
    ) -> Result<Running<Gateway>, StartError> {
        let billing = billing_svc::Config {
            common: plan.common(&listeners.billing)?,
            database: plan.database(folder, Billing::NAME),
            bootstrap: billing_svc::BootstrapConfig {
                token_file: Some(folder.admin_token()),
                ..billing_svc::BootstrapConfig::default()
            },
        };
        self.billing = Some(start::<Billing>(billing, runtime.fork(), listeners.billing).await?);

        let migration = migration_svc::Config {
            common: plan.common(&listeners.migration)?,
            database: plan.database(folder, Migration::NAME),
        };
        self.migration =
            Some(start::<Migration>(migration, runtime.fork(), listeners.migration).await?);

        let cloud = cloud_svc::Config {
            common: plan.common(&listeners.cloud)?,
            database: plan.database(folder, Cloud::NAME),
        };
        self.cloud = Some(start::<Cloud>(cloud, runtime.fork(), listeners.cloud).await?);

        let scheduler = scheduler_svc::Config {
            common: plan.common(&listeners.scheduler)?,
            database: plan.database(folder, Scheduler::NAME),
            lease: plan.lease(),
            notebook: scheduler_svc::NotebookConfig {
                port: plan.port,
                ..scheduler_svc::NotebookConfig::default()
            },
            billing: scheduler_svc::UpstreamConfig {
                endpoint: plan.billing.clone(),
            },
            ..scheduler_svc::Config::default()
        };
        self.scheduler =
            Some(start::<Scheduler>(scheduler, runtime.fork(), listeners.scheduler).await?);
        if plan.config.postgres.is_none() {
            folder.set_complete()?;
        }

        let node = node_svc::Config {
            common: plan.common(&listeners.node)?,
            scheduler: plan.scheduler.clone(),
            data_dir: folder.root().to_owned(),
            gpu: node_svc::config::GpuConfig {
                source: plan.config.gpu.into(),
                ..node_svc::config::GpuConfig::default()
            },
            ..node_svc::Config::default()
        };
        self.node = Some(start::<NodeSvc>(node, runtime.fork(), listeners.node).await?);
        wait_for_node(plan).await?;

        let gateway = gateway::Config {
            common: plan.common(&listeners.gateway)?,
            scheduler: plan.scheduler.clone(),
            billing: plan.billing.clone(),
            // One process on somebody's own machine: no threads of its own.
            threads: gateway::Threads::Shared,
            ..gateway::Config::default()
        };
        start::<Gateway>(gateway, runtime.fork(), listeners.gateway).await
    }

    /// In reverse order.
    async fn stop_all(self) {
        if let Some(node) = self.node {
            node.stop().await;
        }
        if let Some(scheduler) = self.scheduler {
            scheduler.stop().await;
        }
        if let Some(cloud) = self.cloud {
            cloud.stop().await;
        }
        if let Some(migration) = self.migration {
            migration.stop().await;
        }
        if let Some(billing) = self.billing {
            billing.stop().await;
        }
    }
}

/// Waits until the scheduler knows what the local node offers, so that the first question
/// of a user is not answered with an empty list.
async fn wait_for_node(plan: &Plan) -> Result<(), StartError> {
    let channel = channel::connect(&plan.scheduler, &plan.key, Duration::from_secs(5))?;
    let mut catalog = CatalogServiceClient::new(channel);
    let waited = tokio::time::timeout(NODE_THERE, async {
        loop {
            let profiles = catalog.list_profiles(ListProfilesRequest {}).await;
            let there = |profiles: &tonic::Response<_>| -> bool {
                let profiles: &cnlab_proto::scheduler::v1::ListProfilesResponse =
                    profiles.get_ref();
                profiles
                    .profiles
                    .iter()
                    .any(|profile| profile.available_now || profile.wait.is_some())
            };
            if profiles.as_ref().is_ok_and(there) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.map_err(|_| {
        StartError::new("the local node did not register with the scheduler")
            .try_this("look at the log above, then start again")
    })
}

impl From<GpuChoice> for GpuSource {
    fn from(choice: GpuChoice) -> Self {
        match choice {
            GpuChoice::Auto => Self::Auto,
            GpuChoice::Nvml => Self::Nvml,
            GpuChoice::Simulated => Self::Simulated,
        }
    }
}
