//! The fence counter of a cell: one row.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "fences")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) cell: i64,
    pub(crate) value: i64,
    /// Who places, by a name that no other process has.
    pub(crate) leader: String,
    /// Grows with every change of the leader.
    pub(crate) term: i64,
    /// Until when nobody else takes the lead, in microseconds.
    pub(crate) leads_until: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
