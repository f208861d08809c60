//! How long starts took.

use std::time::Duration;

use cnlab_db::{DbError, Tx};
use cnlab_model::{Timestamp, id::IdError};
use scheduler_core::estimate::PastStart;
use sea_orm::{
    ActiveModelTrait, ActiveValue::Set, ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter,
    QueryOrder, QuerySelect,
};

use super::entity::start;
use crate::error::SchedulerError;

/// How many are read for an estimate: enough for several nodes.
const READ: u64 = 200;

/// The latest starts of an image, newest first.
pub(crate) async fn of_image(
    db: &impl ConnectionTrait,
    image: &str,
) -> Result<Vec<PastStart>, SchedulerError> {
    let rows = start::Entity::find()
        .filter(start::Column::Image.eq(image))
        .order_by_desc(start::Column::Id)
        .limit(READ)
        .all(db)
        .await
        .map_err(DbError::from)?;
    rows.into_iter()
        .map(|row| {
            Ok(PastStart {
                node: row
                    .node_id
                    .parse()
                    .map_err(|error: IdError| SchedulerError::Row {
                        table: "starts",
                        id: row.id.to_string(),
                        problem: error.to_string(),
                    })?,
                image: row.image,
                environment_ready: row.environment_ready,
                took: Duration::from_micros(u64::try_from(row.took_us).unwrap_or(0)),
            })
        })
        .collect()
}

/// Remembers a start.
pub(crate) async fn add(tx: &Tx, past: &PastStart, now: Timestamp) -> Result<(), SchedulerError> {
    start::ActiveModel {
        image: Set(past.image.clone()),
        node_id: Set(past.node.to_string()),
        environment_ready: Set(past.environment_ready),
        took_us: Set(i64::try_from(past.took.as_micros()).unwrap_or(i64::MAX)),
        at: Set(now.0),
        ..Default::default()
    }
    .insert(tx)
    .await
    .map_err(DbError::from)?;
    Ok(())
}
