//! Users, their teams and their projects.

use billing_core::AccountName;
use cnlab_model::{
    ProjectName, Timestamp,
    id::{ProjectId, TeamId, UserId},
};
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder,
    sea_query::{Expr, ExprTrait, OnConflict, Query},
};

use super::entity::{membership, project, team, user};
use crate::error::Error;

/// A user with everything that others want to know of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user_id: UserId,
    pub(crate) user_name: String,
    pub(crate) team_id: TeamId,
    pub(crate) team_name: String,
    /// The first is the default.
    pub(crate) projects: Vec<ProjectName>,
}

/// The account of this user.
pub(crate) async fn find(
    connection: &impl ConnectionTrait,
    id: UserId,
) -> Result<Option<Account>, Error> {
    let Some(user) = user::Entity::find_by_id(id.to_string())
        .one(connection)
        .await?
    else {
        return Ok(None);
    };
    let team = team::Entity::find_by_id(&user.team_id)
        .one(connection)
        .await?
        .ok_or(Error::Row("team of a user"))?;
    let joined = Query::select()
        .column((project::Entity, project::Column::Name))
        .from(project::Entity)
        .inner_join(
            membership::Entity,
            Expr::col((membership::Entity, membership::Column::ProjectId))
                .equals((project::Entity, project::Column::Id)),
        )
        .and_where(Expr::col((membership::Entity, membership::Column::UserId)).eq(id.to_string()))
        // The first project that somebody joined is their default.
        .order_by(
            (membership::Entity, membership::Column::CreatedAt),
            sea_orm::Order::Asc,
        )
        .order_by(
            (project::Entity, project::Column::Name),
            sea_orm::Order::Asc,
        )
        .take();
    let mut projects = Vec::new();
    for row in connection.query_all(&joined).await? {
        let name: String = row.try_get("", "name")?;
        projects.push(name.parse().map_err(|_| Error::Row("name of a project"))?);
    }
    Ok(Some(Account {
        user_id: id,
        user_name: user.name,
        team_id: team.id.parse().map_err(|_| Error::Row("id of a team"))?,
        team_name: team.name,
        projects,
    }))
}

/// Makes the team when there is none of this name, and returns the id of the one there is.
pub(crate) async fn ensure_team(
    tx: &impl ConnectionTrait,
    id: TeamId,
    name: &AccountName,
    now: Timestamp,
) -> Result<TeamId, Error> {
    let row = team::ActiveModel {
        id: Set(id.to_string()),
        name: Set(name.to_string()),
        created_at: Set(now.0),
    };
    team::Entity::insert(row)
        .on_conflict(untouched())
        .exec_without_returning(tx)
        .await?;
    let found = team::Entity::find()
        .filter(team::Column::Name.eq(name.as_str()))
        .one(tx)
        .await?;
    parsed(found.map(|row| row.id), "id of a team")
}

/// Makes the user when there is none of this name, and returns the id of the one there is.
pub(crate) async fn ensure_user(
    tx: &impl ConnectionTrait,
    id: UserId,
    name: &AccountName,
    team: TeamId,
    now: Timestamp,
) -> Result<UserId, Error> {
    let row = user::ActiveModel {
        id: Set(id.to_string()),
        name: Set(name.to_string()),
        team_id: Set(team.to_string()),
        created_at: Set(now.0),
    };
    user::Entity::insert(row)
        .on_conflict(untouched())
        .exec_without_returning(tx)
        .await?;
    let found = user::Entity::find()
        .filter(user::Column::Name.eq(name.as_str()))
        .one(tx)
        .await?;
    parsed(found.map(|row| row.id), "id of a user")
}

/// Makes the project when there is none of this name, and makes the user a member of it.
pub(crate) async fn ensure_member(
    tx: &impl ConnectionTrait,
    id: ProjectId,
    name: &ProjectName,
    team: TeamId,
    member: UserId,
    now: Timestamp,
) -> Result<(), Error> {
    let row = project::ActiveModel {
        id: Set(id.to_string()),
        name: Set(name.to_string()),
        team_id: Set(team.to_string()),
        created_at: Set(now.0),
    };
    project::Entity::insert(row)
        .on_conflict(untouched())
        .exec_without_returning(tx)
        .await?;
    let found = project::Entity::find()
        .filter(project::Column::Name.eq(name.as_str()))
        .order_by_asc(project::Column::Id)
        .one(tx)
        .await?;
    let id: ProjectId = parsed(found.map(|row| row.id), "id of a project")?;
    let row = membership::ActiveModel {
        user_id: Set(member.to_string()),
        project_id: Set(id.to_string()),
        created_at: Set(now.0),
    };
    membership::Entity::insert(row)
        .on_conflict(untouched())
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

fn untouched() -> OnConflict {
    OnConflict::new().do_nothing().to_owned()
}

fn parsed<T: std::str::FromStr>(text: Option<String>, what: &'static str) -> Result<T, Error> {
    text.and_then(|text| text.parse().ok())
        .ok_or(Error::Row(what))
}
