//! Who leads the cell: the one scheduler that places.
//!
//! **Invariant**: a term is given once. What a leader writes names its term in the same
//! transaction, so that a leader that was asleep while another one took over writes nothing.

use cnlab_db::{DbError, Tx};
use cnlab_model::Timestamp;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, sea_query::Expr};

use super::{entity::fence, grant::CELL, record::signed};
use crate::error::SchedulerError;

/// Takes the lead, or keeps it. Answers the term, or `None` while somebody else leads.
///
/// `alone`: nobody else can be there, so nobody is waited for.
pub(crate) async fn take(
    tx: &Tx,
    me: &str,
    alone: bool,
    until: Timestamp,
    now: Timestamp,
) -> Result<Option<u64>, SchedulerError> {
    let row = fence::Entity::find_by_id(CELL)
        .one(tx)
        .await
        .map_err(DbError::from)?;
    let missing = || SchedulerError::Row {
        table: "fences",
        id: CELL.to_string(),
        problem: "the counter of this cell is gone".to_owned(),
    };
    let row = row.ok_or_else(missing)?;
    let mine = row.leader == me;
    if !mine && !alone && !row.leader.is_empty() && row.leads_until > now.0 {
        return Ok(None);
    }
    let term = u64::try_from(row.term).map_err(|_| missing())?;
    let term = if mine { term } else { term.saturating_add(1) };
    fence::Entity::update_many()
        .col_expr(fence::Column::Leader, Expr::value(me))
        .col_expr(fence::Column::Term, Expr::value(signed(term)))
        .col_expr(fence::Column::LeadsUntil, Expr::value(until.0))
        .filter(fence::Column::Cell.eq(CELL))
        .exec(tx)
        .await
        .map_err(DbError::from)?;
    Ok(Some(term))
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
