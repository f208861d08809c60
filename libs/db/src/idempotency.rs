//! Makes a request that is sent twice have one effect and one answer.
//!
//! **Invariant**: the key, the mutation and the response are committed together, so a key is
//! either unknown or has its response. Two that come at once are ordered by the database: the
//! second sees the first one's response.

use std::time::Duration;

use cnlab_model::Timestamp;
use sea_orm::{
    ColumnTrait, ConnectionTrait, EntityTrait, IsolationLevel, QueryFilter,
    sea_query::{Expr, ExprTrait, OnConflict, Query},
};
use sha2::{Digest, Sha256};

use crate::{connect::Db, error::DbError, transaction::Tx};

/// How long a response is kept.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

mod row {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "idempotency")]
    pub(super) struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub tenant: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub method: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub key: String,
        pub request_hash: Vec<u8>,
        pub response: Option<Vec<u8>>,
        pub expires_at: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub(super) enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// What a key stands for.
#[derive(Debug)]
#[must_use]
pub enum Begun {
    /// It is new: do the work, then [`finish`] with its response.
    Fresh(Pending),
    /// It was done before: this was the response.
    Replay(Vec<u8>),
}

/// A key that was begun in this transaction.
#[derive(Debug)]
#[must_use]
pub struct Pending {
    tenant: String,
    method: String,
    key: String,
}

/// Looks a key up and takes it when it is new. To be called first in the transaction.
///
/// `tenant` is whoever may not see others' responses, `method` the full name of the RPC.
/// `request` must be the same bytes for the same request (a protobuf message without maps is).
///
/// # Errors
/// [`DbError::IdempotencyMismatch`] when the key was used with another request.
pub async fn begin(
    tx: &Tx,
    tenant: &str,
    method: &str,
    key: &str,
    request: &[u8],
    now: Timestamp,
) -> Result<Begun, DbError> {
    let hash = Sha256::digest(request).to_vec();
    let expires_at = now.plus(KEPT).0;
    let fresh = || {
        Begun::Fresh(Pending {
            tenant: tenant.to_owned(),
            method: method.to_owned(),
            key: key.to_owned(),
        })
    };
    let insert = Query::insert()
        .into_table(row::Entity)
        .columns([
            row::Column::Tenant,
            row::Column::Method,
            row::Column::Key,
            row::Column::RequestHash,
            row::Column::ExpiresAt,
        ])
        .values_panic([
            tenant.into(),
            method.into(),
            key.into(),
            hash.clone().into(),
            expires_at.into(),
        ])
        .on_conflict(OnConflict::new().do_nothing().to_owned())
        .take();
    if tx.execute(&insert).await?.rows_affected() == 1 {
        return Ok(fresh());
    }
    let id = (tenant.to_owned(), method.to_owned(), key.to_owned());
    let Some(found) = row::Entity::find_by_id(id).one(tx).await? else {
        // It expired and was purged between the two statements.
        return Err(DbError::IdempotencyUnfinished);
    };
    if found.expires_at <= now.0 {
        row::Entity::update_many()
            .col_expr(row::Column::RequestHash, Expr::val(hash))
            .col_expr(row::Column::Response, Expr::val(None::<Vec<u8>>))
            .col_expr(row::Column::ExpiresAt, Expr::val(expires_at))
            .filter(of(tenant, method, key))
            .exec(tx)
            .await?;
        return Ok(fresh());
    }
    if found.request_hash != hash {
        return Err(DbError::IdempotencyMismatch);
    }
    found
        .response
        .map(Begun::Replay)
        .ok_or(DbError::IdempotencyUnfinished)
}

/// Records the response. To be called last in the transaction that began the key.
///
/// # Errors
/// What the database says.
pub async fn finish(tx: &Tx, pending: Pending, response: &[u8]) -> Result<(), DbError> {
    row::Entity::update_many()
        .col_expr(row::Column::Response, Expr::val(response.to_vec()))
        .filter(of(&pending.tenant, &pending.method, &pending.key))
        .exec(tx)
        .await?;
    Ok(())
}

/// Deletes the responses that were kept long enough and returns how many there were.
///
/// # Errors
/// What the database says.
pub async fn purge(db: &Db, now: Timestamp) -> Result<u64, DbError> {
    db.write_at(IsolationLevel::ReadCommitted, |tx| async move {
        let deleted = row::Entity::delete_many()
            .filter(row::Column::ExpiresAt.lte(now.0))
            .exec(&tx)
            .await?;
        Ok(deleted.rows_affected)
    })
    .await
}

fn of(tenant: &str, method: &str, key: &str) -> sea_orm::sea_query::SimpleExpr {
    row::Column::Tenant
        .eq(tenant)
        .and(row::Column::Method.eq(method))
        .and(row::Column::Key.eq(key))
}
