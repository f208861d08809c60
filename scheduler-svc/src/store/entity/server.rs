//! One server, the deleted ones too.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "servers")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project: String,
    pub(crate) owner_id: String,
    /// Empty in rows from before there were teams.
    pub(crate) team_id: String,
    /// `<project>/<name>` while it is not deleted; unique.
    pub(crate) live_name: Option<String>,
    pub(crate) profile: String,
    pub(crate) gpu_type: String,
    pub(crate) percent: i32,
    pub(crate) memory_bytes: i64,
    pub(crate) cpu_milli: i64,
    pub(crate) gpus: i32,
    pub(crate) image: String,
    pub(crate) image_reference: String,
    pub(crate) install_heavy: bool,
    pub(crate) storage_bytes: i64,
    pub(crate) volume_id: String,
    pub(crate) state: String,
    pub(crate) phase: Option<String>,
    pub(crate) phase_detail: String,
    pub(crate) grant_id: Option<String>,
    pub(crate) node_id: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) queued_at: Option<i64>,
    pub(crate) started_at: Option<i64>,
    pub(crate) ready_at: Option<i64>,
    pub(crate) stopped_at: Option<i64>,
    pub(crate) expected_at: Option<i64>,
    pub(crate) failure: Option<String>,
    pub(crate) runtime: Option<String>,
    pub(crate) sequence: i64,
    pub(crate) traceparent: Option<String>,
    pub(crate) version: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
