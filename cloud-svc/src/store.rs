//! The database of this service.

use cnlab_db::{DatabaseConfig, Db};
use cnlab_service::StartError;
use sea_orm_migration::prelude::{MigrationTrait, MigratorTrait};

struct Migrator;

impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        cnlab_db::kit_migrations()
    }
}

/// Connects to the database and brings it to the present version.
pub(crate) async fn open(config: &DatabaseConfig) -> Result<Db, StartError> {
    let db = Db::connect(config)
        .await
        .map_err(|error| StartError::from_fault(&error))?;
    cnlab_db::migrate::<Migrator>(&db)
        .await
        .map_err(|error| StartError::from_fault(&error))?;
    Ok(db)
}
