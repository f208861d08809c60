//! Reads what pip says: how far it is, and why it failed.

use crate::failure::Failure;

/// Follows the lines of one `pip install`.
#[derive(Debug, Default)]
pub(super) struct PipReader {
    collected: usize,
    /// Packages in the order in which pip installs them; empty until it begins to.
    installing: Vec<String>,
}

impl PipReader {
    /// What a line says about progress, if it says something new.
    pub(super) fn line(&mut self, line: &str) -> Option<String> {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Collecting ") {
            self.collected += 1;
            let name = requirement_name(rest);
            return Some(format!("downloading {name} (package {})", self.collected));
        }
        if let Some(rest) = line.strip_prefix("Installing collected packages: ") {
            self.installing = rest
                .split(',')
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect();
            return self.installed(0);
        }
        if let Some(rest) = line.strip_prefix("Building wheel for ") {
            return Some(format!("building {}", requirement_name(rest)));
        }
        None
    }

    /// Whether pip has begun to install what it downloaded.
    pub(super) fn is_installing(&self) -> bool {
        !self.installing.is_empty()
    }

    /// Progress when this many of the packages are there.
    pub(super) fn installed(&self, there: usize) -> Option<String> {
        let total = self.installing.len();
        let name = self.installing.get(there.min(total.checked_sub(1)?))?;
        Some(format!(
            "installing {name} ({} of {total})",
            (there + 1).min(total)
        ))
    }
}

/// `jupyterlab` of `jupyterlab==4.6.6 (from x)`.
fn requirement_name(text: &str) -> &str {
    text.split([' ', '=', '<', '>', '!', '~', ';', '['])
        .next()
        .unwrap_or(text)
}

/// Marks of a network that does not answer, in the words of pip and what it is built on.
const NETWORK: &[&str] = &[
    "connection broken",
    "connection refused",
    "newconnectionerror",
    "failed to establish a new connection",
    "name or service not known",
    "temporary failure in name resolution",
    "connect timeout",
    "connecttimeouterror",
    "read timed out",
    "readtimeouterror",
    "max retries exceeded",
    "proxyerror",
    "cannot connect to proxy",
    "network is unreachable",
    "no route to host",
    "ssl: certificate_verify_failed",
    "sslerror",
];

/// Why a build failed, from the last lines of its output.
pub(super) fn explain(step: &str, status: &str, lines: &[String]) -> Failure {
    let has = |marks: &[&str]| {
        lines
            .iter()
            .map(|line| line.to_lowercase())
            .any(|line| marks.iter().any(|mark| line.contains(mark)))
    };
    let cause = lines
        .iter()
        .rev()
        .find(|line| line.to_lowercase().contains("error"))
        .or_else(|| lines.iter().rev().find(|line| !line.trim().is_empty()))
        .map_or_else(|| status.to_owned(), |line| without_secrets(line.trim()));
    if has(&["no space left on device", "errno 28", "disk quota exceeded"]) {
        return Failure::new("DISK_FULL", format!("the disk is full: {step}"))
            .caused_by(cause)
            .try_this("free space in the data folder (an environment takes about 300 MB), then start again");
    }
    if has(NETWORK) {
        return Failure::new(
            "PYTHON_INDEX_UNREACHABLE",
            format!("the Python package index does not answer: {step}"),
        )
        .caused_by(cause)
        .try_this("check the network, or name an index that can be reached: environment.index_url (--set environment.index_url=URL) or PIP_INDEX_URL");
    }
    if has(&["no matching distribution", "could not find a version"]) {
        return Failure::new(
            "PACKAGE_NOT_FOUND",
            format!("a package of the image is not on the Python index: {step}"),
        )
        .caused_by(cause)
        .try_this("choose another image, or an index that has the package: environment.index_url or PIP_INDEX_URL");
    }
    Failure::new(
        "ENVIRONMENT_BUILD_FAILED",
        format!("the environment could not be built: {step}"),
    )
    .caused_by(cause)
}

/// Cuts user and password out of addresses, which an index may carry.
fn without_secrets(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        text.push_str(before);
        let end = after.find(['/', ' ', '\'', '"']).unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        text.push_str(
            authority
                .rsplit_once('@')
                .map_or(authority, |(_, host)| host),
        );
        rest = tail;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_what_happens_now() {
        let mut reader = PipReader::default();
        assert_eq!(reader.line("Looking in indexes: x"), None);
        assert_eq!(
            reader.line("Collecting jupyterlab==4.6.6").as_deref(),
            Some("downloading jupyterlab (package 1)")
        );
        assert_eq!(
            reader
                .line("Collecting httpx<1,>=0.25.0 (from jupyterlab==4.6.6)")
                .as_deref(),
            Some("downloading httpx (package 2)")
        );
        assert!(!reader.is_installing());
        assert_eq!(
            reader
                .line("Installing collected packages: six, tornado, jupyterlab")
                .as_deref(),
            Some("installing six (1 of 3)")
        );
        assert_eq!(
            reader.installed(2).as_deref(),
            Some("installing jupyterlab (3 of 3)")
        );
        assert_eq!(
            reader.installed(9).as_deref(),
            Some("installing jupyterlab (3 of 3)")
        );
        assert_eq!(PipReader::default().installed(0), None);
    }

    #[test]
    fn failures_are_told_apart() {
        for (line, reason) in [
            (
                "WARNING: Retrying ... Failed to establish a new connection: [Errno 111] Connection refused",
                "PYTHON_INDEX_UNREACHABLE",
            ),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
                "DISK_FULL",
            ),
            (
                "ERROR: No matching distribution found for nope==1",
                "PACKAGE_NOT_FOUND",
            ),
            ("ERROR: something else", "ENVIRONMENT_BUILD_FAILED"),
        ] {
            let failure = explain("installing packages", "exit status: 1", &[line.to_owned()]);
            assert_eq!(failure.reason, reason);
            assert!(failure.cause.contains(line.split(": ").last().unwrap()));
        }
        assert_eq!(explain("x", "signal: 9", &[]).cause, "signal: 9");
    }

    #[test]
    fn passwords_of_an_index_are_not_repeated() {
        let line = "ERROR: https://me:secret@index.example/simple and http://x/y";
        assert_eq!(
            without_secrets(line),
            "ERROR: https://index.example/simple and http://x/y"
        );
    }
}
