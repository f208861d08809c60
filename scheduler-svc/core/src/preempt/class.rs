//! Who goes before whom.

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::plan::Priority;

/// What kind of work a job or server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum WorkKind {
    /// Somebody sits in front of it.
    #[default]
    Interactive,
    /// It makes a model.
    Training,
    /// It answers requests with a model.
    Inference,
    /// It measures a model.
    Evaluation,
}

/// For whom work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Environment {
    /// For who makes it.
    #[default]
    Development,
    /// For who uses it.
    Production,
}

/// A text that names none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is none of {choices}")]
pub struct Unknown {
    text: String,
    choices: &'static str,
}

/// Text forms that are read and written alike.
macro_rules! words {
    ($type:ident, $choices:literal: $($variant:ident $word:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = Unknown;

            fn from_str(text: &str) -> Result<Self, Unknown> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(Unknown {
                        text: text.chars().take(32).collect(),
                        choices: $choices,
                    }),
                }
            }
        }
    };
}

words!(WorkKind, "interactive, training, inference, evaluation":
    Interactive "interactive", Training "training", Inference "inference", Evaluation "evaluation");
words!(Environment, "development, production":
    Development "development", Production "production");

/// What decides who goes before whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Class {
    /// The priority.
    pub priority: Priority,
    /// What kind of work it is.
    pub kind: WorkKind,
    /// For whom.
    pub environment: Environment,
}

/// Why one job goes before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ground {
    /// Its priority is higher.
    Priority,
    /// It is production inference, the other development training of the same priority.
    ProductionInference,
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Priority => "work of a higher priority",
            Self::ProductionInference => "production inference",
        })
    }
}

impl Class {
    /// Whether work of this class may make work of the other give way, and why.
    ///
    /// A higher priority goes before a lower one (H-05). At one priority, production inference
    /// goes before development training (H-08). Nothing goes before work of a higher priority,
    /// so who has to be safe from both asks for more priority. That is a strict partial order:
    /// whoever gave way can never make the other give way in turn.
    #[must_use]
    pub fn goes_before(self, other: Self) -> Option<Ground> {
        let serves =
            (self.kind, self.environment) == (WorkKind::Inference, Environment::Production);
        let learns =
            (other.kind, other.environment) == (WorkKind::Training, Environment::Development);
        if self.priority > other.priority {
            Some(Ground::Priority)
        } else if self.priority == other.priority && serves && learns {
            Some(Ground::ProductionInference)
        } else {
            None
        }
    }
}

/// One for the lowest priority, and one more for each above.
pub(super) const fn level(priority: Priority) -> u32 {
    match priority {
        Priority::Low => 1,
        Priority::Normal => 2,
        Priority::High => 3,
        Priority::Critical => 4,
    }
}
