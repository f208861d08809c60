//! Names that people choose.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest server name: a DNS label, since names become host names inside the server.
const MAX_NAME: usize = 63;

/// Why a name is refused. The offending text is not repeated, since it may be long or hostile.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("a {0} must not be empty")]
    Empty(&'static str),
    /// More than 63 characters.
    #[error("a {what} has at most {MAX_NAME} characters, this one has {found}")]
    TooLong {
        /// Which kind of name.
        what: &'static str,
        /// Characters found.
        found: usize,
    },
    /// A character outside `a-z`, `0-9` and `-`.
    #[error("a {what} consists of a-z, 0-9 and '-', found {found:?} at position {at}")]
    Character {
        /// Which kind of name.
        what: &'static str,
        /// The first character that is not allowed.
        found: char,
        /// Its position, counted from 1.
        at: usize,
    },
    /// Begins or ends with a dash.
    #[error("a {0} begins and ends with a letter or digit")]
    Edge(&'static str),
    /// Would be read as an id.
    #[error("a {0} must not look like an id")]
    LooksLikeId(&'static str),
    /// Not of the form `<owner>/<slug>`.
    #[error("a project is written <owner>/<slug>")]
    NotOwnerSlug,
}

fn check(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty(what));
    }
    let found = text.chars().count();
    if found > MAX_NAME {
        return Err(NameError::TooLong { what, found });
    }
    for (index, found) in text.chars().enumerate() {
        if !matches!(found, 'a'..='z' | '0'..='9' | '-') {
            return Err(NameError::Character {
                what,
                found,
                at: index + 1,
            });
        }
    }
    if text.starts_with('-') || text.ends_with('-') {
        return Err(NameError::Edge(what));
    }
    // "srv-<ulid>" is the host label of a server's own origin.
    if crate::id::ServerId::from_host_label(text).is_some() {
        return Err(NameError::LooksLikeId(what));
    }
    Ok(())
}

macro_rules! text_type {
    ($name:ident) => {
        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

/// The name of a server, unique in its project.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(String);

text_type!(ServerName);

impl FromStr for ServerName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check("server name", text)?;
        Ok(Self(text.to_owned()))
    }
}

/// The name of a run, unique in its project.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunName(String);

text_type!(RunName);

impl FromStr for RunName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check("run name", text)?;
        Ok(Self(text.to_owned()))
    }
}

impl RunName {
    /// The name of a run that nobody named: the last characters of its id, which differ
    /// between runs of the same moment.
    #[must_use]
    pub fn of(id: crate::id::RunId) -> Self {
        let ulid = id.ulid().to_string().to_ascii_lowercase();
        Self(format!("run-{}", ulid.get(16..).unwrap_or(&ulid)))
    }
}

/// A project, written `<owner>/<slug>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectName(String);

text_type!(ProjectName);

impl FromStr for ProjectName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (owner, slug) = text.split_once('/').ok_or(NameError::NotOwnerSlug)?;
        check("project owner", owner)?;
        check("project slug", slug)?;
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass() {
        for name in ["first-experiment", "a", "0", &"x".repeat(63)] {
            assert_eq!(name.parse::<ServerName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn bad_names_say_why() {
        let long = "x".repeat(10_240);
        for (name, says) in [
            ("", "empty"),
            ("a/b", "'/' at position 2"),
            ("a\u{7}", "'\\u{7}' at position 2"),
            ("Upper", "'U' at position 1"),
            ("-a", "begins and ends"),
            ("a-", "begins and ends"),
            ("..", "'.' at position 1"),
            ("srv-00000000000000000000000007", "look like an id"),
            (&long, "10240"),
        ] {
            let error = name.parse::<ServerName>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(error.len() < 200, "{error}");
        }
    }

    #[test]
    fn a_run_that_nobody_named_gets_a_good_name() {
        let id = crate::id::RunId::from_ulid(crate::id::Ulid(u128::MAX / 7));
        let name = RunName::of(id);
        assert_eq!(name.as_str().len(), 14);
        assert_eq!(name.as_str().parse::<RunName>(), Ok(name));
        let error = "-".parse::<RunName>().unwrap_err().to_string();
        assert_eq!(error, "a run name begins and ends with a letter or digit");
    }

    #[test]
    fn projects_are_owner_and_slug() {
        assert!("local/default".parse::<ProjectName>().is_ok());
        for wrong in ["default", "a/b/c", "/b", "a/", "a b/c"] {
            assert!(wrong.parse::<ProjectName>().is_err(), "{wrong}");
        }
    }
}
