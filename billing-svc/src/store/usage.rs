//! Usage intervals: one per grant.

use billing_core::meter::Interval;
use cnlab_model::{
    ProjectName, Timestamp,
    id::{GrantId, UsageId, UserId},
};
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, Condition, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect,
    sea_query::{Expr, ExprTrait, OnConflict},
};

use super::entity::usage_interval::{ActiveModel, Column, Entity, Model};
use crate::error::Error;

/// What was held, by whom, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) id: UsageId,
    pub(crate) grant_id: GrantId,
    pub(crate) user_id: UserId,
    pub(crate) project: ProjectName,
    pub(crate) workload_id: String,
    pub(crate) gpu_type: String,
    pub(crate) blocks: u16,
    pub(crate) started_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
}

impl Usage {
    pub(crate) fn interval(&self) -> Interval {
        Interval::recorded(self.blocks.into(), self.started_at, self.ended_at)
    }
}

/// A place in a list that runs from the newest interval to the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) started_at: Timestamp,
    pub(crate) id: UsageId,
}

/// Records an interval unless its grant has one already.
pub(crate) async fn insert(tx: &impl ConnectionTrait, usage: &Usage) -> Result<(), Error> {
    let row = ActiveModel {
        id: Set(usage.id.to_string()),
        grant_id: Set(usage.grant_id.to_string()),
        user_id: Set(usage.user_id.to_string()),
        project: Set(usage.project.to_string()),
        workload_id: Set(usage.workload_id.clone()),
        gpu_type: Set(usage.gpu_type.clone()),
        blocks: Set(usage.blocks.into()),
        started_at: Set(usage.started_at.0),
        ended_at: Set(usage.ended_at.map(|at| at.0)),
    };
    Entity::insert(row)
        .on_conflict(OnConflict::new().do_nothing().to_owned())
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

pub(crate) async fn find(
    connection: &impl ConnectionTrait,
    grant: GrantId,
) -> Result<Option<Usage>, Error> {
    let row = Entity::find()
        .filter(Column::GrantId.eq(grant.to_string()))
        .one(connection)
        .await?;
    row.map(Usage::try_from).transpose()
}

/// Ends an interval that is still open.
pub(crate) async fn end(
    tx: &impl ConnectionTrait,
    id: UsageId,
    ended_at: Timestamp,
) -> Result<(), Error> {
    Entity::update_many()
        .col_expr(Column::EndedAt, Expr::val(ended_at.0))
        .filter(Column::Id.eq(id.to_string()))
        .filter(Column::EndedAt.is_null())
        .exec(tx)
        .await?;
    Ok(())
}

/// The user's intervals after a place, newest first.
pub(crate) async fn page(
    connection: &impl ConnectionTrait,
    user: UserId,
    project: Option<&ProjectName>,
    after: Option<Place>,
    size: u64,
) -> Result<Vec<Usage>, Error> {
    let mut list = Entity::find()
        .filter(Column::UserId.eq(user.to_string()))
        .order_by_desc(Column::StartedAt)
        .order_by_desc(Column::Id)
        .limit(size);
    if let Some(project) = project {
        list = list.filter(Column::Project.eq(project.as_str()));
    }
    if let Some(after) = after {
        let same_time = Column::StartedAt
            .eq(after.started_at.0)
            .and(Column::Id.lt(after.id.to_string()));
        list = list.filter(
            Condition::any()
                .add(Column::StartedAt.lt(after.started_at.0))
                .add(same_time),
        );
    }
    let rows = list.all(connection).await?;
    rows.into_iter().map(Usage::try_from).collect()
}

impl TryFrom<Model> for Usage {
    type Error = Error;

    fn try_from(row: Model) -> Result<Self, Error> {
        Ok(Self {
            id: row
                .id
                .parse()
                .map_err(|_| Error::Row("id of an interval"))?,
            grant_id: row
                .grant_id
                .parse()
                .map_err(|_| Error::Row("grant of an interval"))?,
            user_id: row
                .user_id
                .parse()
                .map_err(|_| Error::Row("user of an interval"))?,
            project: row
                .project
                .parse()
                .map_err(|_| Error::Row("project of an interval"))?,
            workload_id: row.workload_id,
            gpu_type: row.gpu_type,
            blocks: u16::try_from(row.blocks).map_err(|_| Error::Row("blocks of an interval"))?,
            started_at: Timestamp(row.started_at),
            ended_at: row.ended_at.map(Timestamp),
        })
    }
}
