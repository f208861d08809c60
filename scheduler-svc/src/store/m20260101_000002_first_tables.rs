//! The first tables of the scheduler.

use sea_orm_migration::{
    prelude::*,
    schema::{big_integer, big_integer_null, boolean, integer, text, text_null},
};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[expect(
    elided_lifetimes_in_paths,
    reason = "the macro needs the very form of the trait"
)]
#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in tables() {
            manager.create_table(table).await?;
        }
        for index in indexes() {
            manager.create_index(index).await?;
        }
        let first_fence = Query::insert()
            .into_table("fences")
            .columns(["cell", "value"])
            .values_panic([1_i64.into(), 0_i64.into()])
            .to_owned();
        manager.execute(first_fence).await
    }
}

fn table(
    name: &'static str,
    columns: Vec<ColumnDef>,
    key: &[&'static str],
) -> TableCreateStatement {
    let mut table = Table::create();
    table.table(name);
    for column in columns {
        table.col(column);
    }
    if !key.is_empty() {
        let mut primary = Index::create();
        for column in key {
            primary.col(*column);
        }
        table.primary_key(&mut primary);
    }
    table
}

fn counted(name: &'static str) -> ColumnDef {
    big_integer(name).auto_increment().primary_key().take()
}

fn tables() -> Vec<TableCreateStatement> {
    vec![
        table(
            "servers",
            vec![
                text("id"),
                text("name"),
                text("project"),
                text("owner_id"),
                text_null("live_name"),
                text("profile"),
                text("gpu_type"),
                integer("percent"),
                big_integer("memory_bytes"),
                big_integer("cpu_milli"),
                text("image"),
                text("image_reference"),
                boolean("install_heavy"),
                big_integer("storage_bytes"),
                text("volume_id"),
                text("state"),
                text_null("phase"),
                text("phase_detail"),
                text_null("grant_id"),
                text_null("node_id"),
                big_integer("created_at"),
                big_integer_null("queued_at"),
                big_integer_null("started_at"),
                big_integer_null("ready_at"),
                big_integer_null("stopped_at"),
                big_integer_null("expected_at"),
                text_null("failure"),
                text_null("runtime"),
                big_integer("sequence"),
                text_null("traceparent"),
                big_integer("version"),
            ],
            &["id"],
        ),
        table(
            "volumes",
            vec![
                text("id"),
                text("server_id"),
                big_integer("size_bytes"),
                text_null("node_id"),
                big_integer("created_at"),
                big_integer_null("removed_at"),
            ],
            &["id"],
        ),
        table(
            "grants",
            vec![
                text("id"),
                big_integer("fence"),
                text("server_id"),
                text("node_id"),
                text("gpu_uuid"),
                text("gpu_type"),
                text("blocks"),
                big_integer("vram_bytes"),
                big_integer("granted_at"),
                big_integer_null("delivered_at"),
                big_integer_null("released_at"),
            ],
            &["id"],
        ),
        table(
            "gpus",
            vec![
                text("node_id"),
                text("uuid"),
                text("family"),
                text("name"),
                big_integer("memory_bytes"),
                boolean("simulated"),
                text("driver_version"),
                text("taken"),
                boolean("present"),
                big_integer("version"),
            ],
            &["node_id", "uuid"],
        ),
        table(
            "nodes",
            vec![
                text("id"),
                text("name"),
                text("endpoint"),
                big_integer("cpu_milli"),
                big_integer("memory_bytes"),
                big_integer("disk_bytes"),
                big_integer("disk_free_bytes"),
                text("not_enforced"),
                text("ready_images"),
                big_integer("registered_at"),
                big_integer("last_seen_at"),
            ],
            &["id"],
        ),
        table(
            "fences",
            vec![big_integer("cell"), big_integer("value")],
            &["cell"],
        ),
        table(
            "starts",
            vec![
                counted("id"),
                text("image"),
                text("node_id"),
                boolean("environment_ready"),
                big_integer("took_us"),
                big_integer("at"),
            ],
            &[],
        ),
    ]
}

fn index(
    table: &'static str,
    name: &'static str,
    columns: &[&'static str],
) -> IndexCreateStatement {
    let mut index = Index::create();
    index.name(name).table(table);
    for column in columns {
        index.col(*column);
    }
    index
}

fn indexes() -> Vec<IndexCreateStatement> {
    vec![
        index("servers", "servers_live_name", &["live_name"])
            .unique()
            .take(),
        index("servers", "servers_project", &["project", "id"]),
        index("servers", "servers_state", &["state", "queued_at"]),
        // A second guard beside the counter row: no fence is ever given twice (INV-2).
        index("grants", "grants_fence", &["fence"]).unique().take(),
        index("grants", "grants_node", &["node_id", "released_at"]),
        index("grants", "grants_released", &["released_at"]),
        index("starts", "starts_image", &["image", "id"]),
    ]
}
