//! Nodes and their GPUs.

use cnlab_db::{DbError, Tx};
use cnlab_model::{Blocks, Timestamp, id::NodeId};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, EntityTrait, IntoActiveModel, QueryFilter,
    QueryOrder, QuerySelect,
    sea_query::{Expr, ExprTrait, OnConflict},
};

use super::{
    entity::{gpu, node},
    record::{Cordon, Gpu, Node, json, signed},
};
use crate::error::SchedulerError;

/// All nodes, by id.
pub(crate) async fn nodes(db: &impl ConnectionTrait) -> Result<Vec<Node>, SchedulerError> {
    let rows = node::Entity::find()
        .order_by_asc(node::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    rows.into_iter().map(Node::try_from).collect()
}

/// The nodes that were not heard of since `before`, by id.
pub(crate) async fn silent(
    db: &impl ConnectionTrait,
    before: Timestamp,
) -> Result<Vec<Node>, SchedulerError> {
    let rows = node::Entity::find()
        .filter(node::Column::LastSeenAt.lt(before.0))
        .order_by_asc(node::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    rows.into_iter().map(Node::try_from).collect()
}

/// The node of this id.
pub(crate) async fn node(
    db: &impl ConnectionTrait,
    id: NodeId,
) -> Result<Option<Node>, SchedulerError> {
    let row = node::Entity::find_by_id(id.to_string())
        .one(db)
        .await
        .map_err(DbError::from)?;
    row.map(Node::try_from).transpose()
}

/// The nodes of this name: names are not unique, since a node that lost its identity comes back
/// as another one.
pub(crate) async fn named(
    db: &impl ConnectionTrait,
    name: &str,
) -> Result<Vec<Node>, SchedulerError> {
    let rows = node::Entity::find()
        .filter(node::Column::Name.eq(name))
        .order_by_asc(node::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    rows.into_iter().map(Node::try_from).collect()
}

/// The first nodes by id, from after `after`.
pub(crate) async fn page(
    db: &impl ConnectionTrait,
    after: Option<NodeId>,
    limit: u64,
) -> Result<Vec<Node>, SchedulerError> {
    let mut find = node::Entity::find();
    if let Some(after) = after {
        find = find.filter(node::Column::Id.gt(after.to_string()));
    }
    let rows = find
        .order_by_asc(node::Column::Id)
        .limit(limit)
        .all(db)
        .await
        .map_err(DbError::from)?;
    rows.into_iter().map(Node::try_from).collect()
}

/// The GPUs that these nodes reported when they last registered.
pub(crate) async fn gpus_on(
    db: &impl ConnectionTrait,
    nodes: &[NodeId],
) -> Result<Vec<Gpu>, SchedulerError> {
    let mut found = Vec::new();
    // Far below the variables that a statement may have.
    for nodes in nodes.chunks(1000) {
        let rows = gpu::Entity::find()
            .filter(gpu::Column::Present.eq(true))
            .filter(gpu::Column::NodeId.is_in(nodes.iter().map(NodeId::to_string)))
            .order_by_asc(gpu::Column::NodeId)
            .order_by_asc(gpu::Column::Uuid)
            .all(db)
            .await
            .map_err(DbError::from)?;
        for row in rows {
            found.push(Gpu::try_from(row)?);
        }
    }
    Ok(found)
}

/// Marks a node as cordoned, or takes the mark away. The versions of its GPUs rise with it:
/// of this and a batch that takes blocks there at the same time, PostgreSQL repeats the later
/// one, so that a batch which comes after the mark sees it ([`cordoned`]).
pub(crate) async fn mark(
    tx: &Tx,
    id: NodeId,
    cordon: Option<&Cordon>,
) -> Result<(), SchedulerError> {
    node::Entity::update_many()
        .col_expr(
            node::Column::CordonedAt,
            Expr::value(cordon.map(|cordon| cordon.since.0)),
        )
        .col_expr(
            node::Column::CordonReason,
            Expr::value(cordon.map_or("", |cordon| cordon.reason.as_str())),
        )
        .col_expr(
            node::Column::Drain,
            Expr::value(cordon.is_some_and(|cordon| cordon.drain)),
        )
        .filter(node::Column::Id.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    gpu::Entity::update_many()
        .col_expr(gpu::Column::Version, Expr::col(gpu::Column::Version).add(1))
        .filter(gpu::Column::NodeId.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}

/// One of these nodes that is cordoned, if any is.
pub(crate) async fn cordoned(tx: &Tx, nodes: &[NodeId]) -> Result<Option<NodeId>, SchedulerError> {
    let found = node::Entity::find()
        .filter(node::Column::Id.is_in(nodes.iter().map(NodeId::to_string)))
        .filter(node::Column::CordonedAt.is_not_null())
        .one(tx)
        .await
        .map_err(DbError::from)?;
    Ok(found.map(Node::try_from).transpose()?.map(|node| node.id))
}

/// All GPUs that were ever reported: what is granted on one that is gone stays granted.
pub(crate) async fn all_gpus(db: &impl ConnectionTrait) -> Result<Vec<Gpu>, SchedulerError> {
    let rows = gpu::Entity::find()
        .order_by_asc(gpu::Column::NodeId)
        .order_by_asc(gpu::Column::Uuid)
        .all(db)
        .await
        .map_err(DbError::from)?;
    rows.into_iter().map(Gpu::try_from).collect()
}

/// Writes a node and its GPUs down as they are now. What is granted on its GPUs stays.
///
/// # Errors
/// [`SchedulerError::GpuElsewhere`] when another node holds grants on one of its real GPUs.
pub(crate) async fn register(tx: &Tx, record: &Node, gpus: &[Gpu]) -> Result<(), SchedulerError> {
    let columns = [
        node::Column::Name,
        node::Column::Endpoint,
        node::Column::CpuMilli,
        node::Column::MemoryBytes,
        node::Column::DiskBytes,
        node::Column::DiskFreeBytes,
        node::Column::NotEnforced,
        node::Column::ReadyImages,
        node::Column::RegisteredAt,
        node::Column::LastSeenAt,
    ];
    node::Entity::insert(node::Model::from(record).into_active_model().reset_all())
        .on_conflict(
            OnConflict::column(node::Column::Id)
                .update_columns(columns)
                .to_owned(),
        )
        .exec_without_returning(tx)
        .await
        .map_err(DbError::from)?;
    for gpu in gpus.iter().filter(|gpu| !gpu.simulated) {
        take_over(tx, record.id, &gpu.uuid).await?;
    }
    let known = gpu::Entity::find()
        .filter(gpu::Column::NodeId.eq(record.id.to_string()))
        .all(tx)
        .await
        .map_err(DbError::from)?;
    for row in &known {
        let now = gpus.iter().find(|gpu| gpu.uuid == row.uuid);
        let next = match now {
            Some(gpu) => gpu::Model {
                taken: row.taken.clone(),
                version: row.version.saturating_add(1),
                ..gpu::Model::from(gpu)
            },
            None => gpu::Model {
                present: false,
                version: row.version.saturating_add(1),
                ..row.clone()
            },
        };
        next.into_active_model()
            .reset_all()
            .update(tx)
            .await
            .map_err(DbError::from)?;
    }
    for gpu in gpus {
        if known.iter().all(|row| row.uuid != gpu.uuid) {
            let fresh = Gpu {
                taken: Blocks::EMPTY,
                ..gpu.clone()
            };
            gpu::Model::from(&fresh)
                .into_active_model()
                .reset_all()
                .insert(tx)
                .await
                .map_err(DbError::from)?;
        }
    }
    Ok(())
}

/// Ends that other nodes have a real GPU, which is in one machine only. A node that lost its
/// identity comes back under another one; what the former one holds there keeps its blocks
/// until it is known to be gone (INV-1).
///
/// # Errors
/// [`SchedulerError::GpuElsewhere`] while grants of the other node hold blocks of it.
async fn take_over(tx: &Tx, by: NodeId, uuid: &str) -> Result<(), SchedulerError> {
    let others = gpu::Entity::find()
        .filter(gpu::Column::Uuid.eq(uuid))
        .filter(gpu::Column::NodeId.ne(by.to_string()))
        .all(tx)
        .await
        .map_err(DbError::from)?;
    for row in others {
        let other = Gpu::try_from(row.clone())?;
        if !other.taken.is_empty() {
            return Err(SchedulerError::GpuElsewhere {
                uuid: other.uuid,
                node: other.node,
            });
        }
        let gone = gpu::Model {
            present: false,
            version: row.version.saturating_add(1),
            ..row
        };
        gone.into_active_model()
            .reset_all()
            .update(tx)
            .await
            .map_err(DbError::from)?;
    }
    Ok(())
}

/// Says that a node was heard of.
pub(crate) async fn seen(
    tx: &Tx,
    id: NodeId,
    disk_free_bytes: u64,
    now: Timestamp,
) -> Result<(), SchedulerError> {
    node::Entity::update_many()
        .col_expr(node::Column::LastSeenAt, Expr::value(now.0))
        .col_expr(
            node::Column::DiskFreeBytes,
            Expr::value(signed(disk_free_bytes)),
        )
        .filter(node::Column::Id.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}

/// Says of the nodes that were heard of later than now that it was now.
pub(crate) async fn heard_by(tx: &Tx, now: Timestamp) -> Result<(), SchedulerError> {
    node::Entity::update_many()
        .col_expr(node::Column::LastSeenAt, Expr::value(now.0))
        .filter(node::Column::LastSeenAt.gt(now.0))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}

/// Says that an image's environment is built on a node.
pub(crate) async fn image_ready(tx: &Tx, id: NodeId, image: &str) -> Result<(), SchedulerError> {
    let Some(mut record) = node(tx, id).await? else {
        return Ok(());
    };
    if record.ready_images.iter().any(|ready| ready == image) {
        return Ok(());
    }
    record.ready_images.push(image.to_owned());
    node::Entity::update_many()
        .col_expr(
            node::Column::ReadyImages,
            Expr::value(json(&record.ready_images)),
        )
        .filter(node::Column::Id.eq(id.to_string()))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}
