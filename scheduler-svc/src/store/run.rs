//! Runs.

use std::collections::BTreeSet;

use cnlab_db::{DbError, Tx};
use cnlab_model::{ProjectName, id::RunId};
use scheduler_core::run::State;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, Condition, ConnectionTrait, EntityTrait, IntoActiveModel,
    QueryFilter, QueryOrder, QuerySelect,
};

use super::{
    entity::run,
    record::{Run, run_state_text as state_text, signed},
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

/// The runs of these ids, deleted or not.
pub(crate) async fn of_ids(
    db: &impl ConnectionTrait,
    ids: &[RunId],
) -> Result<Vec<Run>, SchedulerError> {
    let mut found = Vec::new();
    // Far below the variables that a statement may have.
    for ids in ids.chunks(1000) {
        let rows = run::Entity::find()
            .filter(run::Column::Id.is_in(ids.iter().map(RunId::to_string)))
            .all(db)
            .await
            .map_err(DbError::from)?;
        found.extend(records(rows)?);
    }
    Ok(found)
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

/// Which of these `<project>/<name>` are taken.
pub(crate) async fn names_taken(
    db: &impl ConnectionTrait,
    names: &[String],
) -> Result<BTreeSet<String>, SchedulerError> {
    let mut taken = BTreeSet::new();
    // Far below the variables that a statement may have.
    for some in names.chunks(1000) {
        let found: Vec<Option<String>> = run::Entity::find()
            .select_only()
            .column(run::Column::LiveName)
            .filter(run::Column::LiveName.is_in(some.iter().map(String::as_str)))
            .into_tuple()
            .all(db)
            .await
            .map_err(DbError::from)?;
        taken.extend(found.into_iter().flatten());
    }
    Ok(taken)
}

/// The runs that wait for a slice or have one.
pub(crate) async fn live(db: &impl ConnectionTrait) -> Result<Vec<Run>, SchedulerError> {
    let rows = run::Entity::find()
        .filter(
            Condition::any()
                .add(run::Column::State.eq(state_text(State::Queued)))
                .add(run::Column::GrantId.is_not_null()),
        )
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

/// Writes a changed run down and raises its version.
///
/// # Errors
/// [`SchedulerError::ChangedMeanwhile`] when its version is not the one that was read.
pub(crate) async fn update(tx: &Tx, record: &mut Run) -> Result<(), SchedulerError> {
    record.version = record.version.saturating_add(1);
    if replace(tx, record).await? {
        Ok(())
    } else {
        Err(SchedulerError::ChangedMeanwhile)
    }
}

/// Writes a changed run down over the version before its own. Answers `false` where the row is
/// of another version.
pub(crate) async fn replace(tx: &Tx, record: &Run) -> Result<bool, SchedulerError> {
    let read = record.version.saturating_sub(1);
    let written = run::Entity::update_many()
        .set(run::Model::from(record).into_active_model().reset_all())
        .filter(run::Column::Id.eq(record.id.to_string()))
        .filter(run::Column::Version.eq(signed(read)))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(written.rows_affected == 1)
}
