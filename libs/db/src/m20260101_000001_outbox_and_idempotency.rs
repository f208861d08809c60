//! Creates the tables `outbox` and `idempotency`.

use async_trait::async_trait;
use sea_orm::{DbErr, sea_query::*};
use sea_orm_migration::{MigrationName, MigrationTrait, SchemaManager};

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "m20260101_000001_outbox_and_idempotency"
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
            .create_table(
                Table::create()
                    .table("outbox")
                    .col(
                        ColumnDef::new("id")
                            .big_integer()
                            .not_null()
                            .auto_increment()
                            .primary_key(),
                    )
                    .col(ColumnDef::new("topic").text().not_null())
                    .col(ColumnDef::new("aggregate").text().not_null())
                    .col(ColumnDef::new("payload").text().not_null())
                    .col(ColumnDef::new("traceparent").text())
                    .col(ColumnDef::new("created_at").big_integer().not_null())
                    .col(ColumnDef::new("not_before").big_integer().not_null())
                    .col(ColumnDef::new("attempts").integer().not_null())
                    .col(ColumnDef::new("owner").text())
                    .col(ColumnDef::new("locked_until").big_integer().not_null())
                    .col(ColumnDef::new("last_error").text())
                    .to_owned(),
            )
            .await?;
        manager
            .create_index(
                Index::create()
                    .name("outbox_aggregate_id")
                    .table("outbox")
                    .col("aggregate")
                    .col("id")
                    .to_owned(),
            )
            .await?;
        manager
            .create_table(
                Table::create()
                    .table("idempotency")
                    .col(ColumnDef::new("tenant").text().not_null())
                    .col(ColumnDef::new("method").text().not_null())
                    .col(ColumnDef::new("key").text().not_null())
                    .col(ColumnDef::new("request_hash").binary().not_null())
                    .col(ColumnDef::new("response").binary())
                    .col(ColumnDef::new("expires_at").big_integer().not_null())
                    .primary_key(Index::create().col("tenant").col("method").col("key"))
                    .to_owned(),
            )
            .await?;
        manager
            .create_index(
                Index::create()
                    .name("idempotency_expires_at")
                    .table("idempotency")
                    .col("expires_at")
                    .to_owned(),
            )
            .await
    }
}
