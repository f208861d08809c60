//! The marks of operators on nodes.

use sea_orm_migration::{
    prelude::*,
    schema::{big_integer_null, boolean, text},
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
        // One column a statement, which is all that SQLite takes.
        for column in [
            big_integer_null("cordoned_at"),
            text("cordon_reason").default("").take(),
            boolean("drain").default(false).take(),
        ] {
            let mut alter = Table::alter();
            alter.table("nodes").add_column(column);
            manager.alter_table(alter.take()).await?;
        }
        Ok(())
    }
}
