//! Quotas: how many blocks the work of a team may hold at once.
//!
//! A team may be limited in all, and for each type of GPU besides. What it *holds* counts from
//! the grant until the blocks are given back; what it is *promised* (a guaranteed deadline,
//! a place that others are leaving for it) counts as well, so that nothing else of the team can
//! take it meanwhile.
//!
//! **Invariants**: exact, in blocks; what was granted is a fact and counts even beyond a limit,
//! as after a limit was lowered; a job counts once, whatever is said of it how often.
//!
//! ```text
//! check ──▶ charge(Promised) ──▶ charge(Held) ──▶ discharge
//! ```

use std::{collections::BTreeMap, fmt};

use cnlab_model::id::TeamId;

use crate::plan::JobId;

/// A type of GPU for which teams are limited, as a small number; who reads the configuration
/// decides which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pool(pub u16);

/// What one team may hold at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Blocks of all GPUs together; without limit where there is none.
    pub blocks: Option<u64>,
    /// Blocks of single types, each beside the limit of all.
    pub of_pool: BTreeMap<Pool, u64>,
}

impl Limits {
    fn of(&self, scope: Option<Pool>) -> Option<u64> {
        match scope {
            None => self.blocks,
            Some(pool) => self.of_pool.get(&pool).copied(),
        }
    }

    fn is_none(&self) -> bool {
        self.blocks.is_none() && self.of_pool.is_empty()
    }
}

/// What a job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Blocks of all its GPUs together.
    pub blocks: u64,
    /// Their type, if teams are limited for it.
    pub pool: Option<Pool>,
}

impl Need {
    /// In what it counts: everything, and its type.
    fn scopes(self) -> impl Iterator<Item = Option<Pool>> {
        [Some(None), self.pool.map(Some)].into_iter().flatten()
    }
}

/// How a job counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// It will have its blocks, and nobody else of its team can take them.
    Promised,
    /// It has them.
    Held,
}

/// What a team has of one scope, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// Granted and not given back.
    pub held: u64,
    /// Promised beside that.
    pub promised: u64,
}

impl Use {
    /// Both together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.held.saturating_add(self.promised)
    }

    fn part(&mut self, hold: Hold) -> &mut u64 {
        match hold {
            Hold::Promised => &mut self.promised,
            Hold::Held => &mut self.held,
        }
    }
}

/// The limit that a job would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// The type that is limited; all GPUs together without one.
    pub pool: Option<Pool>,
    /// What the job needs.
    pub needed: u64,
    /// What the others of its team have.
    pub used: Use,
    /// What they may have.
    pub limit: u64,
}

impl Exceeded {
    /// Whether the job exceeds it even if its team has nothing else.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.needed > self.limit
    }
}

impl fmt::Display for Exceeded {
    /// `350% of 400%`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}% of {}%", self.used.total(), self.limit)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Charge {
    team: TeamId,
    need: Need,
    hold: Hold,
}

/// The account of every team against its limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quotas {
    usual: Limits,
    special: BTreeMap<TeamId, Limits>,
    charges: BTreeMap<JobId, Charge>,
    uses: BTreeMap<(TeamId, Option<Pool>), Use>,
}

impl Quotas {
    /// Limits of every team, and of those that have others.
    #[must_use]
    pub const fn new(usual: Limits, special: BTreeMap<TeamId, Limits>) -> Self {
        Self {
            usual,
            special,
            charges: BTreeMap::new(),
            uses: BTreeMap::new(),
        }
    }

    /// What a team may have.
    #[must_use]
    pub fn limits(&self, team: TeamId) -> &Limits {
        self.special.get(&team).unwrap_or(&self.usual)
    }

    /// Whether anything of a team is limited.
    #[must_use]
    pub fn is_limited(&self, team: TeamId) -> bool {
        !self.limits(team).is_none()
    }

    /// What a team has, of one type or of all.
    #[must_use]
    pub fn used(&self, team: TeamId, pool: Option<Pool>) -> Use {
        self.uses.get(&(team, pool)).copied().unwrap_or_default()
    }

    /// Whether a team that has nothing could have this.
    ///
    /// # Errors
    /// The limit that it exceeds alone.
    pub fn ever(&self, team: TeamId, need: Need) -> Result<(), Exceeded> {
        let limits = self.limits(team);
        for pool in need.scopes() {
            if let Some(limit) = limits.of(pool)
                && need.blocks > limit
            {
                return Err(Exceeded {
                    pool,
                    needed: need.blocks,
                    used: Use::default(),
                    limit,
                });
            }
        }
        Ok(())
    }

    /// Whether a team may have this beside what its other jobs have.
    ///
    /// # Errors
    /// The first limit that it would exceed, that of all GPUs before that of their type.
    pub fn check(&self, job: JobId, team: TeamId, need: Need) -> Result<(), Exceeded> {
        let limits = self.limits(team);
        for pool in need.scopes() {
            let Some(limit) = limits.of(pool) else {
                continue;
            };
            let used = self.used_by_others(job, team, pool);
            // What holds nothing exceeds nothing, not even a limit that was lowered.
            if need.blocks > 0 && used.total().saturating_add(need.blocks) > limit {
                return Err(Exceeded {
                    pool,
                    needed: need.blocks,
                    used,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// How many jobs with this need may begin beside what other jobs of the team have; `None`
    /// where nothing limits them.
    #[must_use]
    pub fn room(&self, team: TeamId, need: Need) -> Option<u64> {
        let limits = self.limits(team);
        let rooms = need.scopes().filter_map(|pool| {
            let left = limits
                .of(pool)?
                .saturating_sub(self.used(team, pool).total());
            left.checked_div(need.blocks)
        });
        rooms.min()
    }

    /// Counts a job, in place of what was said of it before. Limits are not looked at.
    pub fn charge(&mut self, job: JobId, team: TeamId, need: Need, hold: Hold) {
        self.discharge(job);
        for pool in need.scopes() {
            let used = self.uses.entry((team, pool)).or_default().part(hold);
            *used = used.saturating_add(need.blocks);
        }
        self.charges.insert(job, Charge { team, need, hold });
    }

    /// Counts a job no longer. Answers whose it was.
    pub fn discharge(&mut self, job: JobId) -> Option<TeamId> {
        let Charge { team, need, hold } = self.charges.remove(&job)?;
        for pool in need.scopes() {
            let scope = (team, pool);
            if let Some(used) = self.uses.get_mut(&scope) {
                let part = used.part(hold);
                *part = part.saturating_sub(need.blocks);
                if *used == Use::default() {
                    self.uses.remove(&scope);
                }
            }
        }
        Some(team)
    }

    /// How a job counts.
    #[must_use]
    pub fn hold(&self, job: JobId) -> Option<Hold> {
        self.charges.get(&job).map(|charge| charge.hold)
    }

    fn used_by_others(&self, job: JobId, team: TeamId, pool: Option<Pool>) -> Use {
        let mut used = self.used(team, pool);
        if let Some(own) = self.charges.get(&job)
            && own.team == team
            && own.need.scopes().any(|scope| scope == pool)
        {
            let part = used.part(own.hold);
            *part = part.saturating_sub(own.need.blocks);
        }
        used
    }
}

#[cfg(test)]
mod tests;
