//! The reference of every command as Markdown, made from the definition of the command line.
//!
//! **Invariant**: the same program gives the same text, whatever the terminal, so that the page
//! in `docs/guide/cli.md` can be compared with it.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::{cli, environment::Program, error::Exit};

const INTRODUCTION: &str = "# Command line reference

<!-- Made by `cnlab __reference`; the tests compare it. Do not edit. -->

`cnlab` speaks to one gateway. It is found by `--endpoint`, else `CNLAB_ENDPOINT`, else the context in
the configuration file (`--config`, else `CNLAB_CONFIG`, else `cnlab/config.toml` in your configuration
folder), which `cnlab up` and `cnlab login` write. The token is `CNLAB_TOKEN` (or `AUTOLAB_TOKEN`), else
the one that `cnlab login` kept for that gateway. Called as `autolab`, the program does the same.

Data goes to stdout; progress, notes and errors go to stderr. `-o json` and `-o yaml` print one document
with `apiVersion: cnlab/v1`, a `kind`, and the fields of the HTTP API; errors become a document of kind
`Error` on stderr. `-o name` prints names that can be given to other commands.

An error says what failed, why, what to do, and an id to quote:

```
error[REASON]: what happened
  cause: why, in the words of whoever found it
  try: what to do
  trace: 0af7651916cd43dd8448eb211c80319c
```
";

/// The whole page.
#[must_use]
pub fn markdown() -> String {
    let mut root = cli::command(Program::Cnlab);
    root.build();
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n| 0 | success |\n");
    for (exit, meaning) in Exit::TABLE {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| {} | {meaning} |", exit.code());
    }
    page.push_str("\n## Options of every command\n\n");
    list(
        &mut page,
        root.get_arguments().filter(|arg| arg.is_global_set()),
    );
    page.push_str("\n## Commands\n");
    for command in root
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        section(
            &mut page,
            &format!("{} {}", root.get_name(), command.get_name()),
            command,
        );
    }
    page
}

fn section(page: &mut String, path: &str, command: &Command) {
    let _ = write!(page, "\n### `{path}`\n\n");
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        let _ = writeln!(page, "{}", sentence(&about.to_string()));
    }
    let aliases: Vec<String> = command
        .get_visible_aliases()
        .map(|alias| format!("`{alias}`"))
        .collect();
    if !aliases.is_empty() {
        let _ = writeln!(page, "\nAlso: {}.", aliases.join(", "));
    }
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help")
        .collect();
    if !arguments.is_empty() {
        page.push('\n');
        list(page, arguments.into_iter());
    }
    for sub in command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
    {
        section(page, &format!("{path} {}", sub.get_name()), sub);
    }
}

fn list<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    for arg in arguments {
        let value = || {
            let names = arg.get_value_names().unwrap_or_default();
            names.first().map_or_else(
                || arg.get_id().to_string().to_uppercase(),
                ToString::to_string,
            )
        };
        let mut name = String::new();
        if let Some(short) = arg.get_short() {
            let _ = write!(name, "-{short}, ");
        }
        match arg.get_long() {
            Some(long) => {
                let _ = write!(name, "--{long}");
                if arg.get_action().takes_values() {
                    let _ = write!(name, " <{}>", value());
                }
            }
            None => {
                let _ = write!(name, "<{}>", value());
            }
        }
        let text = arg
            .get_long_help()
            .or_else(|| arg.get_help())
            .map(ToString::to_string)
            .unwrap_or_default();
        let _ = write!(
            page,
            "- `{name}`: {}",
            sentence(&text.split_whitespace().collect::<Vec<_>>().join(" "))
        );
        let possible: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if arg.get_action().takes_values() && !possible.is_empty() {
            let _ = write!(page, " One of {}.", possible.join(", "));
        }
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        if arg.get_action().takes_values() && !defaults.is_empty() {
            let _ = write!(page, " Default: {}.", defaults.join(", "));
        }
        page.push('\n');
    }
}

fn sentence(text: &str) -> String {
    // Angle brackets outside code would be read as HTML.
    let text = text.trim().replace('<', "&lt;").replace('>', "&gt;");
    if text.ends_with('.') {
        text
    } else {
        format!("{text}.")
    }
}
