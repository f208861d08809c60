//! Who leads the cell: the one scheduler that places.
//!
//! **Invariants**
//! - A term is given once. What a leader writes names its term in the same transaction, so that
//!   a leader that was asleep while another one took over writes nothing.
//! - A new leader begins after the last transaction of the one before: what it reads then is all
//!   that it does not hear of.

use std::time::Duration;

use cnlab_db::{DbError, Tx};
use cnlab_model::Timestamp;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DbBackend, EntityTrait, QueryFilter, Statement, sea_query::Expr,
};

use super::{
    entity::{fence, lead},
    grant::CELL,
    record::signed,
};
use crate::error::SchedulerError;

/// For how long a leader that fell asleep in a transaction keeps others from taking over: the
/// database ends the transaction then.
const ASLEEP: Duration = Duration::from_secs(4);

/// Who leads, by the row, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lead {
    leader: String,
    until: i64,
}

/// What came of an attempt to lead.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The lead, in this term.
    Mine(u64),
    /// Somebody else leads.
    Theirs(Lead),
}

fn missing() -> SchedulerError {
    SchedulerError::Row {
        table: "fences",
        id: CELL.to_string(),
        problem: "the counter of this cell is gone".to_owned(),
    }
}

/// Takes the lead, or keeps it.
///
/// `alone`: nobody else can be there, so nobody is waited for. `gone`: a lead that nobody has
/// renewed for so long that its leader is not waited for any more, whatever its clock says.
pub(crate) async fn take(
    tx: &Tx,
    me: &str,
    alone: bool,
    gone: Option<&Lead>,
    until: Timestamp,
    now: Timestamp,
) -> Result<Taken, SchedulerError> {
    let row = fence::Entity::find_by_id(CELL)
        .one(tx)
        .await
        .map_err(DbError::from)?;
    let row = row.ok_or_else(missing)?;
    let term = u64::try_from(row.term).map_err(|_| missing())?;
    let found = Lead {
        leader: row.leader,
        until: row.leads_until,
    };
    let mine = found.leader == me;
    let free = alone || found.leader.is_empty() || found.until <= now.0 || gone == Some(&found);
    if !mine && !free {
        return Ok(Taken::Theirs(found));
    }
    let term = if mine { term } else { term.saturating_add(1) };
    fence::Entity::update_many()
        .col_expr(fence::Column::Leader, Expr::value(me))
        .col_expr(fence::Column::Term, Expr::value(signed(term)))
        .col_expr(fence::Column::LeadsUntil, Expr::value(until.0))
        .filter(fence::Column::Cell.eq(CELL))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    if !mine {
        // Waits for what the leader before is writing.
        lead::Entity::update_many()
            .col_expr(lead::Column::Term, Expr::value(signed(term)))
            .filter(lead::Column::Cell.eq(CELL))
            .exec(tx)
            .await
            .map_err(DbError::from)?;
    }
    Ok(Taken::Mine(term))
}

/// Keeps others from taking the lead until this transaction ends. First in every transaction of
/// a leader.
///
/// # Errors
/// [`SchedulerError::NotLeading`] when somebody else leads the cell in a later term.
pub(crate) async fn keep(tx: &Tx, term: u64) -> Result<(), SchedulerError> {
    if tx.get_database_backend() != DbBackend::Postgres {
        // Nobody else has the file.
        return Ok(());
    }
    let select = "SELECT term, set_config('idle_in_transaction_session_timeout', $1, true) \
                  FROM leads WHERE cell = $2 FOR SHARE";
    let values = [ASLEEP.as_millis().to_string().into(), CELL.into()];
    let select = Statement::from_sql_and_values(DbBackend::Postgres, select, values);
    let row = tx.query_one_raw(select).await.map_err(DbError::from)?;
    let row = row.ok_or_else(missing)?;
    let now: i64 = row.try_get("", "term").map_err(DbError::from)?;
    if now == signed(term) {
        Ok(())
    } else {
        Err(SchedulerError::NotLeading)
    }
}

/// Gives the lead back, so that nobody has to wait for its end.
pub(crate) async fn give_back(tx: &Tx, me: &str) -> Result<(), SchedulerError> {
    fence::Entity::update_many()
        .col_expr(fence::Column::LeadsUntil, Expr::value(i64::MIN))
        .filter(fence::Column::Cell.eq(CELL))
        .filter(fence::Column::Leader.eq(me))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(())
}
