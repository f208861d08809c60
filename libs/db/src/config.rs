//! Where a service's database is.
//!
//! **Invariant**: neither `Debug` nor `Serialize` shows a password.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use sea_orm::sqlx::{postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};

const MASK: &str = "***";

/// Where a service's database is: `sqlite://<path>?mode=rwc` or
/// `postgres://<user>:<password>@<host>:<port>/<name>`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// The URL, with the password if there is one.
    pub url: String,
}

/// A URL that was understood.
pub(crate) enum Target {
    Sqlite(SqliteConnectOptions),
    Postgres(PgConnectOptions),
}

impl DatabaseConfig {
    /// The SQLite database in this file, which is created when it is not there; its folder
    /// must exist.
    #[must_use]
    pub fn sqlite(path: &Path) -> Self {
        let mut url = "sqlite://".to_owned();
        for c in path.to_string_lossy().chars() {
            match c {
                '%' => url.push_str("%25"),
                '?' => url.push_str("%3F"),
                '#' => url.push_str("%23"),
                _ => url.push(c),
            }
        }
        url.push_str("?mode=rwc");
        Self { url }
    }

    /// Whether the URL can be understood.
    ///
    /// # Errors
    /// What is wrong with it, without the password.
    pub fn validate(&self) -> Result<(), String> {
        self.target().map(drop)
    }

    /// The file of an SQLite database.
    #[must_use]
    pub fn sqlite_path(&self) -> Option<PathBuf> {
        match self.target() {
            Ok(Target::Sqlite(options)) => Some(options.get_filename().to_owned()),
            Ok(Target::Postgres(_)) | Err(_) => None,
        }
    }

    /// The URL with the password masked.
    #[must_use]
    pub fn masked(&self) -> String {
        let (address, query) = match self.url.split_once('?') {
            Some((address, query)) => (address, Some(query)),
            None => (self.url.as_str(), None),
        };
        let mut shown = match (address.split_once("://"), address.rfind('@')) {
            (Some((scheme, rest)), Some(_)) => {
                let (login, host) = rest.rsplit_once('@').unwrap_or(("", rest));
                match login.split_once(':') {
                    Some((user, _)) => format!("{scheme}://{user}:{MASK}@{host}"),
                    None => address.to_owned(),
                }
            }
            _ => address.to_owned(),
        };
        if let Some(query) = query {
            for (index, pair) in query.split('&').enumerate() {
                shown.push(if index == 0 { '?' } else { '&' });
                match pair.split_once('=') {
                    Some((name, _)) if name.eq_ignore_ascii_case("password") => {
                        shown.push_str(name);
                        shown.push('=');
                        shown.push_str(MASK);
                    }
                    _ => shown.push_str(pair),
                }
            }
        }
        shown
    }

    pub(crate) fn target(&self) -> Result<Target, String> {
        // The parsers' own texts may quote the URL, so they are not passed on.
        if self.url.starts_with("sqlite:") {
            let options = SqliteConnectOptions::from_str(&self.url).map_err(|_| {
                format!(
                    "{:?} is no SQLite URL: expected sqlite://<path>?mode=rwc",
                    self.masked()
                )
            })?;
            let path = options.get_filename();
            let in_memory =
                self.url.contains(":memory:") || self.url.to_lowercase().contains("mode=memory");
            if in_memory || path.as_os_str().is_empty() {
                return Err("an SQLite database is a file: sqlite://<path>?mode=rwc".to_owned());
            }
            Ok(Target::Sqlite(options))
        } else if self.url.starts_with("postgres://") || self.url.starts_with("postgresql://") {
            PgConnectOptions::from_str(&self.url)
                .map(Target::Postgres)
                .map_err(|_| {
                    format!(
                        "{:?} is no PostgreSQL URL: expected postgres://<user>:<password>@<host>:<port>/<name>",
                        self.masked()
                    )
                })
        } else {
            Err("a database URL begins with sqlite:// or postgres://".to_owned())
        }
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseConfig")
            .field("url", &self.masked())
            .finish()
    }
}

impl Serialize for DatabaseConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("DatabaseConfig", 1)?;
        fields.serialize_field("url", &self.masked())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> DatabaseConfig {
        DatabaseConfig {
            url: url.to_owned(),
        }
    }

    #[test]
    fn passwords_are_never_shown() {
        for (url, shown) in [
            ("postgres://u:geheim@h:1/d", "postgres://u:***@h:1/d"),
            ("postgres://u:ge@heim@h/d", "postgres://u:***@h/d"),
            (
                "postgres://u@h/d?sslmode=disable&password=geheim",
                "postgres://u@h/d?sslmode=disable&password=***",
            ),
            (
                "sqlite:///x/y.sqlite?mode=rwc",
                "sqlite:///x/y.sqlite?mode=rwc",
            ),
        ] {
            let config = config(url);
            assert_eq!(config.masked(), shown);
            assert!(!format!("{config:?}").contains("geheim"));
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(json, format!("{{\"url\":\"{shown}\"}}"));
        }
    }

    #[test]
    fn paths_with_special_characters_survive() {
        let path = Path::new("/a b/50%?#x.sqlite");
        assert_eq!(
            DatabaseConfig::sqlite(path).sqlite_path().as_deref(),
            Some(path)
        );
    }

    #[test]
    fn wrong_urls_say_what_is_expected_without_the_password() {
        for url in [
            "mysql://u:geheim@h/d",
            "sqlite::memory:",
            "sqlite://x?mode=memory",
            "sqlite://x?mode=geheim",
            "postgres://u:geheim@h:notaport/d",
            "",
        ] {
            let error = config(url).validate().unwrap_err();
            assert!(error.contains("://"), "{error}");
            assert!(!error.contains("u:geheim"), "{error}");
        }
        assert_eq!(config("postgres://u:p@h/d").validate(), Ok(()));
    }

    #[test]
    fn unknown_fields_are_refused() {
        let parsed = serde_json::from_str::<DatabaseConfig>("{\"url\":\"sqlite://x\",\"ur\":1}");
        assert!(parsed.is_err());
    }
}
