//! What the command line takes from its surroundings, read once at the start.
//!
//! **Invariants**: nothing else reads environment variables; an empty variable counts as
//! absent; a token never shows in `Debug`.

use std::{env, ffi::OsStr, fmt, path::PathBuf};

/// Variables, folders and the name that the program was called by.
#[derive(Clone, Default)]
pub struct Environment {
    /// `cnlab` or `autolab`.
    pub program: Program,
    /// `CNLAB_TOKEN` or `AUTOLAB_TOKEN`; the one of the program's own name wins.
    pub token: Option<String>,
    /// `CNLAB_ENDPOINT`.
    pub endpoint: Option<String>,
    /// `CNLAB_CONFIG`.
    pub config: Option<PathBuf>,
    /// `CNLAB_OTLP_ENDPOINT`, else `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub otlp: Option<String>,
    /// The user's configuration directory.
    pub config_dir: Option<PathBuf>,
    /// The user's data directory.
    pub data_dir: Option<PathBuf>,
    /// The user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// Whether a graphical session is there that can show a browser.
    pub display: bool,
    /// Whether the terminal understands cursor control.
    pub cursor_control: bool,
}

/// The name that the program acts under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Program {
    /// `cnlab`.
    #[default]
    Cnlab,
    /// `autolab`, an alias.
    Autolab,
}

impl Program {
    /// The name to print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cnlab => "cnlab",
            Self::Autolab => "autolab",
        }
    }

    /// The program for the first word of the command line.
    #[must_use]
    pub fn from_argv0(argv0: Option<&OsStr>) -> Self {
        let stem = argv0
            .map(std::path::Path::new)
            .and_then(|path| path.file_stem())
            .and_then(OsStr::to_str);
        if stem.is_some_and(|stem| stem.eq_ignore_ascii_case("autolab")) {
            Self::Autolab
        } else {
            Self::Cnlab
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Environment {
    /// Reads the surroundings of this process.
    #[must_use]
    pub fn read() -> Self {
        let program = Program::from_argv0(env::args_os().next().as_deref());
        let [first, second] = match program {
            Program::Cnlab => ["CNLAB_TOKEN", "AUTOLAB_TOKEN"],
            Program::Autolab => ["AUTOLAB_TOKEN", "CNLAB_TOKEN"],
        };
        let home = || path("HOME").or_else(|| path("USERPROFILE"));
        Self {
            program,
            token: text(first).or_else(|| text(second)),
            endpoint: text("CNLAB_ENDPOINT"),
            config: path("CNLAB_CONFIG"),
            otlp: text("CNLAB_OTLP_ENDPOINT").or_else(|| text("OTEL_EXPORTER_OTLP_ENDPOINT")),
            config_dir: path("XDG_CONFIG_HOME").or_else(|| {
                if cfg!(windows) {
                    path("APPDATA")
                } else if cfg!(target_os = "macos") {
                    home().map(|home| home.join("Library/Application Support"))
                } else {
                    home().map(|home| home.join(".config"))
                }
            }),
            data_dir: path("XDG_DATA_HOME").or_else(|| {
                if cfg!(windows) {
                    path("LOCALAPPDATA")
                } else if cfg!(target_os = "macos") {
                    home().map(|home| home.join("Library/Application Support"))
                } else {
                    home().map(|home| home.join(".local/share"))
                }
            }),
            cache_dir: path("XDG_CACHE_HOME").or_else(|| {
                if cfg!(windows) {
                    path("LOCALAPPDATA")
                } else if cfg!(target_os = "macos") {
                    home().map(|home| home.join("Library/Caches"))
                } else {
                    home().map(|home| home.join(".cache"))
                }
            }),
            display: cfg!(any(windows, target_os = "macos"))
                || path("DISPLAY").is_some()
                || path("WAYLAND_DISPLAY").is_some(),
            cursor_control: text("TERM").is_none_or(|term| term != "dumb"),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("program", &self.program)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("endpoint", &self.endpoint)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

fn text(name: &str) -> Option<String> {
    env::var_os(name)
        .and_then(|value| value.into_string().ok())
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_acts_under_its_own_name() {
        for (argv0, program) in [
            (Some("/usr/local/bin/autolab"), Program::Autolab),
            (Some("autolab.exe"), Program::Autolab),
            (Some("cnlab"), Program::Cnlab),
            (Some("anything-else"), Program::Cnlab),
            (None, Program::Cnlab),
        ] {
            assert_eq!(
                Program::from_argv0(argv0.map(OsStr::new)),
                program,
                "{argv0:?}"
            );
        }
    }

    #[test]
    fn debug_masks_the_token() {
        let environment = Environment {
            token: Some("cnl_secret".to_owned()),
            ..Environment::default()
        };
        assert!(!format!("{environment:?}").contains("secret"));
    }
}
