//! Tokens, open codes and sessions. Only hashes come here, never a credential.

use cnlab_model::{
    Timestamp,
    id::{ServerId, TokenId, UserId},
};
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter,
    sea_query::{Expr, OnConflict},
};

use super::entity::{open_code, session, token};
use crate::error::Error;

/// SHA-256 of a credential's text.
pub(crate) type Hash = [u8; 32];

/// A user's token as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenRecord {
    pub(crate) id: TokenId,
    pub(crate) user_id: UserId,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked: bool,
}

/// An open code or a session as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrowserRecord {
    pub(crate) user_id: UserId,
    pub(crate) server_id: ServerId,
    pub(crate) expires_at: Timestamp,
    /// Redeemed, for a code.
    pub(crate) ended: bool,
}

pub(crate) async fn token(
    connection: &impl ConnectionTrait,
    hash: &Hash,
) -> Result<Option<TokenRecord>, Error> {
    let row = token::Entity::find()
        .filter(token::Column::Hash.eq(hash.to_vec()))
        .one(connection)
        .await?;
    row.map(|row| {
        Ok(TokenRecord {
            id: row.id.parse().map_err(|_| Error::Row("id of a token"))?,
            user_id: row
                .user_id
                .parse()
                .map_err(|_| Error::Row("user of a token"))?,
            expires_at: row.expires_at.map(Timestamp),
            revoked: row.revoked_at.is_some(),
        })
    })
    .transpose()
}

/// Records a token that does not expire; one with this hash becomes the user's and valid again.
pub(crate) async fn validate_token(
    tx: &impl ConnectionTrait,
    id: TokenId,
    hash: &Hash,
    user: UserId,
    now: Timestamp,
) -> Result<(), Error> {
    let row = token::ActiveModel {
        id: Set(id.to_string()),
        hash: Set(hash.to_vec()),
        user_id: Set(user.to_string()),
        created_at: Set(now.0),
        expires_at: Set(None),
        revoked_at: Set(None),
    };
    let again = OnConflict::column(token::Column::Hash)
        .update_columns([
            token::Column::UserId,
            token::Column::ExpiresAt,
            token::Column::RevokedAt,
        ])
        .to_owned();
    token::Entity::insert(row)
        .on_conflict(again)
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

pub(crate) async fn insert_code(
    tx: &impl ConnectionTrait,
    hash: &Hash,
    user: UserId,
    server: ServerId,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), Error> {
    let row = open_code::ActiveModel {
        hash: Set(hash.to_vec()),
        user_id: Set(user.to_string()),
        server_id: Set(server.to_string()),
        created_at: Set(now.0),
        expires_at: Set(expires_at.0),
        ended_at: Set(None),
    };
    open_code::Entity::insert(row)
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

/// Uses a code up: true for the one caller that did.
pub(crate) async fn redeem_code(
    tx: &impl ConnectionTrait,
    hash: &Hash,
    server: ServerId,
    now: Timestamp,
) -> Result<bool, Error> {
    let used = open_code::Entity::update_many()
        .col_expr(open_code::Column::EndedAt, Expr::val(now.0))
        .filter(open_code::Column::Hash.eq(hash.to_vec()))
        .filter(open_code::Column::ServerId.eq(server.to_string()))
        .filter(open_code::Column::EndedAt.is_null())
        .filter(open_code::Column::ExpiresAt.gt(now.0))
        .exec(tx)
        .await?;
    Ok(used.rows_affected == 1)
}

pub(crate) async fn code(
    connection: &impl ConnectionTrait,
    hash: &Hash,
) -> Result<Option<BrowserRecord>, Error> {
    let row = open_code::Entity::find_by_id(hash.to_vec())
        .one(connection)
        .await?;
    row.map(|row| browser(&row.user_id, &row.server_id, row.expires_at, row.ended_at))
        .transpose()
}

pub(crate) async fn insert_session(
    tx: &impl ConnectionTrait,
    hash: &Hash,
    user: UserId,
    server: ServerId,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), Error> {
    let row = session::ActiveModel {
        hash: Set(hash.to_vec()),
        user_id: Set(user.to_string()),
        server_id: Set(server.to_string()),
        created_at: Set(now.0),
        expires_at: Set(expires_at.0),
        ended_at: Set(None),
    };
    session::Entity::insert(row)
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

pub(crate) async fn session(
    connection: &impl ConnectionTrait,
    hash: &Hash,
) -> Result<Option<BrowserRecord>, Error> {
    let row = session::Entity::find_by_id(hash.to_vec())
        .one(connection)
        .await?;
    row.map(|row| browser(&row.user_id, &row.server_id, row.expires_at, row.ended_at))
        .transpose()
}

/// Deletes codes and sessions that expired before this time and returns how many.
pub(crate) async fn purge(
    tx: &impl ConnectionTrait,
    expired_before: Timestamp,
) -> Result<u64, Error> {
    let codes = open_code::Entity::delete_many()
        .filter(open_code::Column::ExpiresAt.lt(expired_before.0))
        .exec(tx)
        .await?;
    let sessions = session::Entity::delete_many()
        .filter(session::Column::ExpiresAt.lt(expired_before.0))
        .exec(tx)
        .await?;
    Ok(codes.rows_affected.saturating_add(sessions.rows_affected))
}

fn browser(
    user: &str,
    server: &str,
    expires_at: i64,
    ended_at: Option<i64>,
) -> Result<BrowserRecord, Error> {
    Ok(BrowserRecord {
        user_id: user.parse().map_err(|_| Error::Row("user of a sign-in"))?,
        server_id: server
            .parse()
            .map_err(|_| Error::Row("server of a sign-in"))?,
        expires_at: Timestamp(expires_at),
        ended: ended_at.is_some(),
    })
}
