//! What the tests need from the machine: installed on a Debian machine as root, listed
//! elsewhere. Nothing is ever skipped for want of it.

use std::{fs, path::Path};

use anyhow::{Result, bail};

use crate::run::{answers, program, run, say};

/// One thing that the tests need, and the Debian package that brings it.
struct Need {
    what: &'static str,
    package: &'static str,
    found: Found,
}

/// How it is seen to be there.
enum Found {
    /// A program of the need's name is on the path.
    OnPath,
    /// It takes more than a look at the path.
    By(fn() -> bool),
}

impl Need {
    const fn program(what: &'static str, package: &'static str) -> Self {
        Self {
            what,
            package,
            found: Found::OnPath,
        }
    }

    const fn checked(what: &'static str, package: &'static str, by: fn() -> bool) -> Self {
        Self {
            what,
            package,
            found: Found::By(by),
        }
    }

    fn is_there(&self) -> bool {
        match self.found {
            Found::OnPath => on_path(self.what),
            Found::By(check) => check(),
        }
    }
}

const NEEDS: &[Need] = &[
    Need::program("redis-server", "redis-server"),
    Need::checked("PostgreSQL server", "postgresql", postgres),
    Need::program("chromium", "chromium"),
    Need::checked("python3 with venv", "python3-venv", || {
        answers("python3", &["-c", "import ensurepip, venv"])
    }),
    Need::program("nix", "nix-bin"),
    Need::program("zsh", "zsh"),
    Need::program("fish", "fish"),
    Need::program("git", "git"),
    Need::program("readelf", "binutils"),
    Need::program("setpriv", "util-linux"),
    Need::program("script", "bsdutils"),
    Need::program("kill", "procps"),
    Need::program("cc", "gcc"),
];

/// What `bench front` needs beside that.
const BENCH_NEEDS: &[Need] = &[Need::program("nginx", "nginx")];

/// Makes sure that the tests find what they need.
pub(crate) fn for_tests() -> Result<()> {
    provide(NEEDS)
}

/// Makes sure that the benches find what they need.
pub(crate) fn for_benches() -> Result<()> {
    provide(NEEDS)?;
    provide(BENCH_NEEDS)
}

fn provide(needs: &[Need]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    if !is_debian_root() {
        let list: Vec<String> = missing
            .iter()
            .map(|need| format!("  {} (Debian package {})", need.what, need.package))
            .collect();
        bail!(
            "the tests need, and this machine lacks:\n{}\ninstall them, then run this again",
            list.join("\n")
        );
    }
    say(&format!("installing {}", packages.join(" ")));
    let apt = |arguments: &[&str]| {
        let mut command = program("apt-get", arguments);
        // Servers that Debian would start by itself are started by the tests where needed.
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1");
        command
    };
    run(apt(&["update", "-qq"]))?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&packages);
    run(apt(&install))?;
    let still = missing_names(needs);
    if !still.is_empty() {
        bail!("after the installation still missing: {}", still.join(", "));
    }
    Ok(())
}

fn missing(needs: &[Need]) -> Vec<&Need> {
    needs.iter().filter(|need| !need.is_there()).collect()
}

fn missing_names(needs: &[Need]) -> Vec<&'static str> {
    missing(needs).iter().map(|need| need.what).collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program is looked for where the shell would look"
)]
fn on_path(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(name).is_file())
}

/// Debian keeps the server's programs apart, by version.
fn postgres() -> bool {
    fs::read_dir("/usr/lib/postgresql").is_ok_and(|mut versions| {
        versions
            .any(|version| version.is_ok_and(|version| version.path().join("bin/initdb").is_file()))
    })
}

fn is_debian_root() -> bool {
    Path::new("/etc/debian_version").is_file() && own_uid() == Some(0) && on_path("apt-get")
}

fn own_uid() -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").ok().map(|own| own.uid())
}
