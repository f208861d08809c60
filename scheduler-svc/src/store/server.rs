//! Servers.

use std::collections::BTreeSet;

use cnlab_db::{DbError, Tx};
use cnlab_model::{ProjectName, id::ServerId};
use scheduler_core::server::State;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, Condition, ConnectionTrait, EntityTrait, IntoActiveModel,
    QueryFilter, QueryOrder, QuerySelect,
};

use super::{
    entity::server,
    record::{Server, signed, state_text},
};
use crate::error::SchedulerError;

fn records(rows: Vec<server::Model>) -> Result<Vec<Server>, SchedulerError> {
    rows.into_iter().map(Server::try_from).collect()
}

/// The server of this id, deleted or not.
pub(crate) async fn get(
    db: &impl ConnectionTrait,
    id: ServerId,
) -> Result<Option<Server>, SchedulerError> {
    let row = server::Entity::find_by_id(id.to_string())
        .one(db)
        .await
        .map_err(DbError::from)?;
    row.map(Server::try_from).transpose()
}

/// The servers of these ids, deleted or not.
pub(crate) async fn of_ids(
    db: &impl ConnectionTrait,
    ids: &[ServerId],
) -> Result<Vec<Server>, SchedulerError> {
    let mut found = Vec::new();
    // Far below the variables that a statement may have.
    for ids in ids.chunks(1000) {
        let rows = server::Entity::find()
            .filter(server::Column::Id.is_in(ids.iter().map(ServerId::to_string)))
            .all(db)
            .await
            .map_err(DbError::from)?;
        found.extend(records(rows)?);
    }
    Ok(found)
}

/// The servers of these projects that are not deleted, with this name.
pub(crate) async fn named(
    db: &impl ConnectionTrait,
    projects: &[ProjectName],
    name: &str,
) -> Result<Vec<Server>, SchedulerError> {
    let live: Vec<String> = projects
        .iter()
        .map(|project| format!("{project}/{name}"))
        .collect();
    let rows = server::Entity::find()
        .filter(server::Column::LiveName.is_in(live))
        .order_by_asc(server::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// The servers of these projects that are not deleted, newest first, from before `before`.
pub(crate) async fn list(
    db: &impl ConnectionTrait,
    projects: &[ProjectName],
    before: Option<ServerId>,
    limit: u64,
) -> Result<Vec<Server>, SchedulerError> {
    let mut find = server::Entity::find()
        .filter(server::Column::Project.is_in(projects.iter().map(ProjectName::as_str)))
        .filter(server::Column::State.ne(state_text(State::Deleted)));
    if let Some(before) = before {
        find = find.filter(server::Column::Id.lt(before.to_string()));
    }
    let rows = find
        .order_by_desc(server::Column::Id)
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
        let found: Vec<Option<String>> = server::Entity::find()
            .select_only()
            .column(server::Column::LiveName)
            .filter(server::Column::LiveName.is_in(some.iter().map(String::as_str)))
            .into_tuple()
            .all(db)
            .await
            .map_err(DbError::from)?;
        taken.extend(found.into_iter().flatten());
    }
    Ok(taken)
}

/// The servers that wait for a slice or have one.
pub(crate) async fn live(db: &impl ConnectionTrait) -> Result<Vec<Server>, SchedulerError> {
    let rows = server::Entity::find()
        .filter(
            Condition::any()
                .add(server::Column::State.eq(state_text(State::Queued)))
                .add(server::Column::GrantId.is_not_null()),
        )
        .order_by_asc(server::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// Writes a changed server down and raises its version.
///
/// # Errors
/// [`SchedulerError::ChangedMeanwhile`] when its version is not the one that was read.
pub(crate) async fn update(tx: &Tx, record: &mut Server) -> Result<(), SchedulerError> {
    record.version = record.version.saturating_add(1);
    if replace(tx, record).await? {
        Ok(())
    } else {
        Err(SchedulerError::ChangedMeanwhile)
    }
}

/// Writes a changed server down over the version before its own. Answers `false` where the row is
/// of another version.
pub(crate) async fn replace(tx: &Tx, record: &Server) -> Result<bool, SchedulerError> {
    let read = record.version.saturating_sub(1);
    let written = server::Entity::update_many()
        .set(server::Model::from(record).into_active_model().reset_all())
        .filter(server::Column::Id.eq(record.id.to_string()))
        .filter(server::Column::Version.eq(signed(read)))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(written.rows_affected == 1)
}
