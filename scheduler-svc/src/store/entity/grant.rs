//! The right to a slice, the ended ones too.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "grants")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: String,
    pub(crate) fence: i64,
    /// A server's or a run's; the column is older than runs.
    #[sea_orm(column_name = "server_id")]
    pub(crate) workload_id: String,
    /// Who is charged; empty in rows from before there were teams.
    pub(crate) team_id: String,
    pub(crate) node_id: String,
    pub(crate) gpu_type: String,
    /// The slices as a JSON list.
    pub(crate) slices: String,
    pub(crate) granted_at: i64,
    /// When the node was first known to have it.
    pub(crate) delivered_at: Option<i64>,
    pub(crate) released_at: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
