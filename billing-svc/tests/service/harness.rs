//! A billing-svc on a database of its own, and clients for it.

use std::{path::PathBuf, time::Duration};

use billing_core::token::{Kind, Token};
use billing_svc::{Billing, BootstrapConfig, Config};
use cnlab_db::{DatabaseConfig, Db, DbError};
use cnlab_model::{Timestamp, id::ServerId};
use cnlab_proto::{
    billing::v1::{
        self as pb, account_service_client::AccountServiceClient,
        credential_service_client::CredentialServiceClient,
        meter_service_client::MeterServiceClient, usage_service_client::UsageServiceClient,
    },
    convert::encode_timestamp,
};
use cnlab_service::{
    Caller, CommonConfig, Running, Runtime, Secret, StartError,
    channel::{self, UpstreamChannel},
    runtime::{SeededIds, TestClock},
};
use cnlab_testkit::{PostgresServer, ScratchDir};
use sea_orm::ConnectionTrait;
use tokio::net::TcpListener;
use tonic::{Request, Status};

pub(crate) const NOON: Timestamp = Timestamp(1_800_000_000_000_000);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn at(time: Timestamp) -> prost_types::Timestamp {
    encode_timestamp(time)
}

pub(crate) fn key_of(letter: char) -> Secret {
    Secret::new(letter.to_string().repeat(40))
}

/// Well-formed, and nobody's.
pub(crate) fn strangers_token() -> String {
    Token::from_random(Kind::User, &[42; 32])
        .expose()
        .to_owned()
}

pub(crate) struct Bench {
    pub(crate) clock: TestClock,
    config: Config,
    starts: u64,
    running: Option<Running<Billing>>,
    dir: ScratchDir,
}

impl Bench {
    pub(crate) async fn sqlite() -> Self {
        let dir = ScratchDir::new("billing").unwrap();
        let database = DatabaseConfig::sqlite(&dir.path().join("billing.sqlite"));
        Self::start(database, dir).await
    }

    pub(crate) async fn postgres() -> Self {
        let url = Self::new_postgres().await;
        Self::start(DatabaseConfig { url }, ScratchDir::new("billing").unwrap()).await
    }

    async fn new_postgres() -> String {
        let server = PostgresServer::shared().await.unwrap();
        server.create_database().await.unwrap()
    }

    async fn start(database: DatabaseConfig, dir: ScratchDir) -> Self {
        let config = Config {
            common: CommonConfig {
                internal_key: key_of('k'),
                ..CommonConfig::on_port(0)
            },
            database,
            bootstrap: BootstrapConfig {
                token_file: Some(dir.path().join("admin.token")),
                ..BootstrapConfig::default()
            },
        };
        let mut bench = Self {
            clock: TestClock::at(NOON),
            config,
            starts: 0,
            running: None,
            dir,
        };
        bench.restart().await.unwrap();
        bench
    }

    /// Ends the service if it runs and starts it on the same files.
    pub(crate) async fn restart(&mut self) -> Result<(), StartError> {
        self.end().await;
        self.starts += 1;
        // Other secrets in every life, as in reality.
        let runtime = Runtime::for_tests(self.clock.clone(), SeededIds::new(self.starts));
        let listener = TcpListener::bind(self.config.common.listen).await.unwrap();
        let running = cnlab_service::start::<Billing>(self.config.clone(), runtime, listener);
        self.running = Some(running.await?);
        Ok(())
    }

    async fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    /// Ends the service and takes its database away.
    pub(crate) async fn lose_database(&mut self) {
        self.end().await;
        match self.config.database.sqlite_path() {
            Some(path) => std::fs::remove_file(path).unwrap(),
            None => self.config.database.url = Self::new_postgres().await,
        }
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.path().join("admin.token")
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.token_file())
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// A statement behind the service's back.
    pub(crate) async fn execute(&self, sql: &str) {
        let db = Db::connect(&self.config.database).await.unwrap();
        db.write(|tx| async move {
            tx.execute_unprepared(sql).await?;
            Ok::<_, DbError>(())
        })
        .await
        .unwrap();
        db.close().await;
    }

    /// Everything in the database as text.
    pub(crate) async fn dump(&self) -> String {
        let Some(path) = self.config.database.sqlite_path() else {
            let server = PostgresServer::shared().await.unwrap();
            let sql = "SELECT table_to_xml(c.oid, true, false, '') FROM pg_class c \
                       JOIN pg_namespace n ON n.oid = c.relnamespace \
                       WHERE c.relkind = 'r' AND n.nspname = 'public'";
            return server.query(&self.config.database.url, sql).await.unwrap();
        };
        let mut all = String::new();
        for suffix in ["", "-wal"] {
            let mut file = path.clone().into_os_string();
            file.push(suffix);
            all.push_str(&String::from_utf8_lossy(&std::fs::read(file).unwrap()));
        }
        all
    }

    fn channel(&self, key: &Secret) -> UpstreamChannel {
        let endpoint = self.running.as_ref().unwrap().endpoint();
        channel::connect(&endpoint, key, cnlab_testkit::GENEROUS).unwrap()
    }

    pub(crate) fn accounts(&self) -> AccountServiceClient<UpstreamChannel> {
        AccountServiceClient::new(self.channel(&key_of('k')))
    }

    pub(crate) fn credentials(&self) -> CredentialServiceClient<UpstreamChannel> {
        self.credentials_with(&key_of('k'))
    }

    pub(crate) fn credentials_with(
        &self,
        key: &Secret,
    ) -> CredentialServiceClient<UpstreamChannel> {
        CredentialServiceClient::new(self.channel(key))
    }

    pub(crate) fn meter(&self) -> MeterServiceClient<UpstreamChannel> {
        MeterServiceClient::new(self.channel(&key_of('k')))
    }

    pub(crate) fn usage(&self) -> UsageServiceClient<UpstreamChannel> {
        UsageServiceClient::new(self.channel(&key_of('k')))
    }

    /// A request on behalf of somebody, as the gateway makes it.
    pub(crate) fn as_caller<T>(&self, who: &pb::Identity, message: T) -> Request<T> {
        let caller = Caller {
            user_id: who.user_id.parse().unwrap(),
            user_name: who.user_name.clone(),
            team_id: who.team_id.parse().unwrap(),
            projects: who
                .projects
                .iter()
                .map(|name| name.parse().unwrap())
                .collect(),
        };
        let mut request = Request::new(message);
        let mut headers = std::mem::take(request.metadata_mut()).into_headers();
        caller.write_to(&mut headers);
        *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        request
    }

    pub(crate) async fn authenticate(&self, token: &str) -> Result<pb::Identity, Status> {
        let token = token.to_owned();
        let request = pb::AuthenticateTokenRequest { token };
        Ok(self
            .credentials()
            .authenticate_token(request)
            .await?
            .into_inner())
    }

    pub(crate) async fn admin(&self) -> pb::Identity {
        self.authenticate(&self.token()).await.unwrap()
    }

    /// A code of the admin for this server.
    pub(crate) async fn issue(&self, server: ServerId) -> String {
        let user_id = self.admin().await.user_id;
        let server_id = server.to_string();
        let request = pb::IssueOpenCodeRequest { user_id, server_id };
        let issued = self
            .credentials()
            .issue_open_code(request)
            .await
            .unwrap()
            .into_inner();
        let expires_at = self.clock_now().plus(Duration::from_secs(60));
        assert_eq!(issued.expires_at, Some(at(expires_at)));
        issued.code
    }

    fn clock_now(&self) -> Timestamp {
        use cnlab_service::runtime::Clock;
        self.clock.now()
    }

    pub(crate) async fn redeem(&self, code: &str, server: ServerId) -> Result<String, Status> {
        let request = pb::RedeemOpenCodeRequest {
            code: code.to_owned(),
            server_id: server.to_string(),
        };
        Ok(self
            .credentials()
            .redeem_open_code(request)
            .await?
            .into_inner()
            .session)
    }

    pub(crate) async fn session(
        &self,
        session: &str,
        server: ServerId,
    ) -> Result<pb::Identity, Status> {
        let request = pb::AuthenticateSessionRequest {
            session: session.to_owned(),
            server_id: server.to_string(),
        };
        Ok(self
            .credentials()
            .authenticate_session(request)
            .await?
            .into_inner())
    }

    /// The admin's usage.
    pub(crate) async fn list(
        &self,
        request: &pb::ListUsageRequest,
    ) -> Result<pb::ListUsageResponse, Status> {
        let admin = self.admin().await;
        let request = self.as_caller(&admin, request.clone());
        Ok(self.usage().list_usage(request).await?.into_inner())
    }
}
