//! Values that must not be printed.

use std::{fmt, fs, path::PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

const MASK: &str = "***";

/// A secret: masked wherever it would be shown.
///
/// In a configuration file it is a text, `{ file = "path" }` or `{ env = "NAME" }`; the
/// latter two are read when the configuration is loaded, without the last line break.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Takes the secret in.
    #[must_use]
    pub const fn new(value: String) -> Self {
        Self(value)
    }

    /// The secret itself: for use, not for show.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether nothing was given.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares in a time that does not depend on where the texts differ.
    #[must_use]
    pub fn matches(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        if own.len() != given.len() {
            return false;
        }
        let difference = own
            .iter()
            .zip(given)
            .fold(0_u8, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { MASK })
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.is_empty() { "" } else { MASK })
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Source(Source),
        }

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "lowercase")]
        enum Source {
            File(PathBuf),
            Env(String),
        }

        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(Self(text)),
            Form::Source(Source::File(path)) => fs::read_to_string(&path)
                .map(|text| Self(text.trim_end_matches(['\r', '\n']).to_owned()))
                .map_err(|error| {
                    D::Error::custom(format!("secret file {}: {error}", path.display()))
                }),
            Form::Source(Source::Env(name)) => from_environment(&name)
                .map(Self)
                .ok_or_else(|| D::Error::custom(format!("the environment has no variable {name}"))),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "secrets of a configuration may name a variable"
)]
fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    struct Config {
        key: Secret,
    }

    #[test]
    fn is_never_shown() {
        let config = Config {
            key: Secret::new("hunter2".to_owned()),
        };
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!toml::to_string(&config).unwrap().contains("hunter2"));
    }

    #[test]
    fn comes_from_a_file_or_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "from-file\n").unwrap();
        let config: Config = toml::from_str(&format!("key = {{ file = {path:?} }}")).unwrap();
        assert_eq!(config.key.expose(), "from-file");
        let config: Config = toml::from_str("key = { env = \"PATH\" }").unwrap();
        assert!(!config.key.is_empty());
        let error = toml::from_str::<Config>("key = { file = \"/nowhere/key\" }").unwrap_err();
        assert!(error.to_string().contains("/nowhere/key"), "{error}");
    }

    #[test]
    fn comparison_is_exact() {
        let secret = Secret::new("abc".to_owned());
        assert!(secret.matches(b"abc"));
        assert!(!secret.matches(b"abd"));
        assert!(!secret.matches(b"ab"));
    }
}
