//! Checks names and sizes before anything is sent, with the services' own code and text.

use std::time::Duration;

use cnlab_model::{
    ByteSize, ProjectName, RunName, ServerName, Timestamp,
    id::{NodeId, RunId, ServerId},
};

use crate::error::{Exit, Failure, Result};

/// The reasons that the scheduler gives for the same faults.
const NAME_INVALID: &str = "SERVER_NAME_INVALID";
const RUN_NAME_INVALID: &str = "RUN_NAME_INVALID";
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

/// A name for a new run.
///
/// # Errors
/// When it is no run name.
pub fn new_run(text: &str) -> Result<RunName> {
    text.parse().map_err(|error| {
        invalid(RUN_NAME_INVALID, "name", error).try_this("choose a name such as first-run")
    })
}

/// What means an existing run: an id, a name, or `owner/slug/name`. A plain name gets the
/// project that was chosen, if one was.
///
/// # Errors
/// When it is none of these.
pub fn run(text: &str, project: Option<&str>) -> Result<String> {
    if text.parse::<RunId>().is_ok() {
        return Ok(text.to_owned());
    }
    if let Some((owner_slug, name)) = text.rsplit_once('/') {
        let wrong = |_| {
            invalid(
                RUN_NAME_INVALID,
                "run",
                "a run is written NAME, <owner>/<slug>/NAME or run_…",
            )
            .try_this("`cnlab run list -o name` prints them")
        };
        owner_slug.parse::<ProjectName>().map_err(wrong)?;
        name.parse::<RunName>().map_err(wrong)?;
        return Ok(text.to_owned());
    }
    let name: RunName = text
        .parse()
        .map_err(|error| invalid(RUN_NAME_INVALID, "run", error))?;
    Ok(project.map_or_else(|| name.to_string(), |project| format!("{project}/{name}")))
}

/// What means an existing node: an id or a name.
///
/// # Errors
/// When it is neither.
pub fn node(text: &str) -> Result<String> {
    // The names of nodes are made as those of servers are.
    if text.parse::<NodeId>().is_ok() || text.parse::<ServerName>().is_ok() {
        return Ok(text.to_owned());
    }
    Err(invalid(
        "NODE_NAME_INVALID",
        "node",
        "a node is written NAME or node_…",
    )
    .try_this("`cnlab node list -o name` prints them"))
}

/// A deadline as it is written on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// So long from now.
    In(Duration),
    /// At this time.
    At(Timestamp),
}

/// A deadline: a span of time from now, or a date with a time and a zone.
///
/// # Errors
/// When it is neither.
pub fn deadline(text: &str) -> Result<Deadline, String> {
    if let Ok(span) = span(text) {
        return Ok(Deadline::In(span));
    }
    let at: prost_types::Timestamp = text.parse().map_err(|_| {
        "a deadline is a time from now, for example 90m, or a date such as 2030-05-01T18:00:00Z"
            .to_owned()
    })?;
    Ok(Deadline::At(Timestamp::from_seconds_and_nanos(
        at.seconds, at.nanos,
    )))
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
    fn references_to_runs() {
        let id = "run_01HXAYZ0000000000000000000";
        assert_eq!(run(id, Some("a/b")).unwrap(), id);
        assert_eq!(run("one", Some("a/b")).unwrap(), "a/b/one");
        for wrong in ["", "a/b", "UP", "srv_01HXAYZ0000000000000000000"] {
            let failure = run(wrong, None).unwrap_err();
            assert_eq!(failure.facts().reason, RUN_NAME_INVALID);
        }
        assert!(new_run("-x").is_err());
    }

    #[test]
    fn references_to_nodes() {
        for right in ["gpu-box", "node_01HXAYZ0000000000000000000"] {
            assert_eq!(node(right).unwrap(), right);
        }
        for wrong in ["", "a/b", "UP", "srv_01HXAYZ0000000000000000000", "x\u{1b}"] {
            let failure = node(wrong).unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage);
            assert_eq!(failure.facts().reason, "NODE_NAME_INVALID");
        }
    }

    #[test]
    fn deadlines_are_spans_or_dates() {
        assert_eq!(
            deadline("90m"),
            Ok(Deadline::In(Duration::from_secs(5_400)))
        );
        let at = Deadline::At(Timestamp(1_900_000_000_000_000));
        assert_eq!(deadline("2030-03-17T17:46:40Z"), Ok(at));
        assert_eq!(deadline("2030-03-17T19:46:40+02:00"), Ok(at));
        for wrong in ["", "tomorrow", "2030-13-01T00:00:00Z", "-5m"] {
            assert!(deadline(wrong).is_err(), "{wrong}");
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
