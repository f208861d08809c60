//! Servers.

use cnlab_db::{DbError, Tx};
use cnlab_model::{
    ProjectName,
    id::{NodeId, ServerId},
};
use scheduler_core::server::State;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, EntityTrait, IntoActiveModel, QueryFilter,
    QueryOrder, QuerySelect,
};

use super::{
    entity::server,
    record::{Server, signed, state_text},
    volume,
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

/// The servers that wait for a slice, oldest first.
pub(crate) async fn queued(db: &impl ConnectionTrait) -> Result<Vec<Server>, SchedulerError> {
    let rows = server::Entity::find()
        .filter(server::Column::State.eq(state_text(State::Queued)))
        .order_by_asc(server::Column::QueuedAt)
        .order_by_asc(server::Column::Id)
        .all(db)
        .await
        .map_err(DbError::from)?;
    records(rows)
}

/// Adds a server and its volume.
///
/// # Errors
/// [`SchedulerError::NameTaken`] when its project has one of that name.
pub(crate) async fn insert(
    tx: &Tx,
    record: &Server,
    volume_on: Option<NodeId>,
) -> Result<(), SchedulerError> {
    // Asked first, since a statement that fails would end a transaction on Postgres; the
    // unique index decides between two at once.
    let taken = || SchedulerError::NameTaken {
        name: record.name.to_string(),
        project: record.project.to_string(),
    };
    let projects = std::slice::from_ref(&record.project);
    if !named(tx, projects, record.name.as_str()).await?.is_empty() {
        return Err(taken());
    }
    let inserted = server::Model::from(record)
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
    let size = record.storage_bytes;
    volume::insert(
        tx,
        record.volume,
        record.id.into(),
        size,
        record.created_at,
        volume_on,
    )
    .await
}

/// Writes a changed server down and raises its version.
///
/// # Errors
/// [`SchedulerError::ChangedMeanwhile`] when its version is not the one that was read.
pub(crate) async fn update(tx: &Tx, record: &mut Server) -> Result<(), SchedulerError> {
    let read = record.version;
    record.version = read.saturating_add(1);
    let written = server::Entity::update_many()
        .set(
            server::Model::from(&*record)
                .into_active_model()
                .reset_all(),
        )
        .filter(server::Column::Id.eq(record.id.to_string()))
        .filter(server::Column::Version.eq(signed(read)))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    if written.rows_affected == 1 {
        Ok(())
    } else {
        Err(SchedulerError::ChangedMeanwhile)
    }
}
