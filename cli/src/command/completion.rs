//! `cnlab completion`: scripts that ask this program for every candidate.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use crate::{
    command::Setting,
    complete::{self, Candidates},
    console::Console,
    error::Result,
    output::Document,
};

/// Which script.
#[derive(Debug, Clone, Copy, Args)]
pub struct CompletionArgs {
    /// The shell.
    pub shell: Shell,
}

/// Shells with a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// For /etc/bash_completion.d/cnlab.
    Bash,
    /// For _cnlab in a folder of $fpath.
    Zsh,
    /// For ~/.config/fish/completions/cnlab.fish.
    Fish,
}

impl Shell {
    const fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    const fn template(self) -> &'static str {
        match self {
            Self::Bash => include_str!("../completion/script.bash"),
            Self::Zsh => include_str!("../completion/script.zsh"),
            Self::Fish => include_str!("../completion/script.fish"),
        }
    }
}

/// Words of a command line that is being typed.
#[derive(Debug, Clone, Args)]
pub struct CompleteArgs {
    /// The words after the program's name; the last one is being typed, and may be empty.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// Prints the script.
///
/// # Errors
/// When stdout cannot be written to.
pub fn script(setting: Setting<'_>, console: &mut Console, args: &CompletionArgs) -> Result<()> {
    let text = args
        .shell
        .template()
        .replace("@PROGRAM@", setting.environment.program.name());
    console.result(
        || text.clone(),
        || vec![args.shell.name().to_owned()],
        || {
            Ok(Document::new("Completion")
                .with("shell", args.shell.name())
                .with("script", text.as_str()))
        },
    )
}

/// Prints candidates, one a line as `word<TAB>description`. A first line `:files` asks the
/// shell for its own completion of file names. Never fails: a prompt is no place for errors.
///
/// # Errors
/// When stdout cannot be written to.
pub async fn complete(
    setting: Setting<'_>,
    console: &mut Console,
    args: CompleteArgs,
) -> Result<()> {
    let words: Vec<String> = args
        .words
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let text = match complete::candidates(setting, &words).await {
        Candidates::Files => ":files\n".to_owned(),
        Candidates::Words(words) => words
            .into_iter()
            .map(|(word, help)| {
                if help.is_empty() {
                    format!("{word}\n")
                } else {
                    format!("{word}\t{help}\n")
                }
            })
            .collect(),
    };
    console.raw(&text)
}
