//! Runs the transcripts in `tests/golden` and compares every word.
//!
//! A transcript is a list of shell commands after `$ `, each followed by what it printed:
//! stdout as it is, stderr after `2> `, then `[exit N]` unless it was 0. What stands above the
//! first command is for the reader; `# signed out` as the first line starts without a token.

use std::{fmt::Write as _, fs, path::PathBuf};

use crate::harness::{Ran, World};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn rewrite() -> bool {
    std::env::var_os("REWRITE").is_some_and(|value| value == "1")
}

/// What differs from run to run, made the same.
fn normal(world: &World, text: &str) -> String {
    let home = world.home().display().to_string();
    let text = text
        .replace(&format!(":{}", world.peer.port()), ":PORT")
        .replace(&home, "HOME")
        .replace(env!("CARGO_PKG_VERSION"), "VERSION");
    text.lines()
        .map(without_elapsed)
        .collect::<Vec<_>>()
        .join("\n")
}

/// `… (12s)` at the end of a line becomes `… (TIME)`.
fn without_elapsed(line: &str) -> String {
    if let Some((before, after)) = line.rsplit_once(" (")
        && let Some(time) = after.strip_suffix("s)")
        && !time.is_empty()
        && time.chars().all(|c| c.is_ascii_digit() || c == 'm')
    {
        return format!("{before} (TIME)");
    }
    line.to_owned()
}

fn show(world: &World, ran: &Ran) -> String {
    let mut shown = String::new();
    for line in normal(world, &ran.out).lines() {
        writeln!(shown, "{line}").unwrap();
    }
    for line in normal(world, &ran.err).lines() {
        writeln!(shown, "2> {line}").unwrap();
    }
    if ran.code != Some(0) {
        writeln!(shown, "[exit {}]", ran.code.unwrap_or(-1)).unwrap();
    }
    shown
}

fn run(transcript: &str) -> String {
    let world = if transcript.starts_with("# signed out\n") {
        World::signed_out()
    } else {
        World::new()
    };
    let mut shown = String::new();
    let mut lines = transcript.lines();
    let mut head = true;
    while let Some(line) = lines.next() {
        let Some(mut command) = line.strip_prefix("$ ").map(str::to_owned) else {
            // What stands above the first command is for the reader; the rest is old output.
            if head {
                writeln!(shown, "{line}").unwrap();
            }
            continue;
        };
        head = false;
        writeln!(shown, "{line}").unwrap();
        while command.ends_with('\\') {
            let more = lines.next().unwrap();
            writeln!(shown, "{more}").unwrap();
            command = format!("{command}\n{more}");
        }
        let ran = Ran::of(world.bounded("sh").args(["-c", &command]).output().unwrap());
        shown.push_str(&show(&world, &ran));
    }
    shown
}

#[test]
fn transcripts_are_as_recorded() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        seen += 1;
        let expected = fs::read_to_string(&path).unwrap();
        let found = run(&expected);
        if found == expected {
            continue;
        }
        if rewrite() {
            fs::write(&path, &found).unwrap();
        } else {
            wrong.push(format!(
                "--- {}\n{}",
                path.display(),
                difference(&expected, &found)
            ));
        }
    }
    assert!(seen > 0, "there are no transcripts");
    assert!(
        wrong.is_empty(),
        "REWRITE=1 accepts these:\n{}",
        wrong.join("\n")
    );
}

fn difference(expected: &str, found: &str) -> String {
    let mut text = String::new();
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    for at in 0..expected.len().max(found.len()) {
        let (want, have) = (expected.get(at), found.get(at));
        if want != have {
            writeln!(
                text,
                "line {}:\n  recorded {want:?}\n  now      {have:?}",
                at + 1
            )
            .unwrap();
        }
    }
    text
}

/// `docs/guide/cli.md` is what the program says of itself.
#[test]
fn the_reference_page_is_as_the_program_says() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/cli.md");
    let now = cnlab::reference::markdown();
    // Only the full build knows every command.
    if rewrite() && cfg!(feature = "up") {
        fs::create_dir_all(page.parent().unwrap()).unwrap();
        fs::write(&page, &now).unwrap();
    }
    let mut recorded = fs::read_to_string(&page).unwrap_or_default();
    if !cfg!(feature = "up") {
        // The slim build lacks one command; everything else is compared.
        recorded = without_section(&recorded, "### `cnlab up`");
    }
    assert!(
        recorded == now,
        "REWRITE=1 accepts this:\n{}",
        difference(&recorded, &now)
    );
}

/// The page without the section under this heading.
fn without_section(page: &str, heading: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("##") {
            inside = line == heading;
        }
        if !inside {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}
