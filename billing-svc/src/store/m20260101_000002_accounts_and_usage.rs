//! Creates the tables of accounts, credentials and usage.

use async_trait::async_trait;
use sea_orm::{
    DbErr,
    sea_query::{ColumnDef, ForeignKey, Index, Table, TableCreateStatement},
};
use sea_orm_migration::{MigrationName, MigrationTrait, SchemaManager};

pub(crate) struct Migration;

impl MigrationName for Migration {
    fn name(&self) -> &'static str {
        "m20260101_000002_accounts_and_usage"
    }
}

#[expect(
    elided_lifetimes_in_paths,
    reason = "the trait leaves it out, and async_trait wants the same signature"
)]
#[async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in [team(), user(), project(), membership(), token()] {
            manager.create_table(table).await?;
        }
        for table in ["open_code", "session"] {
            manager.create_table(browser(table)).await?;
            let expiry = Index::create()
                .name(format!("{table}_expires_at"))
                .table(table)
                .col("expires_at")
                .to_owned();
            manager.create_index(expiry).await?;
        }
        manager.create_table(usage()).await?;
        let newest = Index::create()
            .name("usage_interval_user_started")
            .table("usage_interval")
            .col("user_id")
            .col("started_at")
            .col("id")
            .to_owned();
        manager.create_index(newest).await
    }
}

fn text(name: &'static str) -> ColumnDef {
    ColumnDef::new(name).text().not_null().take()
}

fn id() -> ColumnDef {
    ColumnDef::new("id").text().not_null().primary_key().take()
}

fn time(name: &'static str) -> ColumnDef {
    ColumnDef::new(name).big_integer().not_null().take()
}

fn optional_time(name: &'static str) -> ColumnDef {
    ColumnDef::new(name).big_integer().take()
}

fn hash() -> ColumnDef {
    ColumnDef::new("hash").binary().not_null().take()
}

fn refers(table: &'static str, column: &'static str, to: &'static str) -> ForeignKeyOf {
    ForeignKey::create()
        .from(table, column)
        .to(to, "id")
        .to_owned()
}

type ForeignKeyOf = sea_orm::sea_query::ForeignKeyCreateStatement;

fn team() -> TableCreateStatement {
    Table::create()
        .table("team")
        .col(id())
        .col(text("name").unique_key())
        .col(time("created_at"))
        .take()
}

fn user() -> TableCreateStatement {
    Table::create()
        .table("user")
        .col(id())
        .col(text("name").unique_key())
        .col(text("team_id"))
        .col(time("created_at"))
        .foreign_key(&mut refers("user", "team_id", "team"))
        .take()
}

fn project() -> TableCreateStatement {
    Table::create()
        .table("project")
        .col(id())
        .col(text("name").unique_key())
        .col(text("team_id"))
        .col(time("created_at"))
        .foreign_key(&mut refers("project", "team_id", "team"))
        .take()
}

fn membership() -> TableCreateStatement {
    Table::create()
        .table("membership")
        .col(text("user_id"))
        .col(text("project_id"))
        .col(time("created_at"))
        .primary_key(Index::create().col("user_id").col("project_id"))
        .foreign_key(&mut refers("membership", "user_id", "user"))
        .foreign_key(&mut refers("membership", "project_id", "project"))
        .take()
}

fn token() -> TableCreateStatement {
    Table::create()
        .table("token")
        .col(id())
        .col(hash().unique_key())
        .col(text("user_id"))
        .col(time("created_at"))
        .col(optional_time("expires_at"))
        .col(optional_time("revoked_at"))
        .foreign_key(&mut refers("token", "user_id", "user"))
        .take()
}

/// Open codes and sessions differ only in how they end.
fn browser(table: &'static str) -> TableCreateStatement {
    Table::create()
        .table(table)
        .col(hash().primary_key())
        .col(text("user_id"))
        .col(text("server_id"))
        .col(time("created_at"))
        .col(time("expires_at"))
        .col(optional_time("ended_at"))
        .foreign_key(&mut refers(table, "user_id", "user"))
        .take()
}

fn usage() -> TableCreateStatement {
    Table::create()
        .table("usage_interval")
        .col(id())
        .col(text("grant_id").unique_key())
        // No foreign key: what was held is recorded even when the account is gone.
        .col(text("user_id"))
        .col(text("project"))
        .col(text("workload_id"))
        .col(text("gpu_type"))
        .col(ColumnDef::new("blocks").integer().not_null())
        .col(time("started_at"))
        .col(optional_time("ended_at"))
        .take()
}
