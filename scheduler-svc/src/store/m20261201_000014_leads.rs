//! The term of a cell's leader in a row of its own, which changes with the leader only: whoever
//! changes something holds it, and those who grant do not wait for them.

use sea_orm_migration::{prelude::*, schema::big_integer};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[expect(
    elided_lifetimes_in_paths,
    reason = "the macro needs the very form of the trait"
)]
#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table("leads")
            .col(big_integer("cell").primary_key())
            .col(big_integer("term"))
            .take();
        manager.create_table(table).await?;
        let present = Query::select()
            .columns(["cell", "term"])
            .from("fences")
            .take();
        let mut same = Query::insert();
        same.into_table("leads").columns(["cell", "term"]);
        let same = same.select_from(present);
        let same = same.map_err(|error| DbErr::Custom(error.to_string()))?;
        manager.execute(same.take()).await
    }
}
