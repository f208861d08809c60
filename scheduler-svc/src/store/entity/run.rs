//! One run, the deleted ones too.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "runs")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project: String,
    pub(crate) owner_id: String,
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
    /// Program and arguments as a JSON list.
    pub(crate) command: String,
    pub(crate) storage_bytes: i64,
    pub(crate) volume_id: String,
    pub(crate) priority: String,
    pub(crate) kind: String,
    pub(crate) deadline: Option<i64>,
    pub(crate) max_runtime_us: Option<i64>,
    pub(crate) state: String,
    pub(crate) phase: Option<String>,
    pub(crate) phase_detail: String,
    pub(crate) grant_id: Option<String>,
    pub(crate) node_id: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) placed_at: Option<i64>,
    pub(crate) started_at: Option<i64>,
    pub(crate) ended_at: Option<i64>,
    pub(crate) expected_at: Option<i64>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) exit_signal: Option<i32>,
    pub(crate) failure: Option<String>,
    pub(crate) runtime: Option<String>,
    pub(crate) attempt: i32,
    pub(crate) losses: i32,
    pub(crate) requeued_because: String,
    pub(crate) sequence: i64,
    pub(crate) traceparent: Option<String>,
    pub(crate) version: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
