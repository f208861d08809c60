//! What teams may hold and ask for, as it is written.
//!
//! Amounts of GPUs are written in GPUs with up to two decimals (`4`, `"4.25"`) or in percent of
//! one (`"425%"`), and are whole blocks inside.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use cnlab_model::{BLOCKS_PER_GPU, id::TeamId};
use cnlab_service::ConfigFault;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the servers and runs of one team may hold and ask for at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// Most of all GPUs that a team holds at once.
    pub gpus: GpuLimit,
    /// Most of the GPUs of one type that a team holds at once, beside `quota.gpus`, as in `gpus_of = { H100 = "2.00" }`.
    pub gpus_of: BTreeMap<String, GpuLimit>,
    /// Most servers and runs of a team that wait for GPUs at once.
    pub waiting: CountLimit,
    /// Whom to ask for more, as an error says it.
    pub contact: String,
    /// Teams for which something else holds. What an entry leaves out is as for every team; `"unlimited"` lifts a limit.
    pub teams: Vec<TeamConfig>,
}

/// What one team has that others do not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeamConfig {
    /// The team's id, as `cnlab whoami` prints it.
    pub team: TeamId,
    /// In place of `quota.gpus`.
    pub gpus: Option<GpuLimit>,
    /// In place of `quota.gpus_of`, type by type.
    #[serde(default)]
    pub gpus_of: BTreeMap<String, GpuLimit>,
    /// In place of `quota.waiting`.
    pub waiting: Option<CountLimit>,
    /// Its part of the fair share: with twice the weight it may use twice as much before others go first.
    #[serde(default = "one")]
    pub weight: u32,
}

const fn one() -> u32 {
    1
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            gpus: GpuLimit::Unlimited,
            gpus_of: BTreeMap::new(),
            waiting: CountLimit::Unlimited,
            contact: "your admin".to_owned(),
            teams: Vec::new(),
        }
    }
}

impl QuotaConfig {
    pub(super) fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = types("quota.gpus_of", &self.gpus_of);
        if self.contact.trim().is_empty() {
            faults.push(ConfigFault::new("quota.contact", "names nobody"));
        }
        let mut known = BTreeSet::new();
        for (at, team) in self.teams.iter().enumerate() {
            let key = |field: &str| format!("quota.teams.{at}.{field}");
            if !known.insert(team.team) {
                let problem = format!("{} has an entry already", team.team);
                faults.push(ConfigFault::new(key("team"), problem));
            }
            if team.weight == 0 {
                faults.push(ConfigFault::new(key("weight"), "must be at least 1"));
            }
            faults.extend(types(&key("gpus_of"), &team.gpus_of));
        }
        faults
    }
}

fn types(key: &str, limits: &BTreeMap<String, GpuLimit>) -> Vec<ConfigFault> {
    let mut known = BTreeSet::new();
    let mut faults = Vec::new();
    for name in limits.keys() {
        if name.trim().is_empty() || !known.insert(name.to_ascii_lowercase()) {
            let problem = "is empty, or a type of GPU that stands there already";
            faults.push(ConfigFault::new(format!("{key}.{name}"), problem));
        }
    }
    faults
}

/// How much of GPUs, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLimit {
    /// No limit.
    Unlimited,
    /// So many blocks, each a hundredth of a GPU.
    Blocks(u64),
}

impl GpuLimit {
    /// The limit, if there is one.
    #[must_use]
    pub const fn blocks(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Blocks(blocks) => Some(blocks),
        }
    }
}

const UNLIMITED: &str = "unlimited";

impl FromStr for GpuLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no amount of GPUs such as 4, 4.25, 425% or unlimited, exact to a hundredth"
            )
        };
        if text == UNLIMITED {
            return Ok(Self::Unlimited);
        }
        let digits = |text: &str| -> Option<u64> {
            let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| text.parse().ok()).flatten()
        };
        let blocks = match text.strip_suffix('%') {
            Some(percent) => digits(percent.trim_end()),
            None => {
                let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
                let hundredths = match decimals.len() {
                    1 => digits(decimals).and_then(|tenths| tenths.checked_mul(10)),
                    2 => digits(decimals),
                    _ => None,
                };
                digits(whole)
                    .and_then(|whole| whole.checked_mul(BLOCKS_PER_GPU.into()))
                    .zip(hundredths)
                    .and_then(|(whole, hundredths)| whole.checked_add(hundredths))
            }
        };
        blocks.map(Self::Blocks).ok_or_else(wrong)
    }
}

impl fmt::Display for GpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str(UNLIMITED),
            Self::Blocks(blocks) => {
                let per = u64::from(BLOCKS_PER_GPU);
                write!(f, "{}.{:02}", blocks / per, blocks % per)
            }
        }
    }
}

/// How many, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountLimit {
    /// No limit.
    Unlimited,
    /// So many.
    Count(u32),
}

impl CountLimit {
    /// The limit, if there is one.
    #[must_use]
    pub const fn count(self) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Count(count) => Some(count),
        }
    }
}

impl FromStr for CountLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == UNLIMITED {
            return Ok(Self::Unlimited);
        }
        let count = text.parse().map(Self::Count);
        count.map_err(|_| format!("{text:?} is no whole number and not unlimited"))
    }
}

impl fmt::Display for CountLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str(UNLIMITED),
            Self::Count(count) => count.fmt(f),
        }
    }
}

/// Reads texts and numbers, both by their texts: environment variables and flags that look like
/// numbers arrive as such.
struct ByText<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> de::Visitor<'_> for ByText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a text with one or with \"unlimited\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.trim().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    /// The shortest text that stands for the number is what was written, up to zeros.
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! by_text {
    ($($limit:ty),*) => {$(
        impl Serialize for $limit {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $limit {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(ByText(std::marker::PhantomData))
            }
        }
    )*};
}
by_text!(GpuLimit, CountLimit);

#[cfg(test)]
mod tests {
    use cnlab_service::config;

    use super::*;
    use crate::config::Config;

    #[test]
    fn amounts_are_exact() {
        for (text, blocks) in [
            ("4", 400),
            ("4.0", 400),
            ("4.25", 425),
            ("0.1", 10),
            ("0", 0),
            ("425%", 425),
            ("7 %", 7),
        ] {
            assert_eq!(text.parse(), Ok(GpuLimit::Blocks(blocks)), "{text}");
        }
        assert_eq!("unlimited".parse(), Ok(GpuLimit::Unlimited));
        for wrong in [
            "",
            "-1",
            "1.",
            ".5",
            "1.005",
            "1,5",
            "four",
            "%",
            "1.5%",
            "+1",
            "1e3",
            "400 GPUs",
            "184467440737095517",
        ] {
            assert!(wrong.parse::<GpuLimit>().is_err(), "{wrong}");
        }
        for limit in [
            GpuLimit::Blocks(305),
            GpuLimit::Blocks(7),
            GpuLimit::Unlimited,
        ] {
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
    }

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn load(text: &str) -> Result<QuotaConfig, Vec<ConfigFault>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scheduler.toml");
        std::fs::write(
            &file,
            format!("{text}\n[common]\ninternal_key = \"{KEY}\"\n"),
        )
        .unwrap();
        config::load::<Config>("scheduler-svc", Some(&file), &[]).map(|config| config.quota)
    }

    #[test]
    fn a_file_says_what_teams_may() {
        let quota = load(
            r#"
            [quota]
            gpus = 4.25
            gpus_of = { H100 = "200%", L40S = 3 }
            waiting = 50
            contact = "ml-platform@example.org"
            [[quota.teams]]
            team = "team_00000000000000000000000007"
            gpus = "unlimited"
            weight = 2
            [[quota.teams]]
            team = "team_00000000000000000000000008"
            gpus_of = { H100 = "0.5" }
            waiting = "unlimited"
            "#,
        )
        .unwrap();
        assert_eq!(quota.gpus, GpuLimit::Blocks(425));
        assert_eq!(quota.gpus_of["H100"], GpuLimit::Blocks(200));
        assert_eq!(quota.gpus_of["L40S"], GpuLimit::Blocks(300));
        assert_eq!(quota.waiting, CountLimit::Count(50));
        assert_eq!(quota.teams[0].gpus, Some(GpuLimit::Unlimited));
        assert_eq!((quota.teams[0].weight, quota.teams[1].weight), (2, 1));
        assert_eq!(quota.teams[1].gpus_of["H100"], GpuLimit::Blocks(50));
        assert_eq!(quota.teams[1].waiting, Some(CountLimit::Unlimited));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_key() {
        let keys = |text: &str| -> Vec<String> {
            let faults = load(text).unwrap_err();
            faults.into_iter().map(|fault| fault.key).collect()
        };
        assert_eq!(keys("quota.gpus = \"1.005\""), ["quota.gpus"]);
        assert_eq!(keys("quota.gpus = 1.005"), ["quota.gpus"]);
        assert_eq!(keys("quota.gpus_of.H100 = -1"), ["quota.gpus_of.H100"]);
        assert_eq!(keys("quota.waiting = 1.5"), ["quota.waiting"]);
        let team = "[[quota.teams]]\nteam = \"team_00000000000000000000000007\"\n";
        assert_eq!(
            keys("[[quota.teams]]\nteam = \"physics\""),
            ["quota.teams.0.team"]
        );
        assert_eq!(
            keys(&format!("{team}waiting = \"many\"")),
            ["quota.teams.0.waiting"]
        );
        assert_eq!(
            keys(&format!(
                "{team}weight = 0\n{team}gpus_of = {{ h100 = 1, H100 = 2 }}\n[quota]\ncontact = \"\""
            )),
            [
                "quota.contact",
                "quota.teams.0.weight",
                "quota.teams.1.team",
                "quota.teams.1.gpus_of.h100"
            ]
        );
    }
}
