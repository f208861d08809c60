//! The table of runs.

use sea_orm_migration::{
    prelude::*,
    schema::{big_integer, big_integer_null, boolean, integer, integer_null, text, text_null},
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
        manager.create_table(runs()).await?;
        for (name, columns, unique) in [
            ("runs_live_name", &["live_name"][..], true),
            ("runs_project", &["project", "id"], false),
            ("runs_state", &["state", "created_at"], false),
            // The past of an image, from which lengths are learned.
            ("runs_image", &["image", "ended_at"], false),
        ] {
            let mut index = Index::create();
            index.name(name).table("runs");
            for column in columns {
                index.col(*column);
            }
            if unique {
                index.unique();
            }
            manager.create_index(index.take()).await?;
        }
        Ok(())
    }
}

fn runs() -> TableCreateStatement {
    let mut table = Table::create();
    table.table("runs");
    for column in [
        text("id").primary_key().take(),
        text("name"),
        text("project"),
        text("owner_id"),
        text("team_id"),
        text_null("live_name"),
        text("profile"),
        text("gpu_type"),
        integer("percent"),
        big_integer("memory_bytes"),
        big_integer("cpu_milli"),
        text("image"),
        text("image_reference"),
        boolean("install_heavy"),
        text("command"),
        big_integer("storage_bytes"),
        text("volume_id"),
        text("priority"),
        text("kind"),
        big_integer_null("deadline"),
        big_integer_null("max_runtime_us"),
        text("state"),
        text_null("phase"),
        text("phase_detail"),
        text_null("grant_id"),
        text_null("node_id"),
        big_integer("created_at"),
        big_integer_null("placed_at"),
        big_integer_null("started_at"),
        big_integer_null("ended_at"),
        big_integer_null("expected_at"),
        integer_null("exit_code"),
        integer_null("exit_signal"),
        text_null("failure"),
        text_null("runtime"),
        integer("attempt"),
        integer("losses"),
        text("requeued_because"),
        big_integer("sequence"),
        text_null("traceparent"),
        big_integer("version"),
    ] {
        table.col(column);
    }
    table
}
