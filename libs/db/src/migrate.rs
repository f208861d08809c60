//! Brings a database's tables up to the version of the program.
//!
//! **Invariant**: all pending migrations are applied in one transaction, or none is; of several
//! processes that start at once one applies them and the others wait for it.

use std::collections::BTreeSet;

use sea_orm::{
    ConnectionTrait, IsolationLevel, Order,
    sea_query::{Expr, Query},
};
use sea_orm_migration::{MigrationTrait, MigratorTrait, SchemaManager};

use crate::{
    connect::{Backend, Db},
    error::DbError,
    m20260101_000001_outbox_and_idempotency, m20260101_000003_outbox_destination,
};

/// Names the lock that migrations hold in a PostgreSQL database ("cnlab" in ASCII).
const LOCK: i64 = 0x63_6e_6c_61_62;

/// The migrations of the tables that every service has; a service lists them first.
#[must_use]
pub fn kit_migrations() -> Vec<Box<dyn MigrationTrait>> {
    vec![
        Box::new(m20260101_000001_outbox_and_idempotency::Migration),
        Box::new(m20260101_000003_outbox_destination::Migration),
    ]
}

/// The names of the migrations that are not applied yet, in their order.
///
/// # Errors
/// [`DbError::SchemaNewer`] when the database has migrations that `M` does not know.
pub async fn pending<M: MigratorTrait>(db: &Db) -> Result<Vec<String>, DbError> {
    let table = M::migration_table_name().to_string();
    let manager = SchemaManager::new(db.read().connection());
    let installed = manager.has_table(table).await;
    let applied = if installed.map_err(|error| db.inner.placed(error))? {
        applied::<M>(db.read()).await?
    } else {
        BTreeSet::new()
    };
    let names = M::migrations().into_iter().map(|one| one.name().to_owned());
    Ok(names.filter(|name| !applied.contains(name)).collect())
}

/// Applies all migrations that are not applied yet and returns their names.
///
/// # Errors
/// As [`pending`], and what the database says; then nothing was changed.
pub async fn migrate<M: MigratorTrait>(db: &Db) -> Result<Vec<String>, DbError> {
    let placed = |error| DbError::from(db.inner.placed(error));
    // Not SERIALIZABLE: its view of the tables would be older than the wait for the lock.
    let transaction = db
        .begin(IsolationLevel::ReadCommitted)
        .await
        .map_err(placed)?;
    // The clock of the database, since several processes may migrate it.
    let now = match db.backend() {
        Backend::Sqlite => "CAST(strftime('%s', 'now') AS INTEGER)",
        Backend::Postgres => {
            let lock = format!("SELECT pg_advisory_xact_lock({LOCK})");
            transaction
                .execute_unprepared(&lock)
                .await
                .map_err(placed)?;
            "CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)"
        }
    };
    M::install(&transaction).await.map_err(placed)?;
    let applied = applied::<M>(&transaction).await?;
    let manager = SchemaManager::new(&transaction);
    let mut names = Vec::new();
    for migration in M::migrations() {
        let name = migration.name();
        if applied.contains(name) {
            continue;
        }
        migration.up(&manager).await.map_err(placed)?;
        let record = Query::insert()
            .into_table(M::migration_table_name())
            .columns(["version", "applied_at"])
            .values_panic([name.into(), Expr::cust(now)])
            .take();
        transaction.execute(&record).await.map_err(placed)?;
        tracing::info!(migration = name, "migration applied");
        names.push(name.to_owned());
    }
    transaction.commit().await.map_err(placed)?;
    Ok(names)
}

/// The migrations that were applied; refuses a database that a newer version has migrated.
async fn applied<M: MigratorTrait>(
    connection: &impl ConnectionTrait,
) -> Result<BTreeSet<String>, DbError> {
    let known: BTreeSet<String> = M::migrations()
        .iter()
        .map(|one| one.name().to_owned())
        .collect();
    let versions = Query::select()
        .column("version")
        .from(M::migration_table_name())
        .order_by("version", Order::Asc)
        .take();
    let mut applied = BTreeSet::new();
    for row in connection.query_all(&versions).await? {
        let version: String = row.try_get("", "version")?;
        if !known.contains(&version) {
            return Err(DbError::SchemaNewer { migration: version });
        }
        applied.insert(version);
    }
    Ok(applied)
}
