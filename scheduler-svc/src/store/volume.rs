//! Volumes of servers and runs.

use std::collections::BTreeMap;

use cnlab_db::{DbError, Tx};
use cnlab_model::{
    Timestamp,
    id::{NodeId, ServerId, VolumeId, WorkloadId},
};
use sea_orm::{
    ActiveModelTrait, ActiveValue::Set, ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter,
    QueryOrder, sea_query::Expr,
};

use super::{entity::volume, record::signed};
use crate::error::SchedulerError;

/// Adds a volume.
pub(crate) async fn insert(
    tx: &Tx,
    id: VolumeId,
    of: WorkloadId,
    size_bytes: u64,
    now: Timestamp,
    on: Option<NodeId>,
) -> Result<(), SchedulerError> {
    volume::ActiveModel {
        id: Set(id.to_string()),
        workload_id: Set(of.to_string()),
        size_bytes: Set(signed(size_bytes)),
        node_id: Set(on.map(String::from)),
        created_at: Set(now.0),
        removed_at: Set(None),
    }
    .insert(tx)
    .await
    .map_err(DbError::from)?;
    Ok(())
}

/// Where a volume lies, if it was ever used.
pub(crate) async fn node_of(
    db: &impl ConnectionTrait,
    id: VolumeId,
) -> Result<Option<NodeId>, SchedulerError> {
    let row = volume::Entity::find_by_id(id.to_string())
        .one(db)
        .await
        .map_err(DbError::from)?;
    let Some(node) = row.and_then(|row| row.node_id) else {
        return Ok(None);
    };
    let wrong = |error: cnlab_model::id::IdError| SchedulerError::Row {
        table: "volumes",
        id: id.to_string(),
        problem: error.to_string(),
    };
    node.parse().map(Some).map_err(wrong)
}

/// Where those of these volumes lie that were used.
pub(crate) async fn nodes_of(
    db: &impl ConnectionTrait,
    ids: &[VolumeId],
) -> Result<BTreeMap<VolumeId, NodeId>, SchedulerError> {
    let mut found = BTreeMap::new();
    // Far below the variables that a statement may have.
    for ids in ids.chunks(1000) {
        let rows = volume::Entity::find()
            .filter(volume::Column::Id.is_in(ids.iter().map(VolumeId::to_string)))
            .filter(volume::Column::NodeId.is_not_null())
            .all(db)
            .await
            .map_err(DbError::from)?;
        // A volume whose node makes no sense is refused where its workload is placed.
        for row in rows {
            let node = row.node_id.and_then(|node| node.parse::<NodeId>().ok());
            if let (Ok(volume), Some(node)) = (row.id.parse::<VolumeId>(), node) {
                found.insert(volume, node);
            }
        }
    }
    Ok(found)
}

/// The servers whose volume lies on a node.
pub(crate) async fn servers_on(
    db: &impl ConnectionTrait,
    node: NodeId,
) -> Result<Vec<ServerId>, SchedulerError> {
    let rows = volume::Entity::find()
        .filter(volume::Column::NodeId.eq(node.to_string()))
        .filter(volume::Column::RemovedAt.is_null())
        .order_by_asc(volume::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    // Runs have volumes, too.
    let ids = rows.iter().map(|row| row.workload_id.parse::<ServerId>());
    Ok(ids.filter_map(Result::ok).collect())
}

/// Says where a volume lies from now on.
pub(crate) async fn place(tx: &Tx, id: VolumeId, node: NodeId) -> Result<(), SchedulerError> {
    volume::Entity::update_many()
        .col_expr(volume::Column::NodeId, Expr::value(node.to_string()))
        .filter(volume::Column::Id.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}

/// Says that a volume is gone.
pub(crate) async fn gone(tx: &Tx, id: VolumeId, now: Timestamp) -> Result<(), SchedulerError> {
    volume::Entity::update_many()
        .col_expr(volume::Column::RemovedAt, Expr::value(now.0))
        .filter(volume::Column::Id.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}
