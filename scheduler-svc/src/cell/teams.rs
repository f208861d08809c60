//! What teams may hold and ask for, in the words of the core.

use std::{collections::BTreeMap, num::NonZeroU32};

use cnlab_model::id::TeamId;
use scheduler_core::quota::{Exceeded, Limits, Pool, Quotas};

use crate::config::{GpuLimit, QuotaConfig, TeamConfig};

/// What teams may have.
#[derive(Debug, Default)]
pub(crate) struct Teams {
    /// Types of GPU that are limited, as they are written, by their names in lower case.
    pools: BTreeMap<String, (Pool, String)>,
    usual: Limits,
    special: BTreeMap<TeamId, Limits>,
    waiting: Option<usize>,
    special_waiting: BTreeMap<TeamId, Option<usize>>,
    weights: BTreeMap<TeamId, NonZeroU32>,
    /// Whom to ask for more.
    contact: String,
}

impl Teams {
    pub(crate) fn new(config: &QuotaConfig) -> Self {
        let mut teams = Self {
            contact: config.contact.clone(),
            waiting: config.waiting.count().map(count),
            ..Self::default()
        };
        let named = config.teams.iter().flat_map(|team| team.gpus_of.keys());
        for name in config.gpus_of.keys().chain(named) {
            let pool = Pool(u16::try_from(teams.pools.len()).unwrap_or(u16::MAX));
            let known = teams.pools.entry(name.to_ascii_lowercase());
            known.or_insert_with(|| (pool, name.clone()));
        }
        teams.usual.blocks = config.gpus.blocks();
        let usual = teams.limited(&config.gpus_of, &BTreeMap::new());
        teams.usual.of_pool = usual;
        for team in &config.teams {
            let limits = teams.limits_of(team);
            teams.special.insert(team.team, limits);
            let waiting = team.waiting.unwrap_or(config.waiting).count().map(count);
            teams.special_waiting.insert(team.team, waiting);
            let weight = NonZeroU32::new(team.weight).unwrap_or(NonZeroU32::MIN);
            teams.weights.insert(team.team, weight);
        }
        teams
    }

    fn limits_of(&self, team: &TeamConfig) -> Limits {
        Limits {
            blocks: match team.gpus {
                Some(limit) => limit.blocks(),
                None => self.usual.blocks,
            },
            of_pool: self.limited(&team.gpus_of, &self.usual.of_pool),
        }
    }

    /// The limits of types, with others in place of those that stand there.
    fn limited(
        &self,
        of: &BTreeMap<String, GpuLimit>,
        usual: &BTreeMap<Pool, u64>,
    ) -> BTreeMap<Pool, u64> {
        let mut limits = usual.clone();
        for (name, limit) in of {
            let Some(pool) = self.pool(name) else {
                continue;
            };
            match limit.blocks() {
                Some(blocks) => limits.insert(pool, blocks),
                None => limits.remove(&pool),
            };
        }
        limits
    }

    /// The account of an empty cell.
    pub(crate) fn quotas(&self) -> Quotas {
        Quotas::new(self.usual.clone(), self.special.clone())
    }

    /// The number of a type of GPU, if it is limited for anybody.
    pub(crate) fn pool(&self, family: &str) -> Option<Pool> {
        let known = self.pools.get(&family.to_ascii_lowercase());
        known.map(|(pool, _)| *pool)
    }

    /// Types that are limited, as they are written.
    pub(crate) fn types(&self) -> impl Iterator<Item = &str> {
        self.pools.values().map(|(_, name)| name.as_str())
    }

    /// Teams that have a weight of their own.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (TeamId, NonZeroU32)> {
        self.weights.iter().map(|(team, weight)| (*team, *weight))
    }

    /// How many requests of a team may wait.
    pub(crate) fn waiting(&self, team: TeamId) -> Option<usize> {
        match self.special_waiting.get(&team) {
            Some(waiting) => *waiting,
            None => self.waiting,
        }
    }

    /// Whom to ask for more.
    pub(crate) fn contact(&self) -> &str {
        &self.contact
    }

    /// Why somebody waits for its team.
    pub(crate) fn why(&self, over: &Exceeded) -> String {
        let scope = self.scope(over);
        if over.is_alone() {
            return format!(
                "this needs {}% of {scope} and your team may hold {}%; ask {} for more",
                over.needed, over.limit, self.contact
            );
        }
        let of = match over.pool {
            Some(_) => format!(" of {scope}"),
            None => String::new(),
        };
        let used = over.used;
        if used.promised == 0 {
            return format!(
                "your team holds {}% of its {}%{of}; waiting for it to give back",
                used.held, over.limit
            );
        }
        format!(
            "your team holds {}% of its {}%{of} and {}% is set aside for others of it; waiting for it to give back",
            used.held, over.limit, used.promised
        )
    }

    /// What a limit is of.
    pub(crate) fn scope(&self, over: &Exceeded) -> &str {
        let named = self
            .pools
            .values()
            .find(|(pool, _)| Some(*pool) == over.pool);
        named.map_or("GPUs", |(_, name)| name)
    }
}

fn count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;
    use scheduler_core::{
        plan::JobId,
        quota::{Hold, Need},
    };

    use super::*;
    use crate::config::CountLimit;

    fn team(number: u128) -> TeamId {
        TeamId::from_ulid(Ulid(number))
    }

    fn entry(number: u128) -> TeamConfig {
        TeamConfig {
            team: team(number),
            gpus: None,
            gpus_of: BTreeMap::new(),
            waiting: None,
            weight: 1,
        }
    }

    #[test]
    fn what_an_entry_leaves_out_is_as_for_every_team() {
        let types = |limits: &[(&str, GpuLimit)]| -> BTreeMap<String, GpuLimit> {
            let limits = limits.iter();
            limits
                .map(|(name, limit)| ((*name).to_owned(), *limit))
                .collect()
        };
        let teams = Teams::new(&QuotaConfig {
            gpus: GpuLimit::Blocks(400),
            gpus_of: types(&[("H100", GpuLimit::Blocks(200))]),
            waiting: CountLimit::Count(5),
            contact: "the platform team".to_owned(),
            teams: vec![
                TeamConfig {
                    weight: 3,
                    ..entry(1)
                },
                TeamConfig {
                    gpus: Some(GpuLimit::Unlimited),
                    gpus_of: types(&[("h100", GpuLimit::Unlimited), ("A100", GpuLimit::Blocks(0))]),
                    waiting: Some(CountLimit::Unlimited),
                    ..entry(2)
                },
            ],
        });
        let quotas = teams.quotas();
        let (h100, a100) = (teams.pool("H100").unwrap(), teams.pool("a100").unwrap());
        assert_eq!(teams.pool("L40S"), None);
        assert_eq!(teams.types().collect::<Vec<_>>(), ["A100", "H100"]);
        for number in [1, 9] {
            let limits = quotas.limits(team(number));
            assert_eq!(limits.blocks, Some(400));
            assert_eq!(limits.of_pool, BTreeMap::from([(h100, 200)]));
            assert_eq!(teams.waiting(team(number)), Some(5));
        }
        let limits = quotas.limits(team(2));
        assert_eq!(limits.blocks, None);
        assert_eq!(limits.of_pool, BTreeMap::from([(a100, 0)]));
        assert_eq!(teams.waiting(team(2)), None);
        let weights: Vec<_> = teams.weights().map(|(_, weight)| weight.get()).collect();
        assert_eq!(weights, [3, 1]);
    }

    #[test]
    fn it_is_said_what_somebody_waits_for() {
        let teams = Teams::new(&QuotaConfig {
            gpus: GpuLimit::Blocks(400),
            gpus_of: BTreeMap::from([("H100".to_owned(), GpuLimit::Blocks(200))]),
            ..QuotaConfig::default()
        });
        let mut quotas = teams.quotas();
        let need = |blocks, pool| Need { blocks, pool };
        let h100 = teams.pool("H100");
        quotas.charge(JobId(1), team(1), need(150, h100), Hold::Held);
        let why =
            |quotas: &Quotas, need| teams.why(&quotas.check(JobId(9), team(1), need).unwrap_err());
        assert_eq!(
            why(&quotas, need(100, h100)),
            "your team holds 150% of its 200% of H100; waiting for it to give back"
        );
        quotas.charge(JobId(2), team(1), need(200, None), Hold::Held);
        assert_eq!(
            why(&quotas, need(100, None)),
            "your team holds 350% of its 400%; waiting for it to give back"
        );
        quotas.charge(JobId(2), team(1), need(200, None), Hold::Promised);
        assert_eq!(
            why(&quotas, need(100, None)),
            "your team holds 150% of its 400% and 200% is set aside for others of it; waiting for it to give back"
        );
        assert_eq!(
            why(&quotas, need(500, None)),
            "this needs 500% of GPUs and your team may hold 400%; ask your admin for more"
        );
    }
}
