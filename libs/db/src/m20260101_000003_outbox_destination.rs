//! Adds to the table `outbox` whom a message is for, and an index for the order of claims.

use async_trait::async_trait;
use sea_orm::{DbErr, sea_query::*};
use sea_orm_migration::{MigrationName, MigrationTrait, SchemaManager};

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "m20260101_000003_outbox_destination"
    }
}

#[expect(
    elided_lifetimes_in_paths,
    reason = "the trait leaves it out, and async_trait wants the same signature"
)]
#[async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .alter_table(
                Table::alter()
                    .table("outbox")
                    .add_column(
                        ColumnDef::new("destination")
                            .text()
                            .not_null()
                            // Messages from before: one destination that nobody else has.
                            .default(""),
                    )
                    .to_owned(),
            )
            .await?;
        manager
            .create_index(
                Index::create()
                    .name("outbox_not_before_id")
                    .table("outbox")
                    .col("not_before")
                    .col("id")
                    .to_owned(),
            )
            .await
    }
}
