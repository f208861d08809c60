//! One GPU; `version` grows with every change of `taken`.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "gpus")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) node_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) uuid: String,
    pub(crate) family: String,
    pub(crate) name: String,
    pub(crate) memory_bytes: i64,
    pub(crate) simulated: bool,
    pub(crate) driver_version: String,
    pub(crate) taken: String,
    /// Whether the node reported it when it last registered.
    pub(crate) present: bool,
    pub(crate) version: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
