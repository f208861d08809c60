//! `docs/benchmarks/<name>.md`: the figures beside the commit, the machine and the command.
//!
//! **Invariant**: what people wrote between the two marks is never changed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    machine::{self, Machine},
    rows::{HEADS, Row},
};

const BEGIN: &str = "<!-- by hand: begin -->";
const END: &str = "<!-- by hand: end -->";
const NOTHING_YET: &str = "\nNothing is written here yet.\n";

/// What a page says beside its figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// Name of the bench and of its page.
    pub(crate) name: &'static str,
    /// The page's heading.
    pub(crate) title: &'static str,
    /// How each figure is defined.
    pub(crate) definitions: &'static str,
}

/// Writes the page and says where it is.
pub(crate) fn write(root: &Path, words: Words, rows: &[Row]) -> Result<PathBuf> {
    let folder = root.join("docs/benchmarks");
    fs::create_dir_all(&folder)?;
    let path = folder.join(words.name).with_extension("md");
    let by_hand = match fs::read_to_string(&path) {
        Ok(before) => by_hand(&before)
            .with_context(|| format!("{} has lost its marks", path.display()))?
            .to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => NOTHING_YET.to_owned(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let text = compose(
        words,
        &machine::commit(root),
        &machine::day()?,
        &Machine::this()?,
        rows,
        &by_hand,
    );
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

fn compose(
    words: Words,
    commit: &str,
    day: &str,
    machine: &Machine,
    rows: &[Row],
    by_hand: &str,
) -> String {
    let line = |cells: [&str; 6]| format!("| {} |\n", cells.join(" | "));
    let mut table = line(HEADS) + &line(["---", "---:", "---", "---", "---", "---"]);
    for row in rows {
        let cells = row.cells();
        table += &line(std::array::from_fn(|at| cells[at].as_str()));
    }
    format!(
        "# {title}\n\n\
         Written by `cargo xtask bench {name}`; change it by running that again. Only the last\n\
         section is kept by hand.\n\n\
         - commit: {commit}\n\
         - date: {day}\n\
         - processor: {cpu}, {cores} cores\n\
         - memory: {memory:.1} GiB\n\
         - kernel: {kernel}\n\n\
         ## Figures\n\n{table}\n{definitions}\n\
         ## What falls short and why\n\n{BEGIN}{by_hand}{END}\n",
        title = words.title,
        name = words.name,
        definitions = words.definitions,
        cpu = machine.cpu,
        cores = machine.cores,
        memory = machine.memory_gib,
        kernel = machine.kernel,
    )
}

fn by_hand(page: &str) -> Result<&str> {
    let (_, after) = page.split_once(BEGIN).context("the first mark is gone")?;
    let (kept, rest) = after.split_once(END).context("the second mark is gone")?;
    ensure!(!rest.contains(BEGIN), "there are more marks than two");
    Ok(kept)
}
