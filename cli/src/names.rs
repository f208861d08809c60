//! Checks names and sizes before anything is sent, with the services' own code and text.

use std::time::Duration;

use cnlab_model::{ByteSize, ProjectName, ServerName, id::ServerId};

use crate::error::{Exit, Failure, Result};

/// The reasons that the scheduler gives for the same faults.
const NAME_INVALID: &str = "SERVER_NAME_INVALID";
const STORAGE_INVALID: &str = "STORAGE_INVALID";
const STORAGE_ADVICE: &str = "ask for a size such as --storage 50gb";

fn invalid(reason: &str, field: &str, problem: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, reason, problem.to_string()).field(field)
}

/// A name for a new server.
///
/// # Errors
/// When it is no server name.
pub fn new_server(text: &str) -> Result<ServerName> {
    text.parse().map_err(|error| {
        invalid(NAME_INVALID, "name", error).try_this("choose a name such as first-experiment")
    })
}

/// What means an existing server: an id, a name, or `owner/slug/name`. A plain name gets the
/// project that was chosen, if one was.
///
/// # Errors
/// When it is none of these.
pub fn server(text: &str, project: Option<&str>) -> Result<String> {
    if text.parse::<ServerId>().is_ok() {
        return Ok(text.to_owned());
    }
    if let Some((owner_slug, name)) = text.rsplit_once('/') {
        let wrong = |_| {
            invalid(
                NAME_INVALID,
                "server",
                "a server is written NAME, <owner>/<slug>/NAME or srv_…",
            )
            .try_this("`cnlab server list -o name` prints them")
        };
        owner_slug.parse::<ProjectName>().map_err(wrong)?;
        name.parse::<ServerName>().map_err(wrong)?;
        return Ok(text.to_owned());
    }
    let name: ServerName = text
        .parse()
        .map_err(|error| invalid(NAME_INVALID, "server", error))?;
    Ok(project.map_or_else(|| name.to_string(), |project| format!("{project}/{name}")))
}

/// The size of a volume.
///
/// # Errors
/// When it is no size, or nothing.
pub fn storage(text: &str) -> Result<ByteSize> {
    let size: ByteSize = text.parse().map_err(|error| {
        invalid(STORAGE_INVALID, "storage_bytes", error).try_this(STORAGE_ADVICE)
    })?;
    if size.0 == 0 {
        let problem = "a server needs storage of at least 1 byte";
        return Err(invalid(STORAGE_INVALID, "storage_bytes", problem).try_this(STORAGE_ADVICE));
    }
    Ok(size)
}

/// A span of time as it is written on the command line: `90`, `90s`, `10m`, `2h`.
///
/// # Errors
/// When it is none.
pub fn span(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        _ => return Err("a time is a number and s, m or h, for example 90s or 10m".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|seconds| *seconds <= 10 * 365 * 24 * 3_600)
        .map(Duration::from_secs)
        .ok_or_else(|| "a time is a number and s, m or h, for example 90s or 10m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_servers() {
        let id = "srv_01HXAYZ0000000000000000000";
        assert_eq!(server(id, Some("a/b")).unwrap(), id);
        assert_eq!(server("one", None).unwrap(), "one");
        assert_eq!(server("one", Some("a/b")).unwrap(), "a/b/one");
        assert_eq!(server("c/d/one", Some("a/b")).unwrap(), "c/d/one");
        for wrong in [
            "",
            "a/b",
            "../x",
            "a/b/c/d",
            "UP",
            "x\u{1b}",
            &"x".repeat(10_240),
        ] {
            let failure = server(wrong, None).unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage);
            assert!(failure.facts().message.len() < 200);
        }
    }

    #[test]
    fn storage_is_more_than_nothing() {
        assert_eq!(storage("50gb").unwrap().0, 50_000_000_000);
        for wrong in ["0", "0gb", "-1gb", "x", "5x"] {
            assert_eq!(
                storage(wrong).unwrap_err().facts().field.as_deref(),
                Some("storage_bytes")
            );
        }
    }

    #[test]
    fn spans_of_time() {
        assert_eq!(span("90"), Ok(Duration::from_secs(90)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(span("2h"), Ok(Duration::from_secs(7_200)));
        for wrong in [
            "",
            "m",
            "1d",
            "-1s",
            "99999999999999999999s",
            "999999999999h",
        ] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
