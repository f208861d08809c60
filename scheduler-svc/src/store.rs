//! The scheduler's tables, and the only place of this service that names sea-orm.
//!
//! **Invariants**
//! - `gpus.taken` is the union of the blocks of the GPU's grants that are not released; both
//!   change in one transaction.
//! - A fence is given out once, in rising order, from one row per cell, and only by who leads
//!   the cell in the row's term.
//! - Every change of a server or run raises its version by one.

pub(crate) mod batch;
mod entity;
pub(crate) mod grant;
pub(crate) mod job;
pub(crate) mod lead;
pub(crate) mod load;
mod m20260101_000002_first_tables;
mod m20261130_000010_runs;
mod m20261201_000011_cells;
mod m20261201_000012_cordons;
mod m20261201_000013_gpus;
mod m20261201_000014_leads;
pub(crate) mod occupants;
pub(crate) mod record;
pub(crate) mod roster;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod starts;
pub(crate) mod volume;

use sea_orm::ConnectionTrait;
use sea_orm_migration::{MigrationTrait, MigratorTrait};

use crate::error::SchedulerError;
use cnlab_model::id::{GrantId, NodeId};
use record::Grant;

/// All migrations, the kit's first.
pub(crate) struct Migrations;

impl MigratorTrait for Migrations {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        let mut all = cnlab_db::kit_migrations();
        all.push(Box::new(m20260101_000002_first_tables::Migration));
        all.push(Box::new(m20261130_000010_runs::Migration));
        all.push(Box::new(m20261201_000011_cells::Migration));
        all.push(Box::new(m20261201_000012_cordons::Migration));
        all.push(Box::new(m20261201_000013_gpus::Migration));
        all.push(Box::new(m20261201_000014_leads::Migration));
        all
    }
}

/// What belongs to the view of a server or run: its grant and the name of its node.
pub(crate) async fn surroundings(
    db: &impl ConnectionTrait,
    grant: Option<GrantId>,
    node: Option<NodeId>,
) -> Result<(Option<Grant>, Option<String>), SchedulerError> {
    let grant = match grant {
        Some(id) => grant::get(db, id).await?,
        None => None,
    };
    let node = match node {
        Some(id) => roster::node(db, id).await?,
        None => None,
    };
    Ok((grant, node.map(|node| node.name)))
}
