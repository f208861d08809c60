//! Runs.

use cnlab_db::{DbError, Tx};
use cnlab_model::{ProjectName, id::RunId};
use scheduler_core::run::State;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, EntityTrait, IntoActiveModel, QueryFilter,
    QueryOrder, QuerySelect,
};

use super::{
    entity::run,
    record::{Run, run_state_text as state_text, signed},
    volume,
};
use crate::error::SchedulerError;

fn records(rows: Vec<run::Model>) -> Result<Vec<Run>, SchedulerError> {
    rows.into_iter().map(Run::try_from).collect()
}

/// The run of this id, deleted or not.
pub(crate) async fn get(
    db: &impl ConnectionTrait,
    id: RunId,
) -> Result<Option<Run>, SchedulerError> {
    let row = run::Entity::find_by_id(id.to_string())
        .one(db)
        .await
        .map_err(DbError::from)?;
    row.map(Run::try_from).transpose()
}

/// The runs of these projects that are not deleted, with this name.
pub(crate) async fn named(
    db: &impl ConnectionTrait,
    projects: &[ProjectName],
    name: &str,
) -> Result<Vec<Run>, SchedulerError> {
    let live: Vec<String> = projects
        .iter()
        .map(|project| format!("{project}/{name}"))
        .collect();
    let rows = run::Entity::find()
        .filter(run::Column::LiveName.is_in(live))
        .order_by_asc(run::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// The runs of these projects that are not deleted, newest first, from before `before`.
pub(crate) async fn list(
    db: &impl ConnectionTrait,
    projects: &[ProjectName],
    before: Option<RunId>,
    limit: u64,
) -> Result<Vec<Run>, SchedulerError> {
    let mut find = run::Entity::find()
        .filter(run::Column::Project.is_in(projects.iter().map(ProjectName::as_str)))
        .filter(run::Column::State.ne(state_text(State::Deleted)));
    if let Some(before) = before {
        find = find.filter(run::Column::Id.lt(before.to_string()));
    }
    let rows = find
        .order_by_desc(run::Column::Id)
        .limit(limit)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// The runs that wait for a slice, in the order of their ids.
pub(crate) async fn queued(db: &impl ConnectionTrait) -> Result<Vec<Run>, SchedulerError> {
    let rows = run::Entity::find()
        .filter(run::Column::State.eq(state_text(State::Queued)))
        .order_by_asc(run::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// The latest runs of an image that ended by themselves or when their time was over, oldest
/// first.
pub(crate) async fn ended(
    db: &impl ConnectionTrait,
    image: &str,
    latest: u64,
) -> Result<Vec<Run>, SchedulerError> {
    let by_themselves = [State::Succeeded, State::Failed, State::TimedOut].map(state_text);
    let rows = run::Entity::find()
        .filter(run::Column::Image.eq(image))
        .filter(run::Column::State.is_in(by_themselves))
        .filter(run::Column::StartedAt.is_not_null())
        .filter(run::Column::EndedAt.is_not_null())
        .order_by_desc(run::Column::EndedAt)
        .limit(latest)
        .all(db)
        .await
        .map_err(DbError::from)?;
    let mut runs = records(rows)?;
    runs.reverse();
    Ok(runs)
}

/// Adds a run and its volume.
///
/// # Errors
/// [`SchedulerError::RunNameTaken`] when its project has one of that name.
pub(crate) async fn insert(tx: &Tx, record: &Run) -> Result<(), SchedulerError> {
    // Asked first, since a statement that fails would end a transaction on Postgres; the
    // unique index decides between two at once.
    let taken = || SchedulerError::RunNameTaken {
        name: record.name.to_string(),
        project: record.project.to_string(),
    };
    let projects = std::slice::from_ref(&record.project);
    if !named(tx, projects, record.name.as_str()).await?.is_empty() {
        return Err(taken());
    }
    let inserted = run::Model::from(record)
        .into_active_model()
        .reset_all()
        .insert(tx)
        .await
        .map_err(DbError::from);
    match inserted {
        Ok(_) => {}
        Err(error) if error.is_unique_violation() => return Err(taken()),
        Err(error) => return Err(error.into()),
    }
    volume::insert(
        tx,
        record.volume,
        record.id.into(),
        record.storage_bytes,
        record.created_at,
        record.node,
    )
    .await
}

/// Writes a changed run down and raises its version.
///
/// # Errors
/// [`SchedulerError::ChangedMeanwhile`] when its version is not the one that was read.
pub(crate) async fn update(tx: &Tx, record: &mut Run) -> Result<(), SchedulerError> {
    let read = record.version;
    record.version = read.saturating_add(1);
    let written = run::Entity::update_many()
        .set(run::Model::from(&*record).into_active_model().reset_all())
        .filter(run::Column::Id.eq(record.id.to_string()))
        .filter(run::Column::Version.eq(signed(read)))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    if written.rows_affected == 1 {
        Ok(())
    } else {
        Err(SchedulerError::ChangedMeanwhile)
    }
}
