//! All rows that the image of the cell is made of.

use std::{collections::BTreeMap, time::Duration};

use cnlab_db::DbError;
use cnlab_model::{
    Timestamp,
    id::{NodeId, TeamId, VolumeId},
};
use scheduler_core::{estimate::PastStart, fairshare::Amount};
use sea_orm::{ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, QueryOrder};

use super::{
    entity, grant,
    record::{Gpu, Grant, Node, Run},
    roster, run, server, starts, volume,
};
use crate::{cell::Who, error::SchedulerError};

/// How many past grants an estimate of lengths looks at.
const LENGTHS: u64 = 100;
/// How many ended runs of an image lengths are learned from.
const ENDED: u64 = 200;
/// Over what time the use of a team counts.
const WINDOW: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What a team used in the past.
#[derive(Debug, Clone)]
pub(crate) struct Used {
    pub(crate) team: TeamId,
    pub(crate) amount: Amount,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// Rows of one moment.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) nodes: Vec<Node>,
    /// Also those that their nodes do not report any more.
    pub(crate) gpus: Vec<Gpu>,
    /// Those that are not released.
    pub(crate) grants: Vec<Grant>,
    /// Servers and runs that have a grant.
    pub(crate) holding: Vec<Who>,
    /// Servers and runs that wait, and where their volumes lie.
    pub(crate) waiting: Vec<(Who, Option<NodeId>)>,
    /// How long the latest grants were held.
    pub(crate) lengths: Vec<Duration>,
    /// Runs that ended lately.
    pub(crate) ended: Vec<Run>,
    /// The latest starts of each image, newest first.
    pub(crate) starts: BTreeMap<String, Vec<PastStart>>,
    /// Grants of the last seven days that are over, in the order of their ends.
    pub(crate) used: Vec<Used>,
}

/// Reads everything. The rows of a write between two of the reads may be missing or half there;
/// whoever grants reads before it grants, and hears of other changes again.
pub(crate) async fn load(
    db: &impl ConnectionTrait,
    images: Vec<String>,
    now: Timestamp,
) -> Result<Rows, SchedulerError> {
    let mut rows = Rows {
        nodes: roster::nodes(db).await?,
        gpus: roster::all_gpus(db).await?,
        ..Rows::default()
    };
    let servers = server::live(db).await?;
    let runs = run::live(db).await?;
    rows.grants = grant::held(db, None).await?;
    let all: Vec<Who> = servers
        .into_iter()
        .map(|server| Who::Server(Box::new(server)))
        .chain(runs.into_iter().map(|run| Who::Run(Box::new(run))))
        .collect();
    let (holding, waiting): (Vec<Who>, Vec<Who>) =
        all.into_iter().partition(|who| who.grant().is_some());
    let waiting: Vec<Who> = waiting.into_iter().filter(Who::waits).collect();
    let volumes: Vec<VolumeId> = waiting.iter().map(Who::volume).collect();
    let on = volume::nodes_of(db, &volumes).await?;
    rows.holding = holding;
    rows.waiting = waiting
        .into_iter()
        .map(|who| {
            let node = on.get(&who.volume()).copied();
            (who, node)
        })
        .collect();
    rows.lengths = grant::lengths(db, LENGTHS).await?;
    for image in images {
        rows.ended.extend(run::ended(db, &image, ENDED).await?);
        let past = starts::of_image(db, &image).await?;
        rows.starts.insert(image, past);
    }
    rows.used = used(db, now).await?;
    Ok(rows)
}

async fn used(db: &impl ConnectionTrait, now: Timestamp) -> Result<Vec<Used>, SchedulerError> {
    let micros = i64::try_from(WINDOW.as_micros()).unwrap_or(i64::MAX);
    let since = now.0.saturating_sub(micros);
    let found = entity::grant::Entity::find()
        .filter(entity::grant::Column::ReleasedAt.gt(since))
        .order_by_asc(entity::grant::Column::ReleasedAt)
        .all(db)
        .await
        .map_err(DbError::from)?;
    let mut all = Vec::new();
    for row in found {
        let grant = Grant::try_from(row)?;
        let Some(until) = grant.released_at else {
            continue;
        };
        all.push(Used {
            team: grant.team,
            amount: Amount {
                blocks: grant.blocks().into(),
                vram_mib: grant.vram_bytes() >> 20,
                ..Amount::default()
            },
            from: grant.granted_at,
            until,
        });
    }
    Ok(all)
}
