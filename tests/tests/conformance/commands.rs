//! Every command of ours in the guides is one that the real binaries take.
//!
//! A command of `cnlab` runs to its first word with the gateway, of which there is none: so its
//! names, flags and values are all checked. Programs that would start services are only asked
//! for their help behind the same words, which refuses an unknown name or flag too.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
};

use cnlab_testkit::{ScratchDir, free_port};
use cnlab_tests::cli::binary;

use crate::{documents::files, root};

const SERVICES: &[&str] = &[
    "gateway",
    "scheduler-svc",
    "node-svc",
    "billing-svc",
    "migration-svc",
    "cloud-svc",
];

/// What stands before the arguments of `cnlab` where nothing is installed.
const THROUGH_CARGO: &[&str] = &["cargo", "run", "-p", "cnlab", "--"];

fn guides() -> Vec<PathBuf> {
    let mut guides = files(&root().join("docs/guide"), "md");
    guides.push(root().join("README.md"));
    guides
}

#[test]
fn commands_in_the_guides_are_understood() {
    let mut found = Vec::new();
    for guide in guides() {
        for line in shell_lines(&fs::read_to_string(&guide).unwrap()) {
            for words in commands(&line) {
                found.push((guide.display().to_string(), line.clone(), words));
            }
        }
    }
    // Each command looks for its gateway for a while: all at once.
    let checked: Vec<Result<(), String>> = thread::scope(|scope| {
        let running: Vec<_> = found
            .iter()
            .filter_map(|(guide, line, words)| {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let (program, arguments) = ours(&words)?;
                Some(scope.spawn(move || {
                    understood(program, &arguments)
                        .map_err(|said| format!("{guide}: {line}\n{said}"))
                }))
            })
            .collect();
        running
            .into_iter()
            .map(|each| each.join().unwrap())
            .collect()
    });
    let faults: Vec<String> = checked
        .iter()
        .filter_map(|each| each.clone().err())
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(
        checked.len() > 20,
        "only {} commands were found",
        checked.len()
    );
}

/// The program of ours and its arguments.
fn ours<'a>(words: &[&'a str]) -> Option<(&'a str, Vec<&'a str>)> {
    let (first, rest) = words.split_first()?;
    if *first == "cnlab" || SERVICES.contains(first) {
        return Some((first, rest.to_vec()));
    }
    let mut plain = words.to_vec();
    plain.retain(|word| *word != "-q");
    let rest = plain.strip_prefix(THROUGH_CARGO)?;
    Some(("cnlab", rest.to_vec()))
}

/// Whether the binary takes the arguments, else what it says.
fn understood(program: &str, arguments: &[&str]) -> Result<(), String> {
    let starts_services = program != "cnlab" || arguments.first() == Some(&"up");
    let home = ScratchDir::new("guide").unwrap();
    let mut command = Command::new(binary(program).unwrap());
    command
        .args(arguments)
        .env_clear()
        .env("HOME", home.path())
        .env("CNLAB_TOKEN", "cnl_usr_of_nobody")
        .env(
            "CNLAB_ENDPOINT",
            format!("http://127.0.0.1:{}", free_port().unwrap()),
        )
        .stdin(Stdio::null());
    if starts_services {
        command.arg("--help");
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    let taken = if starts_services {
        status.success()
    } else {
        status.success()
            || ["GATEWAY_UNREACHABLE", "TOKEN_MALFORMED"]
                .iter()
                .any(|reason| said.contains(&format!("[{reason}]")))
    };
    if taken { Ok(()) } else { Err(said) }
}

/// The command lines of a page's `sh` blocks; a line that ends in a backslash goes on.
fn shell_lines(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut in_shell = false;
    let mut begun = String::new();
    for line in page.lines() {
        if let Some(language) = line.trim().strip_prefix("```") {
            in_shell = matches!(language, "sh" | "bash");
        } else if in_shell {
            begun.push_str(line);
            if begun.ends_with('\\') {
                begun.pop();
            } else {
                lines.push(std::mem::take(&mut begun));
            }
        }
    }
    lines
}

/// The commands of a line as words: what stands between pipes and the like, and what stands in
/// `$(…)`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    // The word behind `<` or `>` is a file.
    let mut is_file = false;
    let mut rest = line.chars();
    let end_word = |word: &mut Option<String>, words: &mut Vec<String>, is_file: &mut bool| {
        if let Some(word) = word.take() {
            let assignment = words.is_empty()
                && word.split_once('=').is_some_and(|(name, _)| {
                    name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
                });
            if !std::mem::take(is_file) && !assignment {
                words.push(word);
            }
        }
    };
    while let Some(c) = rest.next() {
        match (c, quote) {
            ('$', None | Some('"')) if rest.as_str().starts_with('(') => {
                rest.next();
                let mut depth = 1;
                let inner: String = rest
                    .by_ref()
                    .take_while(|c| {
                        depth += match c {
                            '(' => 1,
                            ')' => -1,
                            _ => 0,
                        };
                        depth > 0
                    })
                    .collect();
                all.extend(commands(&inner));
                word.get_or_insert_default().push_str("text");
            }
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            (' ', None) => end_word(&mut word, &mut words, &mut is_file),
            ('|' | ';' | '&', None) => {
                end_word(&mut word, &mut words, &mut is_file);
                all.push(std::mem::take(&mut words));
            }
            ('<' | '>', None) => {
                end_word(&mut word, &mut words, &mut is_file);
                is_file = true;
            }
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    end_word(&mut word, &mut words, &mut is_file);
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

#[test]
fn lines_are_split_as_a_shell_does() {
    let split = |line: &str| commands(line);
    assert_eq!(
        split("A=1 cnlab login --token \"$(cat ~/a b)\" < file | wc # x"),
        [
            vec!["cat", "~/a", "b"],
            vec!["cnlab", "login", "--token", "text"],
            vec!["wc"]
        ]
    );
    assert_eq!(
        split("cnlab server list && cnlab whoami"),
        [vec!["cnlab", "server", "list"], vec!["cnlab", "whoami"]]
    );
    assert!(split("# only words").is_empty());
}

#[test]
fn wrong_commands_are_found() {
    for wrong in [
        &["cnlab", "server", "creat"][..],
        &["cnlab", "server", "list", "--al"],
        &["cnlab", "up", "--prot", "1"],
        &["cnlab", "server", "create", "--name", "a"],
        &["cargo", "run", "-q", "-p", "cnlab", "--", "sever"],
        &["gateway", "serve", "--confg", "x"],
    ] {
        let (program, arguments) = ours(wrong).unwrap();
        assert!(understood(program, &arguments).is_err(), "{wrong:?}");
    }
}
