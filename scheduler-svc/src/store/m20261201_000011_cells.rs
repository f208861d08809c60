//! Who leads a cell, and which team a slice is charged to.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[expect(
    elided_lifetimes_in_paths,
    reason = "the macro needs the very form of the trait"
)]
#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let number = |name: &'static str| {
            let mut column = ColumnDef::new(name);
            column.big_integer().not_null().default(0);
            column
        };
        let text = |name: &'static str| {
            let mut column = ColumnDef::new(name);
            column.text().not_null().default("");
            column
        };
        // One statement a column: SQLite adds one at a time.
        for (table, column) in [
            ("fences", text("leader")),
            ("fences", number("term")),
            ("fences", number("leads_until")),
            ("servers", text("team_id")),
            ("grants", text("team_id")),
        ] {
            let mut alter = Table::alter();
            alter.table(table).add_column(column);
            manager.alter_table(alter).await?;
        }
        Ok(())
    }
}
