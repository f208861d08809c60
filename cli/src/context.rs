//! Which gateway a command speaks to, and with which token.
//!
//! Two files lie in the configuration folder: `config.toml` with the contexts (no secrets),
//! and `credentials.toml` with one token per gateway, mode 0600.
//!
//! **Invariant**: a stored token is sent to the gateway that it was stored for and to no other.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    environment::Environment,
    error::{Exit, Failure, Result},
    private_file,
};

/// Where the two files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    config: PathBuf,
}

impl Paths {
    /// `--config`, else `CNLAB_CONFIG`, else `cnlab/config.toml` in the user's configuration
    /// folder.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn find(flag: Option<&Path>, environment: &Environment) -> Result<Self> {
        let config = flag
            .map(Path::to_owned)
            .or_else(|| environment.config.clone())
            .or_else(|| {
                environment
                    .config_dir
                    .as_ref()
                    .map(|folder| folder.join("cnlab").join("config.toml"))
            })
            .ok_or_else(|| {
                Failure::new(
                    Exit::Usage,
                    "NO_CONFIG_FOLDER",
                    "there is no place for the configuration file",
                )
                .caused_by("neither HOME nor XDG_CONFIG_HOME is set")
                .try_this("set CNLAB_CONFIG or pass --config FILE")
            })?;
        Ok(Self { config })
    }

    /// The file with the contexts.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The file with the tokens.
    #[must_use]
    pub fn credentials(&self) -> PathBuf {
        self.config.with_file_name("credentials.toml")
    }
}

/// The content of `config.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The name of the context in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// All contexts by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub contexts: BTreeMap<String, Context>,
}

/// One gateway and the defaults for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// `http://host:port` of the gateway.
    pub endpoint: String,
    /// Project used where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Credentials {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gateways: BTreeMap<String, Credential>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Credential {
    token: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(***)")
    }
}

/// The contexts; none when there is no file yet.
///
/// # Errors
/// When the file cannot be read or means nothing.
pub fn read(paths: &Paths) -> Result<Config> {
    let text =
        private_file::read(&paths.config).map_err(|error| unreadable(&paths.config, &error))?;
    parse(&paths.config, text.as_deref())
}

/// The context in use, if there is one.
///
/// # Errors
/// When the file cannot be read or means nothing.
pub fn current(paths: &Paths) -> Result<Option<Context>> {
    let config = read(paths)?;
    let Some(name) = &config.current else {
        return Ok(None);
    };
    match config.contexts.get(name) {
        Some(context) => Ok(Some(context.clone())),
        None => Err(bad_file(
            &paths.config,
            format!("current = {name:?} is none of the contexts"),
        )),
    }
}

/// Writes a context and puts it in use. `cnlab up` and `cnlab login` do that; a project that
/// was chosen before for this context is kept.
///
/// # Errors
/// When the file cannot be read or written.
pub fn write(paths: &Paths, name: &str, endpoint: &str) -> Result<()> {
    update(&paths.config, |text| {
        let mut config: Config = parse(&paths.config, text)?;
        let project = config
            .contexts
            .get(name)
            .and_then(|context| context.project.clone());
        config.contexts.insert(
            name.to_owned(),
            Context {
                endpoint: endpoint.to_owned(),
                project,
            },
        );
        config.current = Some(name.to_owned());
        Ok(Some(config))
    })
}

/// The stored token for this gateway.
///
/// # Errors
/// When the file cannot be read or means nothing.
pub fn token(paths: &Paths, endpoint: &str) -> Result<Option<String>> {
    let path = paths.credentials();
    let text = private_file::read(&path).map_err(|error| unreadable(&path, &error))?;
    let mut credentials: Credentials = parse(&path, text.as_deref())?;
    Ok(credentials
        .gateways
        .remove(endpoint)
        .map(|credential| credential.token))
}

/// Stores the token for this gateway.
///
/// # Errors
/// When the file cannot be read or written.
pub fn store_token(paths: &Paths, endpoint: &str, token: &str) -> Result<()> {
    let path = paths.credentials();
    update(&path, |text| {
        let mut credentials: Credentials = parse(&path, text)?;
        credentials.gateways.insert(
            endpoint.to_owned(),
            Credential {
                token: token.to_owned(),
            },
        );
        Ok(Some(credentials))
    })
}

/// Forgets the token for this gateway, and says whether there was one.
///
/// # Errors
/// When the file cannot be read or written.
pub fn forget_token(paths: &Paths, endpoint: &str) -> Result<bool> {
    let path = paths.credentials();
    if !path.exists() {
        return Ok(false);
    }
    let mut found = false;
    update(&path, |text| {
        let mut credentials: Credentials = parse(&path, text)?;
        found = credentials.gateways.remove(endpoint).is_some();
        Ok(found.then_some(credentials))
    })?;
    Ok(found)
}

/// What can go wrong inside [`private_file::update`].
enum Broken {
    File(io::Error),
    Content(Failure),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Content(failure)
    }
}

fn update<T: Serialize>(
    path: &Path,
    change: impl FnOnce(Option<&str>) -> Result<Option<T>>,
) -> Result<()> {
    private_file::update(path, |text| {
        let Some(new) = change(text.as_deref())? else {
            return Ok(None);
        };
        toml::to_string(&new)
            .map(Some)
            .map_err(|error| Broken::Content(bad_file(path, error.to_string())))
    })
    .map_err(|broken| match broken {
        Broken::Content(failure) => failure,
        Broken::File(error) => {
            Failure::local(format!("{} cannot be written", path.display()), &error)
        }
    })
}

fn parse<T: Default + for<'de> Deserialize<'de>>(path: &Path, text: Option<&str>) -> Result<T> {
    match text {
        None => Ok(T::default()),
        // The message only: the whole error quotes the line, which may hold a token.
        Some(text) => {
            toml::from_str(text).map_err(|error| bad_file(path, error.message().to_owned()))
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::local(format!("{} cannot be read", path.display()), error)
}

fn bad_file(path: &Path, cause: String) -> Failure {
    Failure::new(
        Exit::Usage,
        "CONFIG_INVALID",
        format!("{} cannot be understood", path.display()),
    )
    .caused_by(cause)
    .try_this("correct the file, or move it away and log in again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> (tempfile::TempDir, Paths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths {
            config: folder.path().join("cnlab/config.toml"),
        };
        (folder, paths)
    }

    #[test]
    fn a_written_context_is_in_use_and_keeps_its_project() {
        let (_folder, paths) = paths();
        assert_eq!(current(&paths).unwrap(), None);
        write(&paths, "local", "http://127.0.0.1:8080").unwrap();
        let text = std::fs::read_to_string(paths.config()).unwrap();
        std::fs::write(paths.config(), text + "project = \"a/b\"\n").unwrap();
        write(&paths, "local", "http://127.0.0.1:9090").unwrap();
        let context = current(&paths).unwrap().unwrap();
        assert_eq!(context.endpoint, "http://127.0.0.1:9090");
        assert_eq!(context.project.as_deref(), Some("a/b"));
    }

    #[test]
    fn tokens_belong_to_one_gateway() {
        let (_folder, paths) = paths();
        assert!(!forget_token(&paths, "http://a").unwrap());
        store_token(&paths, "http://a", "one").unwrap();
        store_token(&paths, "http://b", "two").unwrap();
        assert_eq!(token(&paths, "http://a").unwrap().as_deref(), Some("one"));
        assert_eq!(token(&paths, "http://c").unwrap(), None);
        assert!(forget_token(&paths, "http://a").unwrap());
        assert_eq!(token(&paths, "http://a").unwrap(), None);
        assert_eq!(token(&paths, "http://b").unwrap().as_deref(), Some("two"));
    }

    #[test]
    fn a_broken_file_is_named_without_its_content() {
        let (_folder, paths) = paths();
        store_token(&paths, "http://a", "one").unwrap();
        std::fs::write(paths.credentials(), "gateways = \"s3cret").unwrap();
        let failure = token(&paths, "http://a").unwrap_err();
        assert_eq!(failure.facts().reason, "CONFIG_INVALID");
        assert!(!format!("{failure:?}").contains("s3cret"));
        // And it is not overwritten by the next login.
        assert!(store_token(&paths, "http://a", "new").is_err());
    }
}
