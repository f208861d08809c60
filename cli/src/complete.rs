//! What could stand at the cursor of a command line that is being typed.
//!
//! The words before it are walked through the same clap definition that parses them; values
//! that only the gateway knows come from a cache that is at most two seconds old.
//!
//! **Invariants**: never an error and never a wait of more than a second or so; only names
//! that need no quoting are offered, so that a hostile one cannot reach the shell.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::PathBuf,
    time::Duration,
};

use clap::{Arg, Command, ValueHint};
use serde::{Deserialize, Serialize};

use crate::{
    cli::{self, Globals},
    command::{Setting, images, node, profiles, run, server},
    error::Result,
    output, private_file,
    session::{self, Session, Target},
};

/// How old names may be.
const FRESH: Duration = Duration::from_secs(2);
/// How long the gateway may take to name them.
const PATIENCE: Duration = Duration::from_millis(1_200);

/// What to offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidates {
    /// These words with their descriptions.
    Words(Vec<(String, String)>),
    /// File names, which the shell knows better.
    Files,
}

/// A kind of name that only the gateway knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Servers,
    Runs,
    Nodes,
    Profiles,
    Images,
    Projects,
}

/// What may stand at the cursor, by the definition of the command line alone.
#[derive(Debug)]
enum Place {
    Words(Vec<(String, String)>),
    Names(Names),
    Files,
    Nothing,
}

/// What was typed so far.
#[derive(Debug, Default, Clone)]
struct Typed {
    target: Target,
    config: Option<PathBuf>,
}

/// What could stand at the place of the last of these words.
pub async fn candidates(setting: Setting<'_>, words: &[String]) -> Candidates {
    let (current, before) = words
        .split_last()
        .map_or(("", [].as_slice()), |(last, before)| {
            (last.as_str(), before)
        });
    let mut command = cli::command(setting.environment.program);
    command.build();
    let (place, prefix, typed) = walk(&command, before, current);
    // In `--option=value` the option stays part of the word.
    let bare = current.get(prefix.len()..).unwrap_or_default();
    let found = match place {
        Place::Files => return Candidates::Files,
        Place::Nothing => Vec::new(),
        Place::Words(words) => words,
        Place::Names(kind) => names(setting, typed, kind)
            .await
            .into_iter()
            .map(|name| (name, String::new()))
            .collect(),
    };
    Candidates::Words(
        found
            .into_iter()
            .filter(|(word, _)| word.starts_with(bare))
            .map(|(word, help)| (format!("{prefix}{word}"), help))
            .collect(),
    )
}

fn walk(root: &Command, before: &[String], current: &str) -> (Place, String, Typed) {
    let mut command = root;
    let mut typed = Typed::default();
    let mut positional = 0;
    let mut only_positional = false;
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if !only_positional && word == "--" {
            only_positional = true;
        } else if !only_positional && let Some((arg, value)) = option(command, word) {
            used.insert(arg.get_id().to_string());
            if !takes_value(arg) {
                continue;
            }
            match value.map(str::to_owned).or_else(|| words.next().cloned()) {
                Some(value) => typed.note(arg, value),
                None => return (values(arg), String::new(), typed),
            }
        } else if !only_positional && word.starts_with('-') {
            // Unknown option: the parser will say so.
        } else if let Some(next) = command.find_subcommand(word) {
            command = next;
            positional = 0;
        } else {
            positional += 1;
        }
    }
    if !only_positional && current.starts_with('-') {
        if let Some((name, _)) = current.split_once('=')
            && let Some((arg, _)) = option(command, name)
            && takes_value(arg)
        {
            return (values(arg), format!("{name}="), typed);
        }
        return (Place::Words(options(command, &used)), String::new(), typed);
    }
    let subcommands: Vec<(String, String)> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| (sub.get_name().to_owned(), help(sub.get_about())))
        .collect();
    if !subcommands.is_empty() {
        return (Place::Words(subcommands), String::new(), typed);
    }
    let place = command
        .get_positionals()
        .nth(positional)
        .map_or(Place::Nothing, values);
    (place, String::new(), typed)
}

impl Typed {
    fn note(&mut self, arg: &Arg, value: String) {
        match arg.get_id().as_str() {
            "endpoint" => self.target.endpoint = Some(value),
            "project" => self.target.project = Some(value),
            "config" => self.config = Some(value.into()),
            _ => {}
        }
    }
}

/// The option that a word names, and the value in the same word.
fn option<'a, 'w>(command: &'a Command, word: &'w str) -> Option<(&'a Arg, Option<&'w str>)> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long
            .split_once('=')
            .map_or((long, None), |(name, value)| (name, Some(value)));
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(name))?;
        return Some((arg, value));
    }
    let letters = word.strip_prefix('-')?.char_indices();
    let mut found = None;
    // In `-fn20` the last letter that takes a value has the rest of the word.
    for (at, letter) in letters {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_short() == Some(letter))?;
        let rest = word
            .get(1 + at + letter.len_utf8()..)
            .filter(|rest| !rest.is_empty());
        if takes_value(arg) {
            return Some((arg, rest.map(|rest| rest.strip_prefix('=').unwrap_or(rest))));
        }
        found = Some((arg, None));
    }
    found
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn options(command: &Command, used: &BTreeSet<String>) -> Vec<(String, String)> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !used.contains(arg.get_id().as_str()))
        .filter_map(|arg| {
            arg.get_long()
                .map(|long| (format!("--{long}"), help(arg.get_help())))
        })
        .collect()
}

fn help(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|text| {
        text.to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    })
    .unwrap_or_default()
}

fn values(arg: &Arg) -> Place {
    let kind = match arg.get_id().as_str() {
        "server" => Some(Names::Servers),
        "run" => Some(Names::Runs),
        "node" => Some(Names::Nodes),
        "profile" => Some(Names::Profiles),
        "image" => Some(Names::Images),
        "project" => Some(Names::Projects),
        _ => None,
    };
    if let Some(kind) = kind {
        return Place::Names(kind);
    }
    let possible: Vec<(String, String)> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| (value.get_name().to_owned(), help(value.get_help())))
        .collect();
    if !possible.is_empty() {
        return Place::Words(possible);
    }
    match arg.get_value_hint() {
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath => Place::Files,
        _ => Place::Nothing,
    }
}

/// The names of one gateway, as they are kept for two seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Known {
    servers: Vec<String>,
    runs: Vec<String>,
    nodes: Vec<String>,
    profiles: Vec<String>,
    images: Vec<String>,
    projects: Vec<String>,
}

async fn names(setting: Setting<'_>, typed: Typed, kind: Names) -> Vec<String> {
    let globals = Globals {
        config: typed.config,
        ..Globals::default()
    };
    let setting = Setting {
        environment: setting.environment,
        globals: &globals,
    };
    let known = known(setting, &typed.target).await.unwrap_or_default();
    let names = match kind {
        Names::Servers => known.servers,
        Names::Runs => known.runs,
        Names::Nodes => known.nodes,
        Names::Profiles => known.profiles,
        Names::Images => known.images,
        Names::Projects => known.projects,
    };
    names.into_iter().filter(|name| plain(name)).collect()
}

/// Whether a word means itself in every shell.
fn plain(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('-')
        && word.len() <= 255
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte))
}

async fn known(setting: Setting<'_>, target: &Target) -> Option<Known> {
    let paths = setting.paths().ok()?;
    let session = Session::open(target, &paths, setting.environment).ok()?;
    let cache = cache_file(setting, &session, target);
    if let Some(known) = cache.as_deref().and_then(read_cache) {
        return Some(known);
    }
    let known = tokio::time::timeout(PATIENCE, ask(&session))
        .await
        .ok()?
        .ok()?;
    if let Some(cache) = cache
        && let Ok(text) = serde_json::to_string(&known)
    {
        // Without a cache it is only slower.
        let _ = private_file::replace(&cache, &text);
    }
    Some(known)
}

fn read_cache(path: &std::path::Path) -> Option<Known> {
    let age = std::fs::metadata(path)
        .ok()?
        .modified()
        .ok()?
        .elapsed()
        .ok()?;
    if age > FRESH {
        return None;
    }
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// One file per gateway, account and project, so that nobody is offered another's names.
fn cache_file(setting: Setting<'_>, session: &Session, target: &Target) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    session.endpoint().as_str().hash(&mut hasher);
    target.project.hash(&mut hasher);
    session.token_hash(&mut hasher);
    let name = format!("names-{:016x}.json", hasher.finish());
    Some(
        setting
            .environment
            .cache_dir
            .as_ref()?
            .join("cnlab")
            .join(name),
    )
}

async fn ask(session: &Session) -> Result<Known> {
    let account = async {
        let request = cnlab_proto::billing::v1::WhoAmIRequest {};
        session
            .call(session::Effect::Read, request, async |request| {
                session.account().who_am_i(request).await
            })
            .await
    };
    // A gateway from before there were runs, or this view of nodes, has names all the same.
    let (servers, runs, nodes, profiles, images, identity) = tokio::try_join!(
        server::list::all(session),
        async { Ok(run::list::all(session).await.unwrap_or_default()) },
        async { Ok(node::list::all(session).await.unwrap_or_default()) },
        profiles::all(session),
        images::all(session),
        account
    )?;
    Ok(Known {
        servers: output::name::servers(&servers),
        runs: output::name::runs(&runs),
        nodes: output::name::nodes(&nodes),
        profiles: profiles
            .profiles
            .into_iter()
            .map(|profile| profile.name)
            .collect(),
        images: images.images.into_iter().map(|image| image.name).collect(),
        projects: identity.message.projects,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Program;

    fn place(line: &[&str]) -> (Place, String, Typed) {
        let mut command = cli::command(Program::Cnlab);
        command.build();
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let (current, before) = words.split_last().unwrap();
        walk(&command, before, current)
    }

    fn offered(line: &[&str]) -> Vec<String> {
        match place(line).0 {
            Place::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_and_options() {
        let top = offered(&[""]);
        assert!(
            top.contains(&"server".to_owned()) && !top.iter().any(|word| word.starts_with("__")),
            "{top:?}"
        );
        assert!(offered(&["server", ""]).contains(&"open".to_owned()));
        assert_eq!(offered(&["-o", ""]), ["table", "json", "yaml", "name"]);
        assert_eq!(
            offered(&["server", "list", "--output="]),
            ["table", "json", "yaml", "name"]
        );
        assert_eq!(place(&["server", "list", "--output=js"]).1, "--output=");
        assert_eq!(offered(&["completion", ""]), ["bash", "zsh", "fish"]);
        let options = offered(&["server", "create", "--name", "x", "--"]);
        assert!(
            options.contains(&"--profile".to_owned()) && !options.contains(&"--name".to_owned()),
            "{options:?}"
        );
        // The value of an option is no command.
        assert!(offered(&["--project", "server", ""]).contains(&"login".to_owned()));
    }

    #[test]
    fn names_and_files() {
        for (line, kind) in [
            (&["server", "open", ""][..], Names::Servers),
            (&["server", "logs", "-fn20", "f"], Names::Servers),
            (&["server", "create", "--profile", ""], Names::Profiles),
            (&["server", "create", "--image=py"], Names::Images),
            (&["--project", ""], Names::Projects),
            (&["server", "open", "--", ""], Names::Servers),
            (&["run", "show", ""], Names::Runs),
            (&["node", "drain", "--wait", ""], Names::Nodes),
            (&["run", "submit", "--profile="], Names::Profiles),
        ] {
            assert!(
                matches!(place(line).0, Place::Names(found) if found == kind),
                "{line:?}"
            );
        }
        assert!(matches!(place(&["--config", ""]).0, Place::Files));
        assert!(matches!(
            place(&["server", "open", "one", ""]).0,
            Place::Nothing
        ));
        assert!(matches!(
            place(&["server", "create", "--name", ""]).0,
            Place::Nothing
        ));
        let typed = place(&[
            "--endpoint",
            "http://a:1",
            "server",
            "open",
            "--config=c",
            "",
        ])
        .2;
        assert_eq!(typed.target.endpoint.as_deref(), Some("http://a:1"));
        assert_eq!(typed.config, Some("c".into()));
    }

    #[test]
    fn only_words_that_need_no_quoting() {
        for good in ["first-experiment", "pytorch:2.4-cuda12.4", "a/b/one"] {
            assert!(plain(good));
        }
        for bad in [
            "",
            "-rf",
            "a b",
            "$(reboot)",
            "a\u{1b}",
            "`x`",
            "é",
            "a\nb",
            "a;b",
        ] {
            assert!(!plain(bad), "{bad}");
        }
    }
}
