//! Brings a database's tables up to the version of the program.
//!
//! **Invariant**: all pending migrations are applied in one transaction, or none is; of several
//! processes that start at once one applies them and the others wait for it.

use std::collections::BTreeSet;

use sea_orm::{ConnectionTrait, IsolationLevel};
use sea_orm_migration::{MigrationTrait, MigratorTrait};

use crate::{
    connect::{Backend, Db},
    error::{Class, DbError},
    m20260101_000001_outbox_and_idempotency,
};

/// Names the lock that migrations hold in a PostgreSQL database ("cnlab" in ASCII).
const LOCK: i64 = 0x63_6e_6c_61_62;

/// The migrations of the tables that every service has; a service lists them first.
#[must_use]
pub fn kit_migrations() -> Vec<Box<dyn MigrationTrait>> {
    vec![Box::new(m20260101_000001_outbox_and_idempotency::Migration)]
}

/// The names of the migrations that are not applied yet, in their order.
///
/// # Errors
/// [`DbError::SchemaNewer`] when the database has migrations that `M` does not know.
pub async fn pending<M: MigratorTrait>(db: &Db) -> Result<Vec<String>, DbError> {
    // sea-orm's reader of this list asks for a connection of its own.
    let connection = db.read().connection();
    let probe = M::get_migration_with_status_read_only(connection).await;
    match probe {
        Ok(all) => Ok(all
            .iter()
            .filter(|one| one.status() == sea_orm_migration::MigrationStatus::Pending)
            .map(|one| one.name().to_owned())
            .collect()),
        Err(error) if Class::of(&error) == Class::Other => {
            unknown::<M, _>(connection).await?;
            Err(db.inner.placed(error).into())
        }
        Err(error) => Err(db.inner.placed(error).into()),
    }
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
    if db.backend() == Backend::Postgres {
        transaction
            .execute_unprepared(&format!("SELECT pg_advisory_xact_lock({LOCK})"))
            .await
            .map_err(placed)?;
    }
    M::install(&transaction).await.map_err(placed)?;
    unknown::<M, _>(&transaction).await?;
    let names: Vec<String> = M::get_pending_migrations(&transaction)
        .await
        .map_err(placed)?
        .iter()
        .map(|one| one.name().to_owned())
        .collect();
    M::up(&transaction, None).await.map_err(placed)?;
    transaction.commit().await.map_err(placed)?;
    Ok(names)
}

/// Refuses a database that a newer version has migrated.
async fn unknown<M: MigratorTrait, C: ConnectionTrait>(connection: &C) -> Result<(), DbError> {
    let known: BTreeSet<String> = M::migrations()
        .iter()
        .map(|one| one.name().to_owned())
        .collect();
    let statement = sea_orm::sea_query::Query::select()
        .column("version")
        .from(M::migration_table_name())
        .order_by("version", sea_orm::Order::Asc)
        .take();
    for row in connection.query_all(&statement).await? {
        let version: String = row.try_get("", "version")?;
        if !known.contains(&version) {
            return Err(DbError::SchemaNewer { migration: version });
        }
    }
    Ok(())
}
