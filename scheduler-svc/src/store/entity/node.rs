//! One node.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "nodes")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) endpoint: String,
    pub(crate) cpu_milli: i64,
    pub(crate) memory_bytes: i64,
    pub(crate) disk_bytes: i64,
    pub(crate) disk_free_bytes: i64,
    pub(crate) not_enforced: String,
    pub(crate) ready_images: String,
    pub(crate) registered_at: i64,
    pub(crate) last_seen_at: i64,
    /// Since when nothing new begins there, if so.
    pub(crate) cordoned_at: Option<i64>,
    pub(crate) cordon_reason: String,
    pub(crate) drain: bool,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
