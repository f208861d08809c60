//! The service's tables, and the only place of this service that names sea-orm's queries.

pub(crate) mod account;
pub(crate) mod credential;
mod entity;
mod m20260101_000002_accounts_and_usage;
pub(crate) mod usage;

use cnlab_db::{DatabaseConfig, Db};
use cnlab_service::StartError;
use sea_orm_migration::{MigrationTrait, MigratorTrait};

/// All migrations, the kit's first.
struct Migrations;

impl MigratorTrait for Migrations {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        let mut all = cnlab_db::kit_migrations();
        all.push(Box::new(m20260101_000002_accounts_and_usage::Migration));
        all
    }
}

/// Connects to the database and brings it to the present version.
pub(crate) async fn open(config: &DatabaseConfig) -> Result<Db, StartError> {
    let fault = |error| StartError::from_fault(&error);
    let db = Db::connect(config).await.map_err(fault)?;
    cnlab_db::migrate::<Migrations>(&db).await.map_err(fault)?;
    Ok(db)
}
