//! One volume.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "volumes")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: String,
    /// A server's or a run's; the column is older than runs.
    #[sea_orm(column_name = "server_id")]
    pub(crate) workload_id: String,
    pub(crate) size_bytes: i64,
    /// Where it lies; none until it was first used.
    pub(crate) node_id: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) removed_at: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
