//! What other services are to be told, written in the transaction that made it true.
//!
//! **Invariants**
//! - Delivery is at least once: a claim that was neither finished nor renewed in time is handed
//!   out again. Whoever claims calls itself by a name that no other process has, so that it
//!   neither prolongs nor gives back what somebody else holds.
//! - Messages of one aggregate are handed out in the order of their commits, each only after
//!   the one before it was delivered.
//! - A claim takes no more messages for one destination than there is room for, so that one that
//!   does not answer keeps nobody else waiting.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use cnlab_model::Timestamp;
use sea_orm::{
    ActiveModelTrait,
    ActiveValue::Set,
    ColumnTrait, Condition, ConnectionTrait, DbErr, EntityTrait, IsolationLevel, Order,
    PaginatorTrait, QueryFilter, QueryOrder, QuerySelect, Statement,
    sea_query::{Alias, Expr, ExprTrait, LockBehavior, LockType, Query, SelectStatement},
};

use crate::{connect::Db, error::DbError, transaction::Tx};

mod row {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "outbox")]
    pub(super) struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub topic: String,
        pub aggregate: String,
        pub payload: String,
        pub traceparent: Option<String>,
        pub created_at: i64,
        pub not_before: i64,
        pub attempts: i32,
        pub owner: Option<String>,
        pub locked_until: i64,
        pub last_error: Option<String>,
        pub destination: String,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub(super) enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// Most messages of one claim, far below the variables that a statement may have.
const MOST: u64 = 1000;
/// Most rows of one insertion, for the same reason.
const ROWS: usize = 500;

/// A message to be delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// What the message is about, such as `server.created`; chooses the handler.
    pub topic: String,
    /// The object whose messages are delivered in order, usually its id.
    pub aggregate: String,
    /// Who is to be told; see [`Room`].
    pub destination: String,
    /// The content.
    pub payload: serde_json::Value,
    /// The W3C trace context of the request behind it.
    pub traceparent: Option<String>,
    /// When it happened.
    pub now: Timestamp,
}

/// A message that was claimed for delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Rises with every message of a database.
    pub id: i64,
    /// As it was pushed.
    pub topic: String,
    /// As it was pushed.
    pub aggregate: String,
    /// As it was pushed.
    pub destination: String,
    /// As it was pushed.
    pub payload: serde_json::Value,
    /// As it was pushed.
    pub traceparent: Option<String>,
    /// When it was pushed.
    pub created_at: Timestamp,
    /// How often it was claimed, this time included.
    pub attempts: u32,
}

/// How many messages a claim may hand out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// All together; never more than 1,000 whatever this says.
    pub all: u64,
    /// For each destination that is not in `of`.
    pub each: u64,
    /// For these destinations.
    pub of: BTreeMap<String, u64>,
}

impl Room {
    /// Room for so many, whoever they are for.
    #[must_use]
    pub const fn for_any(all: u64) -> Self {
        Self {
            all,
            each: all,
            of: BTreeMap::new(),
        }
    }
}

/// Adds a message to the transaction and returns its id.
///
/// # Errors
/// What the database says.
pub async fn push(tx: &Tx, message: NewMessage) -> Result<i64, DbError> {
    if tx.get_database_backend() == sea_orm::DbBackend::Postgres {
        // Ids are given before the commit. Two transactions that push for one aggregate must
        // therefore not run side by side, or the later id could be delivered first.
        let lock = Query::select()
            .expr(Expr::cust_with_values(
                "pg_advisory_xact_lock(hashtextextended($1, 0))",
                [message.aggregate.as_str()],
            ))
            .take();
        tx.query_one(&lock).await?;
    }
    Ok(active(message).insert(tx).await?.id)
}

/// Adds messages to the transaction, in this order.
///
/// # Errors
/// What the database says.
pub async fn push_all(tx: &Tx, messages: Vec<NewMessage>) -> Result<(), DbError> {
    if tx.get_database_backend() == sea_orm::DbBackend::Postgres {
        // As in `push`, in one order for everybody.
        let aggregates: BTreeSet<&str> = messages
            .iter()
            .map(|message| message.aggregate.as_str())
            .collect();
        let aggregates: Vec<&str> = aggregates.into_iter().collect();
        for some in aggregates.chunks(ROWS) {
            let listed: Vec<String> = (1..=some.len()).map(|n| format!("(${n})")).collect();
            let sql = format!(
                "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) \
                 FROM (VALUES {}) AS locked (name)",
                listed.join(", ")
            );
            let names = some.iter().map(|name| sea_orm::Value::from(*name));
            let lock = Statement::from_sql_and_values(sea_orm::DbBackend::Postgres, sql, names);
            tx.query_all_raw(lock).await?;
        }
    }
    let mut rows = messages.into_iter().map(active).peekable();
    while rows.peek().is_some() {
        row::Entity::insert_many(rows.by_ref().take(ROWS))
            .exec_without_returning(tx)
            .await?;
    }
    Ok(())
}

fn active(message: NewMessage) -> row::ActiveModel {
    row::ActiveModel {
        topic: Set(message.topic),
        aggregate: Set(message.aggregate),
        destination: Set(message.destination),
        payload: Set(message.payload.to_string()),
        traceparent: Set(message.traceparent),
        created_at: Set(message.now.0),
        not_before: Set(message.now.0),
        attempts: Set(0),
        owner: Set(None),
        locked_until: Set(i64::MIN),
        last_error: Set(None),
        ..Default::default()
    }
}

/// Hands out messages that are due, those that were due first before others and at most one per
/// aggregate: its oldest. Until the time `until` nobody else gets them.
///
/// # Errors
/// What the database says.
pub async fn claim(
    db: &Db,
    owner: &str,
    now: Timestamp,
    until: Timestamp,
    room: &Room,
) -> Result<Vec<Message>, DbError> {
    // Not SERIALIZABLE: claims that run side by side skip each other's rows by their locks.
    db.write_at(IsolationLevel::ReadCommitted, |tx| async move {
        let rows = due(&tx, now, room).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        row::Entity::update_many()
            .col_expr(row::Column::Owner, Expr::val(owner))
            .col_expr(row::Column::LockedUntil, Expr::val(until.0))
            .col_expr(
                row::Column::Attempts,
                Expr::col(row::Column::Attempts).add(1),
            )
            .filter(row::Column::Id.is_in(rows.iter().map(|row| row.id)))
            .exec(&tx)
            .await?;
        rows.into_iter().map(Message::try_from).collect()
    })
    .await
}

/// Finds what a claim hands out, and locks it.
async fn due(tx: &Tx, now: Timestamp, room: &Room) -> Result<Vec<row::Model>, DbError> {
    let most = std::cmp::min(room.all, MOST);
    let mut left = room.of.clone();
    let mut chosen: Vec<row::Model> = Vec::new();
    loop {
        let wanted = most.saturating_sub(u64::try_from(chosen.len()).unwrap_or(most));
        if wanted == 0 {
            return Ok(chosen);
        }
        let full = left.iter().filter(|(_, room)| **room == 0);
        let rows = row::Entity::find()
            .filter(row::Column::NotBefore.lte(now.0))
            .filter(row::Column::LockedUntil.lte(now.0))
            .filter(row::Column::Destination.is_not_in(full.map(|(name, _)| name.as_str())))
            .filter(row::Column::Id.is_not_in(chosen.iter().map(|row| row.id)))
            .filter(Expr::exists(older()).not())
            .order_by(row::Column::NotBefore, Order::Asc)
            .order_by(row::Column::Id, Order::Asc)
            .limit(wanted)
            .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
            .all(tx)
            .await?;
        let found = rows.len();
        let before = chosen.len();
        for row in rows {
            let room = left.entry(row.destination.clone()).or_insert(room.each);
            if *room > 0 {
                *room -= 1;
                chosen.push(row);
            }
        }
        // Something was left out: its destination is full now, and the next look passes over it.
        if chosen.len() - before == found {
            return Ok(chosen);
        }
    }
}

/// A message of the same aggregate that comes first.
fn older() -> SelectStatement {
    let earlier = Alias::new("earlier");
    Query::select()
        .expr(Expr::val(1))
        .from_as(row::Entity, earlier.clone())
        .and_where(
            Expr::col((earlier.clone(), row::Column::Aggregate))
                .equals((row::Entity, row::Column::Aggregate)),
        )
        .and_where(
            Expr::col((earlier, row::Column::Id)).lt(Expr::col((row::Entity, row::Column::Id))),
        )
        .take()
}

/// Ends a message that was delivered. A message that is gone already is no error.
///
/// # Errors
/// What the database says.
pub async fn done(db: &Db, id: i64) -> Result<(), DbError> {
    db.write_at(IsolationLevel::ReadCommitted, |tx| async move {
        done_in(&tx, id).await
    })
    .await
}

/// [`done`] as a part of a transaction that records the outcome.
///
/// # Errors
/// What the database says.
pub async fn done_in(tx: &Tx, id: i64) -> Result<(), DbError> {
    row::Entity::delete_by_id(id).exec(tx).await?;
    Ok(())
}

/// Prolongs a claim until the time `until`, while the delivery goes on. Answers `false` when
/// the claim is lost: it ran out and the message was claimed anew, or it is gone.
///
/// # Errors
/// What the database says.
pub async fn renew(
    db: &Db,
    message: &Message,
    owner: &str,
    until: Timestamp,
) -> Result<bool, DbError> {
    db.write_at(IsolationLevel::ReadCommitted, |tx| async move {
        let renewed = row::Entity::update_many()
            .col_expr(row::Column::LockedUntil, Expr::val(until.0))
            .filter(message.claim_of(owner))
            .exec(&tx)
            .await?;
        Ok(renewed.rows_affected == 1)
    })
    .await
}

/// Gives a message back that could not be delivered; it is due again at `not_before`. Does
/// nothing when `owner` no longer has the claim.
///
/// # Errors
/// What the database says.
pub async fn retry(
    db: &Db,
    message: &Message,
    owner: &str,
    not_before: Timestamp,
    error: &str,
) -> Result<(), DbError> {
    db.write_at(IsolationLevel::ReadCommitted, |tx| async move {
        row::Entity::update_many()
            .col_expr(row::Column::NotBefore, Expr::val(not_before.0))
            .col_expr(row::Column::LockedUntil, Expr::val(i64::MIN))
            .col_expr(row::Column::Owner, Expr::val(None::<String>))
            .col_expr(row::Column::LastError, Expr::val(error))
            .filter(message.claim_of(owner))
            .exec(&tx)
            .await?;
        Ok(())
    })
    .await
}

/// Makes messages due that wait for longer than `latest` from now, and ends claims that go on for
/// longer, which only happens when the clock was set back since. Returns how many there were.
///
/// # Errors
/// What the database says.
pub async fn due_by(db: &Db, now: Timestamp, latest: Duration) -> Result<u64, DbError> {
    let last = now.plus(latest).0;
    db.write_at(IsolationLevel::ReadCommitted, |tx| async move {
        let late = row::Entity::update_many()
            .col_expr(row::Column::NotBefore, Expr::val(now.0))
            .filter(row::Column::NotBefore.gt(last))
            .exec(&tx)
            .await?;
        let held = row::Entity::update_many()
            .col_expr(row::Column::LockedUntil, Expr::val(i64::MIN))
            .filter(row::Column::LockedUntil.gt(last))
            .exec(&tx)
            .await?;
        Ok(late.rows_affected.saturating_add(held.rows_affected))
    })
    .await
}

/// How many messages are not delivered yet.
///
/// # Errors
/// What the database says.
pub async fn waiting(db: &Db) -> Result<u64, DbError> {
    Ok(row::Entity::find().count(db.read()).await?)
}

impl Message {
    /// This claim and no later one, not even one of the same owner.
    fn claim_of(&self, owner: &str) -> Condition {
        Condition::all()
            .add(row::Column::Id.eq(self.id))
            .add(row::Column::Owner.eq(owner))
            .add(row::Column::Attempts.eq(self.attempts))
    }
}

impl TryFrom<row::Model> for Message {
    type Error = DbError;

    fn try_from(row: row::Model) -> Result<Self, DbError> {
        let payload = serde_json::from_str(&row.payload).map_err(|error| unreadable(&error))?;
        Ok(Self {
            id: row.id,
            topic: row.topic,
            aggregate: row.aggregate,
            destination: row.destination,
            payload,
            traceparent: row.traceparent,
            created_at: Timestamp(row.created_at),
            attempts: u32::try_from(row.attempts).unwrap_or(0).saturating_add(1),
        })
    }
}

fn unreadable(error: &impl fmt::Display) -> DbError {
    DbError::Other {
        source: DbErr::Json(error.to_string()).into(),
    }
}
