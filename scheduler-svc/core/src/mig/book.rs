//! The book of one GPU in MIG mode: its instances and who has which part of them.
//!
//! With MIG mode on, work runs in instances only. So that instances and 1 % blocks can be on
//! one GPU at once (G-01), blocks live in *shared* instances which the book opens when needed
//! and closes with their last tenant; what a request for a percentage of the GPU gets are as
//! many blocks of such an instance as make up that percentage.
//!
//! ```text
//! GPU ─┬─ 3g.40gb @0   whole: one tenant
//!      ├─ 1g.10gb @4   shared: 14 blocks, tenants of any team
//!      ├─ 1g.10gb @5   shared: 14 blocks, one team by its own wish
//!      └─ slices 6-7   free for whatever keeps the most future
//! ```
//!
//! **Invariants**: the layout is legal; an instance has one tenant that has all of it or
//! tenants with disjoint blocks, never none; who asked not to share an instance or the GPU with
//! other teams never does, whoever came first.

use std::collections::BTreeMap;

use cnlab_model::{
    Blocks,
    id::{GrantId, TeamId},
    mig::{Instance, Layout, Product, Shape},
};
use thiserror::Error;

use super::{need::blocks_for, worth::Worth};

/// With whom a tenant shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Boundary {
    /// With anybody.
    Open,
    /// No instance with another team.
    Instance,
    /// No GPU with another team.
    Gpu,
}

/// How much a tenant wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Want {
    /// An instance of its own.
    Whole(Shape),
    /// This many 1 % blocks of an instance (1/14 of a compute slice each), 1 to 98.
    Slice(u8),
    /// This many percent of the GPU, in blocks of an instance.
    Percent(u8),
}

/// What a tenant asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its grant.
    pub grant: GrantId,
    /// Its team.
    pub team: TeamId,
    /// How much.
    pub want: Want,
    /// With whom it shares.
    pub boundary: Boundary,
}

/// Where an ask can go on a GPU. The least of several is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    /// What the GPU loses of its future, in parts that only compare; nothing in an open
    /// instance.
    pub loss: i64,
    /// Blocks that stay free in the instance: the fullest comes first.
    pub left: u8,
    /// The instance, open already or to be opened.
    pub instance: Instance,
    /// How many blocks of it, all of them for [`Want::Whole`].
    pub blocks: u8,
}

/// Why an ask cannot go on a GPU now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum NoRoom {
    /// No instance of this GPU is ever large enough, or its figures are not known.
    #[error("no MIG profile of this GPU is large enough")]
    NeverFits,
    /// Another team is there, and one of both asked not to share.
    #[error("another team is on this GPU")]
    OtherTeam,
    /// What is free is too small or lies wrong.
    #[error("the GPU is too full")]
    TooFull,
    /// The grant is on this GPU already.
    #[error("the grant is on this GPU already")]
    Twice,
}

/// One tenant of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tenant {
    team: TeamId,
    boundary: Boundary,
    /// Where its instance begins.
    start: u8,
    /// Its blocks of that instance.
    blocks: Blocks,
    /// Whether it has the instance to itself.
    whole: bool,
}

/// Instances and tenants of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Book {
    product: Product,
    layout: Layout,
    tenants: BTreeMap<GrantId, Tenant>,
}

impl Book {
    /// A GPU without instances.
    #[must_use]
    pub fn new(product: Product) -> Self {
        Self {
            product,
            layout: Layout::new(product.grid()),
            tenants: BTreeMap::new(),
        }
    }

    /// The product.
    #[must_use]
    pub const fn product(&self) -> Product {
        self.product
    }

    /// Its instances.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether nobody is on it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Where a grant is: its instance and the blocks of it.
    #[must_use]
    pub fn tenant(&self, grant: GrantId) -> Option<(Instance, Blocks)> {
        let tenant = self.tenants.get(&grant)?;
        let start = tenant.start;
        let shape = self.layout.at(start)?;
        Some((Instance { shape, start }, tenant.blocks))
    }

    /// The blocks of the instance that begins at this memory slice which somebody has.
    #[must_use]
    pub fn used(&self, start: u8) -> Blocks {
        self.tenants
            .values()
            .filter(|tenant| tenant.start == start)
            .fold(Blocks::EMPTY, |used, tenant| used.union(tenant.blocks))
    }

    /// The numbered blocks of the GPU, a hundred, that its instances stand for. The others are
    /// free for more instances.
    #[must_use]
    pub fn numbered(&self) -> Blocks {
        let grid = self.layout.grid();
        self.layout
            .instances()
            .map(|instance| grid.numbered(instance.start, instance.shape.memory()))
            .fold(Blocks::EMPTY, Blocks::union)
    }

    /// The best place for an ask: an open instance, the fullest with room, else the new one
    /// that loses the least. Compare the answers of several GPUs of one grid and take the least.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn best(&self, ask: &Ask, worth: &Worth) -> Result<Room, NoRoom> {
        if self.tenants.contains_key(&ask.grant) {
            return Err(NoRoom::Twice);
        }
        let hosts = self.hosts(ask.want);
        if hosts.is_empty() {
            return Err(NoRoom::NeverFits);
        }
        if !self.tenants.values().all(|other| on_one_gpu(other, ask)) {
            return Err(NoRoom::OtherTeam);
        }
        let open = self.layout.instances().filter_map(|instance| {
            let blocks = self.joins(instance, ask, &hosts)?;
            let free = instance
                .shape
                .blocks()
                .saturating_sub(self.used(instance.start).count());
            Some(Room {
                loss: 0,
                left: free.checked_sub(blocks)?,
                instance,
                blocks,
            })
        });
        if let Some(best) = open.min() {
            return Ok(best);
        }
        // The first is the smallest that will do; a larger one would waste what others need.
        let (shape, blocks) = hosts.first().copied().ok_or(NoRoom::NeverFits)?;
        let (start, loss) = worth.best(self.layout, shape).ok_or(NoRoom::TooFull)?;
        Ok(Room {
            loss,
            left: shape.blocks().saturating_sub(blocks),
            instance: Instance { shape, start },
            blocks,
        })
    }

    /// Puts an ask where [`Book::best`] said and returns the blocks of the instance that it
    /// gets.
    ///
    /// # Errors
    ///
    /// The place is not there (any more); nothing is changed.
    pub fn take(&mut self, ask: &Ask, place: &Room) -> Result<Blocks, NoRoom> {
        let Instance { shape, start } = place.instance;
        if self.tenants.contains_key(&ask.grant) {
            return Err(NoRoom::Twice);
        }
        if !self.tenants.values().all(|other| on_one_gpu(other, ask)) {
            return Err(NoRoom::OtherTeam);
        }
        let hosts = self.hosts(ask.want);
        let enough = hosts
            .iter()
            .any(|(host, blocks)| *host == shape && *blocks == place.blocks);
        if !enough {
            return Err(NoRoom::NeverFits);
        }
        let layout = if self.layout.at(start) == Some(shape) {
            self.joins(place.instance, ask, &hosts)
                .ok_or(NoRoom::TooFull)?;
            self.layout
        } else {
            self.layout
                .with(shape, start)
                .map_err(|_| NoRoom::TooFull)?
        };
        let blocks = Blocks::range(0, shape.blocks())
            .unwrap_or(Blocks::EMPTY)
            .minus(self.used(start))
            .lowest(place.blocks)
            .ok_or(NoRoom::TooFull)?;
        self.layout = layout;
        self.tenants.insert(
            ask.grant,
            Tenant {
                team: ask.team,
                boundary: ask.boundary,
                start,
                blocks,
                whole: matches!(ask.want, Want::Whole(_)),
            },
        );
        Ok(blocks)
    }

    /// Takes a grant off the GPU. Answers its instance and whether that closed with it, or
    /// `None` for a grant that is not here.
    pub fn give(&mut self, grant: GrantId) -> Option<(Instance, bool)> {
        let (instance, _) = self.tenant(grant)?;
        self.tenants.remove(&grant);
        let closed = self.used(instance.start).is_empty();
        if closed {
            self.layout = self.layout.without(instance.start);
        }
        Some((instance, closed))
    }

    /// The shapes that can host a want with the blocks that it takes there, smallest first.
    fn hosts(&self, want: Want) -> Vec<(Shape, u8)> {
        let shapes = self.product.profiles().iter().map(|profile| profile.shape);
        let plain = shapes.clone().filter(|shape| !shape.media());
        match want {
            Want::Whole(shape) => shapes
                .filter(|other| *other == shape)
                .map(|shape| (shape, shape.blocks()))
                .collect(),
            Want::Slice(blocks) => plain
                .filter(|shape| blocks > 0 && blocks <= shape.blocks())
                .map(|shape| (shape, blocks))
                .collect(),
            Want::Percent(percent) => plain
                .filter(|_| percent > 0)
                .filter_map(|shape| Some((shape, blocks_for(self.product, shape, percent)?)))
                .collect(),
        }
    }

    /// How many blocks an ask would take in an open instance, where it may join it and has
    /// room.
    fn joins(&self, instance: Instance, ask: &Ask, hosts: &[(Shape, u8)]) -> Option<u8> {
        if matches!(ask.want, Want::Whole(_)) {
            return None;
        }
        let (_, blocks) = hosts.iter().find(|(shape, _)| *shape == instance.shape)?;
        let mut inside = self
            .tenants
            .values()
            .filter(|tenant| tenant.start == instance.start);
        let free = instance
            .shape
            .blocks()
            .saturating_sub(self.used(instance.start).count());
        (*blocks <= free && inside.all(|other| !other.whole && in_one_instance(other, ask)))
            .then_some(*blocks)
    }
}

/// Whether both may be on one GPU.
fn on_one_gpu(tenant: &Tenant, ask: &Ask) -> bool {
    tenant.team == ask.team || (tenant.boundary < Boundary::Gpu && ask.boundary < Boundary::Gpu)
}

/// Whether both may be in one instance.
fn in_one_instance(tenant: &Tenant, ask: &Ask) -> bool {
    tenant.team == ask.team || (tenant.boundary == Boundary::Open && ask.boundary == Boundary::Open)
}
