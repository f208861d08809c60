//! Names of users and teams.

use std::{fmt, str::FromStr};

use cnlab_model::{ProjectName, name::NameError};
use serde::{Deserialize, Serialize};

/// The name of a user or a team: 1 to 63 of `a-z`, `0-9` and `-`, since it becomes the owner
/// part of a project's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccountName(String);

impl AccountName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AccountName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        // A slash would otherwise divide the text into another owner and slug.
        if let Some(at) = text.chars().position(|c| c == '/') {
            return Err(NameError::Character {
                what: "account name",
                found: '/',
                at: at.saturating_add(1),
            });
        }
        format!("{text}/x").parse::<ProjectName>()?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for AccountName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<AccountName> for String {
    fn from(name: AccountName) -> Self {
        name.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_project_names() {
        for good in ["ada", "a", "team-7", &"x".repeat(63)] {
            assert_eq!(good.parse::<AccountName>().unwrap().as_str(), good);
        }
        for wrong in ["", "a/b", "Ada", "-a", "a b", "a\n", &"x".repeat(64)] {
            assert!(wrong.parse::<AccountName>().is_err(), "{wrong:?}");
        }
    }
}
