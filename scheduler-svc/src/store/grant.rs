//! Grants: blocks of a GPU that somebody holds under a fence.

use std::time::Duration;

use cnlab_db::{DbError, Tx};
use cnlab_model::{
    Blocks, Timestamp,
    id::{GrantId, NodeId},
};
use sea_orm::{
    ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect,
    sea_query::Expr,
};

use super::{
    entity::{gpu, grant},
    record::{Gpu, Grant},
};
use crate::error::SchedulerError;

/// This cell's row of the fence counter.
pub(super) const CELL: i64 = 1;

fn records(rows: Vec<grant::Model>) -> Result<Vec<Grant>, SchedulerError> {
    rows.into_iter().map(Grant::try_from).collect()
}

/// The grant of this id.
pub(crate) async fn get(
    db: &impl ConnectionTrait,
    id: GrantId,
) -> Result<Option<Grant>, SchedulerError> {
    let row = grant::Entity::find_by_id(id.to_string())
        .one(db)
        .await
        .map_err(DbError::from)?;
    row.map(Grant::try_from).transpose()
}

/// The grants that are not released, of one node or of all.
pub(crate) async fn held(
    db: &impl ConnectionTrait,
    node: Option<NodeId>,
) -> Result<Vec<Grant>, SchedulerError> {
    let mut find = grant::Entity::find().filter(grant::Column::ReleasedAt.is_null());
    if let Some(node) = node {
        find = find.filter(grant::Column::NodeId.eq(node.to_string()));
    }
    let rows = find
        .order_by_asc(grant::Column::Fence)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// The grants that are not released on any of these nodes.
pub(crate) async fn held_on(
    db: &impl ConnectionTrait,
    nodes: &[NodeId],
) -> Result<Vec<Grant>, SchedulerError> {
    let mut found = Vec::new();
    // Far below the variables that a statement may have.
    for nodes in nodes.chunks(1000) {
        let rows = grant::Entity::find()
            .filter(grant::Column::ReleasedAt.is_null())
            .filter(grant::Column::NodeId.is_in(nodes.iter().map(NodeId::to_string)))
            .order_by_asc(grant::Column::Fence)
            .all(db)
            .await
            .map_err(DbError::from)?;
        found.extend(records(rows)?);
    }
    Ok(found)
}

/// Those of these grants that are not released.
pub(crate) async fn held_of(
    db: &impl ConnectionTrait,
    ids: &[GrantId],
) -> Result<Vec<Grant>, SchedulerError> {
    let mut found = Vec::new();
    // Far below the variables that a statement may have.
    for ids in ids.chunks(1000) {
        let rows = grant::Entity::find()
            .filter(grant::Column::Id.is_in(ids.iter().map(GrantId::to_string)))
            .filter(grant::Column::ReleasedAt.is_null())
            .all(db)
            .await
            .map_err(DbError::from)?;
        found.extend(records(rows)?);
    }
    Ok(found)
}

/// How long the latest grants were held.
pub(crate) async fn lengths(
    db: &impl ConnectionTrait,
    latest: u64,
) -> Result<Vec<Duration>, SchedulerError> {
    let rows = grant::Entity::find()
        .filter(grant::Column::ReleasedAt.is_not_null())
        .order_by_desc(grant::Column::ReleasedAt)
        .limit(latest)
        .all(db)
        .await
        .map_err(DbError::from)?;
    Ok(records(rows)?
        .into_iter()
        .filter_map(|grant| Some(grant.released_at?.since(grant.granted_at)))
        .collect())
}

async fn gpu_row(tx: &Tx, node: NodeId, uuid: &str) -> Result<Option<Gpu>, SchedulerError> {
    let row = gpu::Entity::find_by_id((node.to_string(), uuid.to_owned()))
        .one(tx)
        .await
        .map_err(DbError::from)?;
    row.map(Gpu::try_from).transpose()
}

/// Sets the taken blocks of a GPU, if its version is still this one.
async fn compare_and_set(tx: &Tx, gpu: &Gpu, taken: Blocks) -> Result<(), SchedulerError> {
    let written = gpu::Entity::update_many()
        .col_expr(gpu::Column::Taken, Expr::value(taken.to_string()))
        .col_expr(
            gpu::Column::Version,
            Expr::value(gpu.version.saturating_add(1)),
        )
        .filter(gpu::Column::NodeId.eq(gpu.node.to_string()))
        .filter(gpu::Column::Uuid.eq(gpu.uuid.as_str()))
        .filter(gpu::Column::Version.eq(gpu.version))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    if written.rows_affected == 1 {
        Ok(())
    } else {
        Err(SchedulerError::SliceTaken)
    }
}

/// Gives the blocks of a grant back. Answers `false` when that had been done before.
pub(crate) async fn release(tx: &Tx, id: GrantId, now: Timestamp) -> Result<bool, SchedulerError> {
    let Some(grant) = get(tx, id)
        .await?
        .filter(|grant| grant.released_at.is_none())
    else {
        return Ok(false);
    };
    grant::Entity::update_many()
        .col_expr(grant::Column::ReleasedAt, Expr::value(now.0))
        .filter(grant::Column::Id.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    for slice in &grant.slices {
        if let Some(gpu) = gpu_row(tx, grant.node, &slice.gpu_uuid).await? {
            compare_and_set(tx, &gpu, gpu.taken.minus(slice.blocks)).await?;
        }
    }
    Ok(true)
}

/// Says that the node has the grant, the first time only.
pub(crate) async fn delivered(tx: &Tx, id: GrantId, now: Timestamp) -> Result<(), SchedulerError> {
    grant::Entity::update_many()
        .col_expr(grant::Column::DeliveredAt, Expr::value(now.0))
        .filter(grant::Column::Id.eq(id.to_string()))
        .filter(grant::Column::DeliveredAt.is_null())
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}
