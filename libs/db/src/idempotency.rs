//! Makes a request that is sent twice have one effect and one answer.
//!
//! **Invariant**: the key, the mutation and the response are committed together, so a key is
//! either unknown or has its response. Two that come at once are ordered by the database: the
//! second sees the first one's response.

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::Timestamp;
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, Condition, ConnectionTrait, EntityTrait, IsolationLevel, QueryFilter,
    sea_query::{Expr, ExprTrait, OnConflict, Query},
};
use sha2::{Digest, Sha256};

use crate::{connect::Db, error::DbError, transaction::Tx};

/// Most rows of one statement, far below the variables that it may have.
const ROWS: usize = 500;

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

/// A request under a key, as it was sent.
#[derive(Debug, Clone)]
pub struct Keyed<'a> {
    /// Whoever may not see others' responses.
    pub tenant: String,
    /// The full name of the RPC.
    pub method: &'a str,
    /// The key.
    pub key: &'a str,
    /// The same bytes for the same request.
    pub request: &'a [u8],
}

/// The kept responses of several requests, in their order; `None` for a key that is new.
///
/// For whoever handles all requests of these methods alone: nobody else can take a key between
/// this and [`keep`], which would notice.
///
/// # Errors
/// What the database says. A key that was used with another request is an error in its place.
pub async fn kept(
    db: &impl ConnectionTrait,
    requests: &[Keyed<'_>],
    now: Timestamp,
) -> Result<Vec<Result<Option<Vec<u8>>, DbError>>, DbError> {
    let mut rows: BTreeMap<(String, String, String), row::Model> = BTreeMap::new();
    for some in requests.chunks(ROWS) {
        let any = some
            .iter()
            .map(|one| of(&one.tenant, one.method, one.key))
            .fold(Condition::any(), Condition::add);
        let found = row::Entity::find()
            .filter(any)
            .filter(row::Column::ExpiresAt.gt(now.0))
            .all(db)
            .await?;
        for row in found {
            let id = (row.tenant.clone(), row.method.clone(), row.key.clone());
            rows.insert(id, row);
        }
    }
    let answer = |one: &Keyed<'_>| {
        let id = (
            one.tenant.clone(),
            one.method.to_owned(),
            one.key.to_owned(),
        );
        let Some(row) = rows.get(&id) else {
            return Ok(None);
        };
        if row.request_hash != Sha256::digest(one.request).to_vec() {
            return Err(DbError::IdempotencyMismatch);
        }
        match &row.response {
            Some(response) => Ok(Some(response.clone())),
            None => Err(DbError::IdempotencyUnfinished),
        }
    };
    Ok(requests.iter().map(answer).collect())
}

/// Records requests that were done in this transaction, with their responses.
///
/// # Errors
/// [`DbError::IdempotencyUnfinished`] when one of the keys was taken meanwhile; what the
/// database says.
pub async fn keep(tx: &Tx, done: &[(Keyed<'_>, Vec<u8>)], now: Timestamp) -> Result<(), DbError> {
    let expires_at = now.plus(KEPT).0;
    for some in done.chunks(ROWS) {
        let rows = some.iter().map(|(one, response)| row::ActiveModel {
            tenant: Set(one.tenant.clone()),
            method: Set(one.method.to_owned()),
            key: Set(one.key.to_owned()),
            request_hash: Set(Sha256::digest(one.request).to_vec()),
            response: Set(Some(response.clone())),
            expires_at: Set(expires_at),
        });
        let key = [row::Column::Tenant, row::Column::Method, row::Column::Key];
        let replaced = [
            row::Column::RequestHash,
            row::Column::Response,
            row::Column::ExpiresAt,
        ];
        // One that has expired is as good as gone.
        let written = row::Entity::insert_many(rows)
            .on_conflict(
                OnConflict::columns(key)
                    .update_columns(replaced)
                    .action_and_where(Expr::col((row::Entity, row::Column::ExpiresAt)).lte(now.0))
                    .to_owned(),
            )
            .exec_without_returning(tx)
            .await?;
        if usize::try_from(written).ok() != Some(some.len()) {
            return Err(DbError::IdempotencyUnfinished);
        }
    }
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
