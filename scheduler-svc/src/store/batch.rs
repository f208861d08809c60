//! Many decisions in one transaction: what it costs to make a decision durable is shared by all
//! that are made together.

use std::collections::{BTreeMap, BTreeSet};

use cnlab_db::{
    DbError, Tx,
    idempotency::{self, Keyed},
};
use cnlab_model::{
    Timestamp,
    id::{NodeId, WorkloadId},
};
use sea_orm::{
    ActiveModelTrait as _,
    ActiveValue::Set,
    ColumnTrait, Condition, EntityTrait, IntoActiveModel, QueryFilter,
    sea_query::{Expr, ExprTrait, OnConflict},
};

use super::{
    entity::{fence, gpu, grant as grant_row, run as run_row, server as server_row, volume},
    grant::CELL,
    job::{self, NewJob},
    record::{Gpu, Grant, Slice, signed},
    roster, run, server,
};
use crate::{app::once::Attempt, cell::Who, error::SchedulerError};

/// Rows of one statement, far below the variables that it may have.
const ROWS: usize = 400;

/// A server or run as it is to be written.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) who: Who,
    /// Whether it is new; else it replaces the row of the version before.
    pub(crate) new: bool,
    /// With the fence still to be given.
    pub(crate) grant: Option<Grant>,
    /// What is told to others if the line is written.
    pub(crate) jobs: Vec<NewJob>,
}

/// The answer to a request under a key.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) attempt: &'a Attempt,
    /// Given the line as it was written.
    pub(crate) response: Vec<u8>,
}

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Those whose rows somebody changed meanwhile: nothing of them was written.
    pub(crate) lost: BTreeSet<WorkloadId>,
    /// The fence before the first grant of this batch.
    pub(crate) fence: u64,
}

impl Written {
    /// The grants of these lines, with their fences.
    pub(crate) fn grants(&self, lines: &[Line]) -> BTreeMap<WorkloadId, Grant> {
        let kept = lines
            .iter()
            .filter(|line| !self.lost.contains(&line.who.id()));
        kept.filter_map(|line| line.grant.clone())
            .zip(self.fence.saturating_add(1)..)
            .map(|(grant, fence)| (grant.workload, Grant { fence, ..grant }))
            .collect()
    }
}

/// Writes lines down, and the answers that `answers` makes of them once the fences are known.
///
/// # Errors
/// [`SchedulerError::NotLeading`] when somebody else leads the cell in a later term;
/// [`SchedulerError::SliceTaken`] when a block is not free;
/// [`SchedulerError::NodeCordoned`] when nothing new may begin on a node. Nothing is written
/// then.
pub(crate) async fn write<'a>(
    tx: &Tx,
    term: u64,
    lines: &[Line],
    answers: impl Fn(&Written) -> Vec<Answer<'a>>,
    now: Timestamp,
) -> Result<Written, SchedulerError> {
    let mut written = Written {
        lost: update(tx, lines).await?,
        fence: 0,
    };
    let kept: Vec<&Line> = lines
        .iter()
        .filter(|line| !written.lost.contains(&line.who.id()))
        .collect();
    let grants = kept.iter().filter(|line| line.grant.is_some()).count();
    written.fence = fences(tx, term, grants).await?;
    insert(tx, &kept).await?;
    let granted: Vec<Grant> = written.grants(lines).into_values().collect();
    take(tx, &granted).await?;
    place_volumes(tx, &kept).await?;
    let jobs = kept.iter().flat_map(|line| line.jobs.iter().cloned());
    job::push_all(tx, jobs.collect(), now).await?;
    let done: Vec<(Keyed<'_>, Vec<u8>)> = answers(&written)
        .into_iter()
        .filter_map(|answer| Some((answer.attempt.keyed()?, answer.response)))
        .collect();
    idempotency::keep(tx, &done, now).await?;
    Ok(written)
}

/// Raises the counter of fences by so many, in the term of this leader.
async fn fences(tx: &Tx, term: u64, count: usize) -> Result<u64, SchedulerError> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let raised = fence::Entity::update_many()
        .col_expr(
            fence::Column::Value,
            Expr::col(fence::Column::Value).add(count),
        )
        .filter(fence::Column::Cell.eq(CELL))
        .filter(fence::Column::Term.eq(signed(term)))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    if raised.rows_affected != 1 {
        return Err(SchedulerError::NotLeading);
    }
    let row = fence::Entity::find_by_id(CELL)
        .one(tx)
        .await
        .map_err(DbError::from)?;
    row.and_then(|row| u64::try_from(row.value.checked_sub(count)?).ok())
        .ok_or_else(|| SchedulerError::Row {
            table: "fences",
            id: CELL.to_string(),
            problem: "the counter of this cell is gone".to_owned(),
        })
}

/// Answers who was changed by somebody else.
async fn update(tx: &Tx, lines: &[Line]) -> Result<BTreeSet<WorkloadId>, SchedulerError> {
    let mut lost = BTreeSet::new();
    for line in lines.iter().filter(|line| !line.new) {
        let replaced = match &line.who {
            Who::Server(record) => server::replace(tx, record).await?,
            Who::Run(record) => run::replace(tx, record).await?,
        };
        if !replaced {
            lost.insert(line.who.id());
        }
    }
    Ok(lost)
}

async fn insert(tx: &Tx, lines: &[&Line]) -> Result<(), SchedulerError> {
    let mut servers = Vec::new();
    let mut runs = Vec::new();
    let mut volumes = Vec::new();
    for line in lines.iter().filter(|line| line.new) {
        let (size, since) = match &line.who {
            Who::Server(record) => {
                servers.push(
                    server_row::Model::from(&**record)
                        .into_active_model()
                        .reset_all(),
                );
                (record.storage_bytes, record.created_at)
            }
            Who::Run(record) => {
                runs.push(
                    run_row::Model::from(&**record)
                        .into_active_model()
                        .reset_all(),
                );
                (record.storage_bytes, record.created_at)
            }
        };
        volumes.push(volume::ActiveModel {
            id: Set(line.who.volume().to_string()),
            workload_id: Set(line.who.id().to_string()),
            size_bytes: Set(signed(size)),
            node_id: Set(line.grant.as_ref().map(|grant| grant.node.to_string())),
            created_at: Set(since.0),
            removed_at: Set(None),
        });
    }
    many::<server_row::Entity, _>(tx, servers).await?;
    many::<run_row::Entity, _>(tx, runs).await?;
    many::<volume::Entity, _>(tx, volumes).await
}

async fn many<E, A>(tx: &Tx, rows: Vec<A>) -> Result<(), SchedulerError>
where
    E: EntityTrait,
    A: sea_orm::ActiveModelTrait<Entity = E> + Send,
{
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        E::insert_many(rows.by_ref().take(ROWS))
            .exec_without_returning(tx)
            .await
            .map_err(DbError::from)?;
    }
    Ok(())
}

/// Takes the blocks of these grants, and writes the grants down. Somebody may have cordoned a
/// node since they were decided.
pub(crate) async fn take(tx: &Tx, grants: &[Grant]) -> Result<(), SchedulerError> {
    let mut wanted: BTreeMap<(NodeId, &str), Vec<&Slice>> = BTreeMap::new();
    for grant in grants {
        for slice in &grant.slices {
            let key = (grant.node, slice.gpu_uuid.as_str());
            wanted.entry(key).or_default().push(slice);
        }
    }
    let keys: Vec<(NodeId, &str)> = wanted.keys().copied().collect();
    let nodes: BTreeSet<NodeId> = keys.iter().map(|(node, _)| *node).collect();
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    for some in nodes.chunks(ROWS) {
        if let Some(node) = roster::cordoned(tx, some).await? {
            return Err(SchedulerError::NodeCordoned { node });
        }
    }
    for some in keys.chunks(ROWS) {
        let any = some.iter().fold(Condition::any(), |any, (node, uuid)| {
            any.add(
                gpu::Column::NodeId
                    .eq(node.to_string())
                    .and(gpu::Column::Uuid.eq(*uuid)),
            )
        });
        let rows = gpu::Entity::find()
            .filter(any)
            .all(tx)
            .await
            .map_err(DbError::from)?;
        if rows.len() != some.len() {
            return Err(SchedulerError::SliceTaken);
        }
        let mut changed = Vec::new();
        for row in rows {
            let mut gpu = Gpu::try_from(row)?;
            if !gpu.present {
                return Err(SchedulerError::SliceTaken);
            }
            for slice in wanted
                .get(&(gpu.node, gpu.uuid.as_str()))
                .into_iter()
                .flatten()
            {
                if gpu.taken.overlaps(slice.blocks) {
                    return Err(SchedulerError::SliceTaken);
                }
                gpu.taken = gpu.taken.union(slice.blocks);
            }
            gpu.version = gpu.version.saturating_add(1);
            changed.push(gpu::Model::from(&gpu).into_active_model().reset_all());
        }
        // The rows are there, so this only ever updates; one statement for all of them.
        gpu::Entity::insert_many(changed)
            .on_conflict(
                OnConflict::columns([gpu::Column::NodeId, gpu::Column::Uuid])
                    .update_columns([gpu::Column::Taken, gpu::Column::Version])
                    .to_owned(),
            )
            .exec_without_returning(tx)
            .await
            .map_err(DbError::from)?;
    }
    let rows = grants.iter().map(|grant| {
        grant_row::Model::from(grant)
            .into_active_model()
            .reset_all()
    });
    many::<grant_row::Entity, _>(tx, rows.collect()).await
}

/// Says where the volumes of those lie that were there before and have a slice now.
async fn place_volumes(tx: &Tx, lines: &[&Line]) -> Result<(), SchedulerError> {
    for line in lines.iter().filter(|line| !line.new) {
        if let Some(grant) = &line.grant {
            super::volume::place(tx, line.who.volume(), grant.node).await?;
        }
    }
    Ok(())
}
