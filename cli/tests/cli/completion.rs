//! The completion scripts in the shells that they are for.

use std::{fs, path::PathBuf};

use cnlab_testkit::find_program;

use crate::harness::{Ran, World};

fn script(world: &World, shell: &str, file: &str) -> PathBuf {
    let path = world.home().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, world.cnlab(&["completion", shell]).ok().out).unwrap();
    path
}

fn world() -> World {
    let world = World::new();
    world.put("first-experiment");
    world.put("second");
    world
}

/// What bash would offer for a command line that ends at the cursor.
fn bash(world: &World, line: &str) -> Vec<String> {
    let bash = find_program("bash", "bash").unwrap();
    let script = script(world, "bash", "completion.bash");
    // Words as readline parts them: at blanks, and at ':' and '='.
    let program = r#"
        source "$1"
        complete -p cnlab >/dev/null || exit 9
        COMP_LINE=$2 COMP_POINT=${#2}
        spaced=${2//:/ : }; spaced=${spaced//=/ = }
        read -ra COMP_WORDS <<< "$spaced"
        [[ $2 == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        _cnlab
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = world.bounded(bash);
    command
        .args(["--norc", "--noprofile", "-c", program, "bash"])
        .arg(script)
        .arg(line);
    let ran = Ran::of(command.output().unwrap()).ok();
    assert_eq!(ran.err, "");
    ran.out
        .lines()
        .map(str::to_owned)
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn bash_completes() {
    let world = world();
    assert_eq!(bash(&world, "cnlab server op"), ["open"]);
    assert_eq!(
        bash(&world, "cnlab server open "),
        ["first-experiment", "second"]
    );
    assert_eq!(bash(&world, "cnlab server stop f"), ["first-experiment"]);
    assert_eq!(
        bash(&world, "cnlab server create --profile h"),
        ["h100-25pct", "h100-full"]
    );
    assert_eq!(
        bash(&world, "cnlab server create --image pytorch:2"),
        ["2.4-cuda12.4"]
    );
    assert_eq!(bash(&world, "cnlab node drain g"), ["gpu-box"]);
    assert_eq!(bash(&world, "cnlab -o j"), ["json"]);
    assert_eq!(bash(&world, "cnlab server list --output=y"), ["yaml"]);
    assert_eq!(bash(&world, "cnlab completion "), ["bash", "zsh", "fish"]);
    assert_eq!(
        bash(&world, "cnlab server create --pro"),
        ["--profile", "--project"]
    );
    assert_eq!(
        bash(&world, "cnlab --config completion"),
        ["completion.bash"]
    );
    assert!(bash(&world, "cnlab nonsense x").is_empty());
}

#[test]
fn fish_completes() {
    let world = world();
    let fish = find_program("fish", "fish").unwrap();
    let script = script(&world, "fish", ".config/fish/completions/cnlab.fish");
    let offered = |line: &str| -> Vec<String> {
        let mut command = world.bounded(&fish);
        command
            .args(["-c", "source $argv[1]; complete -C $argv[2]"])
            .arg(&script)
            .arg(line);
        let ran = Ran::of(command.output().unwrap()).ok();
        assert_eq!(ran.err, "");
        // A description follows after a tab.
        ran.out
            .lines()
            .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(offered("cnlab server op"), ["open"]);
    assert_eq!(
        offered("cnlab server open "),
        ["first-experiment", "second"]
    );
    assert_eq!(offered("cnlab server create --profile a"), ["a100-50pct"]);
    assert_eq!(
        offered("cnlab server create --image pytorch:2"),
        ["pytorch:2.4-cuda12.4"]
    );
    assert_eq!(offered("cnlab -o j"), ["json"]);
    assert_eq!(offered("cnlab server list --output=y"), ["--output=yaml"]);
}

#[test]
fn zsh_completes() {
    let world = world();
    let zsh = find_program("zsh", "zsh").unwrap();
    script(&world, "zsh", "functions/_cnlab");
    // An interactive zsh on a terminal of its own gets the line and a Tab, as from a keyboard.
    let program = r#"
        zmodload zsh/zpty
        zpty shell zsh -f -i
        typed() { zpty -w shell "$1" }
        typed 'PS1=; unsetopt zle_bracketed_paste; fpath=(~/functions $fpath); autoload -Uz compinit; compinit -u -d ~/dump'
        typed 'report() { print -r -- "LI""NE[$BUFFER]END"; BUFFER=; zle accept-line }; zle -N report; bindkey "^G" report'
        typed 'print set''up-done'
        until zpty -r shell line && [[ $line == *setup-done* ]]; do :; done
        zpty -n -w shell "$1"$'\t\a'
        while zpty -r shell line; do
            [[ $line == *LINE\[*\]END* ]] && { print -r -- "${${line#*LINE\[}%%\]END*}"; break }
        done
        zpty -d shell
    "#;
    let completed = |line: &str| -> String {
        let mut command = world.bounded(&zsh);
        command.args(["-f", "-c", program, "zsh", line]);
        let ran = Ran::of(command.output().unwrap()).ok();
        ran.out.trim_end().to_owned()
    };
    assert_eq!(completed("cnlab server op"), "cnlab server open");
    assert_eq!(
        completed("cnlab server open f"),
        "cnlab server open first-experiment"
    );
    assert_eq!(
        completed("cnlab server create --profile a"),
        "cnlab server create --profile a100-50pct"
    );
    assert_eq!(
        completed("cnlab server create --image py"),
        "cnlab server create --image pytorch:2.4-cuda12.4"
    );
    assert_eq!(completed("cnlab -o j"), "cnlab -o json");
}

/// The words after `cnlab`, the last of which is being typed.
fn candidates(world: &World, words: &[&str]) -> Vec<String> {
    let ran = world.cnlab(&[&["__complete", "--"], words].concat()).ok();
    assert_eq!(ran.err, "");
    ran.out
        .lines()
        .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn names_are_asked_for_again_after_two_seconds_at_most() {
    let world = world();
    let asked = || world.peer.calls("ListServers").len();
    let ask = || candidates(&world, &["server", "open", ""]);
    // Two in a row, until the machine is quick enough that the second comes within the time.
    let reused = (0..20).any(|_| {
        ask();
        let before = asked();
        ask() == ["first-experiment", "second"] && asked() == before
    });
    assert!(reused, "the cache is never used");
    world.put("third");
    let folder = world.home().join(".cache/cnlab");
    let caches: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(caches.len(), 1);
    let file = fs::File::options().write(true).open(&caches[0]).unwrap();
    let old =
        fs::metadata(&caches[0]).unwrap().modified().unwrap() - std::time::Duration::from_secs(3);
    file.set_modified(old).unwrap();
    assert_eq!(ask(), ["first-experiment", "second", "third"]);
}

#[test]
fn completion_is_silent_whatever_is_wrong() {
    let world = World::signed_out();
    assert!(candidates(&world, &["server", "open", ""]).is_empty());
    let world = World::new();
    let port = cnlab_testkit::free_port().unwrap();
    let endpoint = format!("http://127.0.0.1:{port}");
    assert!(candidates(&world, &["--endpoint", &endpoint, "server", "open", ""]).is_empty());
    assert!(candidates(&world, &["no", "such", "command"]).is_empty());
}

#[test]
fn hostile_names_are_not_offered() {
    let world = world();
    let id = world.put("third");
    world.peer.state().servers.get_mut(&id).unwrap().name = "$(reboot)\u{1b}[2J".to_owned();
    assert_eq!(
        candidates(&world, &["server", "open", ""]),
        ["first-experiment", "second"]
    );
}
