//! What documents and dashboards name must exist, and what exists must be named.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::root;

/// Folders with code that runs at a user's, not in a test.
const CODE: &[&str] = &[
    "libs/model",
    "libs/service",
    "libs/db",
    "libs/lease",
    "gateway",
    "scheduler-svc",
    "node-svc",
    "migration-svc",
    "cloud-svc",
    "billing-svc",
    "cli",
];

/// The files below a folder whose names end so.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The code of a folder without its test modules.
fn code() -> String {
    let mut all = String::new();
    for folder in CODE {
        for path in files(&root().join(folder), "rs") {
            let shown = path.display().to_string();
            // Neither is part of any program that is shipped.
            if shown.contains("/tests/")
                || shown.contains("/benches/")
                || shown.contains("/scheduler-svc/sim/")
                || shown.ends_with("/tests.rs")
            {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
            all.push_str(before_tests);
            all.push('\n');
        }
    }
    all
}

/// Every literal of the code that is a stable reason.
fn reasons() -> BTreeSet<String> {
    let code = code();
    let mut before = "";
    let mut found = BTreeSet::new();
    for part in code.split('"') {
        if is_reason(before, part) {
            found.insert(part.to_owned());
        }
        before = part;
    }
    found
}

/// Whether a literal that stands behind this code is a reason.
///
/// One word alone may be anything, such as the head of a table; it is a reason where one is
/// due. Two words are one unless they are known to be something else.
fn is_reason(before: &str, literal: &str) -> bool {
    if literal.len() < 4
        || !literal.starts_with(|first: char| first.is_ascii_uppercase())
        || !literal
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    {
        return false;
    }
    let before = before.trim_end();
    // A name that others are compared with in part is not given by anybody.
    if before.ends_with("contains(") || before.ends_with("starts_with(") {
        return false;
    }
    if literal.contains('_') {
        return !NO_REASONS.contains(&literal)
            && !NO_REASON_PREFIXES
                .iter()
                .any(|prefix| literal.starts_with(prefix));
    }
    let argument = || {
        let (_, last) = before.trim_end_matches(',').rsplit_once(['(', ','])?;
        let last = last.trim();
        Some(last.starts_with("Exit::") || last.starts_with("ErrorKind::"))
    };
    REASON_IS_DUE.iter().any(|end| before.ends_with(end))
        || (before.ends_with(',') && argument() == Some(true))
}

/// What stands before a reason.
const REASON_IS_DUE: &[&str] = &[
    "=>",
    "reason:",
    "Failure::new(",
    "with_error_info(",
    "_INVALID: &str =",
];

/// Beginnings of names that are no reasons: variables of the environment, and values of the
/// enums in our protos.
const NO_REASON_PREFIXES: &[&str] = &[
    "CNLAB_",
    "AUTOLAB_",
    "XDG_",
    "PIP_",
    "SSL_",
    "CARGO_",
    "OTEL_",
    "JUPYTER_",
    "CUDA_",
    "NVIDIA_",
    "UV_",
    "SERVER_STATE_",
    "SERVER_PHASE_",
    "WORKLOAD_STATE_",
    "ISOLATION_CLASS_",
];

/// Names that are no reasons: variables of the environment, whole or their beginnings.
const NO_REASONS: &[&str] = &[
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LC_",
    "LD_LIBRARY_PATH",
    "NO_PROXY",
    "PYENV_",
    "REQUESTS_CA_BUNDLE",
    "VIRTUAL_ENV",
    "WAYLAND_DISPLAY",
];

#[test]
fn every_reason_is_explained() {
    let text = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let explained: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| heading.trim().trim_matches('`').to_owned())
        .collect();
    let missing: Vec<_> = reasons().difference(&explained).cloned().collect();
    assert_eq!(
        missing,
        Vec::<String>::new(),
        "reasons of the code that docs/errors.md does not explain"
    );
    let code = code();
    let stale: Vec<_> = explained
        .iter()
        .filter(|reason| !code.contains(&format!("\"{reason}\"")))
        .collect();
    assert_eq!(
        stale,
        Vec::<&String>::new(),
        "reasons that docs/errors.md explains and no code gives"
    );
}

#[test]
fn every_metric_of_a_dashboard_exists() {
    let code = code();
    let dashboards = files(&root().join("deploy/grafana"), "json");
    assert!(!dashboards.is_empty());
    for path in dashboards {
        let text = fs::read_to_string(&path).unwrap();
        for name in text
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| word.starts_with("cnlab_"))
        {
            let base = ["_bucket", "_count", "_sum", "_total"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            let known = [name, base]
                .iter()
                .any(|name| code.contains(&format!("\"{name}\"")));
            assert!(
                known,
                "{} uses {name}, which no code records",
                path.display()
            );
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = root();
    let mut documents = files(&root.join("docs"), "md");
    documents.push(root.join("README.md"));
    for path in documents {
        let text = fs::read_to_string(&path).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            if target.starts_with("http") || target.starts_with('#') || target.is_empty() {
                continue;
            }
            let file = target.split('#').next().unwrap_or_default();
            let leads_to = path.parent().unwrap().join(file);
            assert!(
                leads_to.exists(),
                "{} links to {target}, which does not exist",
                path.display()
            );
        }
    }
}
