//! Several GPUs under one grant.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

/// The one slice of a grant as a list of one. A UUID is a driver's and has nothing in it that
/// JSON would write otherwise.
const SLICES: &str = r#"UPDATE grants SET slices = '[{"gpu_uuid":"' || gpu_uuid || '","blocks":"'
    || blocks || '","vram_bytes":' || CAST(vram_bytes AS TEXT) || '}]'"#;

#[expect(
    elided_lifetimes_in_paths,
    reason = "the macro needs the very form of the trait"
)]
#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let mut gpus = ColumnDef::new("gpus");
        gpus.integer().not_null().default(1);
        let mut slices = ColumnDef::new("slices");
        slices.text().not_null().default("[]");
        // One statement a column: SQLite changes one at a time.
        for (table, column) in [
            ("servers", gpus.clone()),
            ("runs", gpus),
            ("grants", slices),
        ] {
            let mut alter = Table::alter();
            alter.table(table).add_column(column);
            manager.alter_table(alter).await?;
        }
        manager.get_connection().execute_unprepared(SLICES).await?;
        for column in ["gpu_uuid", "blocks", "vram_bytes"] {
            let mut alter = Table::alter();
            alter.table("grants").drop_column(column);
            manager.alter_table(alter).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sea_orm::{ConnectionTrait as _, Database};
    use sea_orm_migration::MigratorTrait as _;

    use crate::store::{Migrations, grant, record::Slice};

    #[tokio::test]
    async fn the_slice_of_an_older_grant_is_kept() {
        let db = Database::connect("sqlite::memory:").await.unwrap();
        let before = Migrations::migrations()
            .iter()
            .position(|migration| migration.name().ends_with("_000013_gpus"));
        let steps = u32::try_from(before.unwrap()).unwrap();
        Migrations::up(&db, Some(steps)).await.unwrap();
        let id = "grt_00000000000000000000000007";
        let old = format!(
            "INSERT INTO grants (id, fence, server_id, team_id, node_id, gpu_uuid, gpu_type, blocks, \
             vram_bytes, granted_at) VALUES ('{id}', 3, 'srv_00000000000000000000000001', '', \
             'node_00000000000000000000000002', 'GPU-1', 'H100', '0-24,50', 7, 9)"
        );
        db.execute_unprepared(&old).await.unwrap();
        Migrations::up(&db, None).await.unwrap();
        let grant = grant::get(&db, id.parse().unwrap()).await.unwrap().unwrap();
        let slice = Slice {
            gpu_uuid: "GPU-1".to_owned(),
            blocks: "0-24,50".parse().unwrap(),
            vram_bytes: 7,
        };
        assert_eq!(
            (grant.slices, grant.gpu_type.as_str()),
            (vec![slice], "H100")
        );
    }
}
