//! The two stores, some tables, and a counter that many write.

use std::future::Future;

use cnlab_db::{DatabaseConfig, Db, DbError, Tx, kit_migrations, migrate};
use cnlab_testkit::{PostgresServer, ScratchDir};
use sea_orm::{
    ConnectionTrait, DbErr, Statement,
    sea_query::{ColumnDef, Table},
};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};

pub(crate) struct Counters;

impl MigrationName for Counters {
    fn name(&self) -> &'static str {
        "m20260102_000001_counters"
    }
}

#[expect(
    elided_lifetimes_in_paths,
    reason = "the trait leaves it out, and async_trait wants the same signature"
)]
#[async_trait::async_trait]
impl MigrationTrait for Counters {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table("counters")
            .col(ColumnDef::new("name").text().not_null().primary_key())
            .col(ColumnDef::new("value").big_integer().not_null())
            .to_owned();
        manager.create_table(table).await?;
        let first = "INSERT INTO counters (name, value) VALUES ('hits', 0), ('other', 0)";
        manager.get_connection().execute_unprepared(first).await?;
        Ok(())
    }
}

pub(crate) struct Broken;

impl MigrationName for Broken {
    fn name(&self) -> &'static str {
        "m20260103_000001_broken"
    }
}

#[expect(
    elided_lifetimes_in_paths,
    reason = "the trait leaves it out, and async_trait wants the same signature"
)]
#[async_trait::async_trait]
impl MigrationTrait for Broken {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection
            .execute_unprepared("CREATE TABLE half (a INTEGER)")
            .await?;
        connection.execute_unprepared("NO SUCH STATEMENT").await?;
        Ok(())
    }
}

pub(crate) struct Tables;

impl MigratorTrait for Tables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        let mut all = kit_migrations();
        all.push(Box::new(Counters));
        all
    }
}

pub(crate) struct BrokenTables;

impl MigratorTrait for BrokenTables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        let mut all = Tables::migrations();
        all.push(Box::new(Broken));
        all
    }
}

pub(crate) struct OldTables;

impl MigratorTrait for OldTables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        kit_migrations()
    }
}

pub(crate) struct Store {
    pub(crate) config: DatabaseConfig,
    pub(crate) db: Db,
    _dir: Option<ScratchDir>,
}

impl Store {
    pub(crate) async fn sqlite() -> Self {
        let dir = ScratchDir::new("db").unwrap();
        let config = DatabaseConfig::sqlite(&dir.path().join("store.sqlite"));
        Self::open(config, Some(dir)).await
    }

    pub(crate) async fn postgres() -> Self {
        let server = PostgresServer::shared().await.unwrap();
        let url = server.create_database().await.unwrap();
        Self::open(DatabaseConfig { url }, None).await
    }

    async fn open(config: DatabaseConfig, dir: Option<ScratchDir>) -> Self {
        let db = Db::connect(&config).await.unwrap();
        Self {
            config,
            db,
            _dir: dir,
        }
    }

    pub(crate) async fn migrated(self) -> Self {
        migrate::<Tables>(&self.db).await.unwrap();
        self
    }
}

/// An error as services have: their own facts, and the database's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TestError {
    #[error("refused")]
    Refused,
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<DbErr> for TestError {
    fn from(error: DbErr) -> Self {
        Self::Db(error.into())
    }
}

pub(crate) async fn value(connection: &impl ConnectionTrait, name: &str) -> Result<i64, DbErr> {
    let sql = format!("SELECT value FROM counters WHERE name = '{name}'");
    let statement = Statement::from_string(connection.get_database_backend(), sql);
    let row = connection.query_one_raw(statement).await?;
    row.ok_or_else(|| DbErr::RecordNotFound(name.to_owned()))?
        .try_get("", "value")
}

pub(crate) async fn set(tx: &Tx, name: &str, value: i64) -> Result<(), DbErr> {
    let sql = format!("UPDATE counters SET value = {value} WHERE name = '{name}'");
    tx.execute_unprepared(&sql).await.map(drop)
}

/// Reads, then writes what it read plus one: wrong unless transactions are serialised.
pub(crate) async fn hit(db: &Db, name: &str) -> Result<i64, TestError> {
    db.write(|tx| async move {
        let next = value(&tx, name).await? + 1;
        set(&tx, name, next).await?;
        Ok(next)
    })
    .await
}

pub(crate) async fn all<T>(tasks: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<T>
where
    T: Send + 'static,
{
    let mut set = tokio::task::JoinSet::new();
    for task in tasks {
        set.spawn(task);
    }
    set.join_all().await
}
