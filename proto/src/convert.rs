//! Conversions between the shared messages and `cnlab-model`, with the field at fault in
//! every error.

use std::time::Duration;

use cnlab_model::{Blocks, Timestamp};

use crate::model::v1 as pb;

/// A message that does not mean anything, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, such as `grant.slice.blocks`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl FieldError {
    /// An error at this field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for FieldError {}

/// Parses a field that holds text of a strict form, such as an id.
///
/// # Errors
/// When the text is not of that form.
pub fn parse_field<T>(field: &str, text: &str) -> Result<T, FieldError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse()
        .map_err(|error: T::Err| FieldError::new(field, error.to_string()))
}

/// A point in time for the wire.
#[must_use]
pub fn encode_timestamp(at: Timestamp) -> prost_types::Timestamp {
    let (seconds, nanos) = at.seconds_and_nanos();
    prost_types::Timestamp { seconds, nanos }
}

/// A point in time from the wire.
///
/// # Errors
/// When it is absent or its nanoseconds are out of range.
pub fn decode_timestamp(
    field: &str,
    at: Option<&prost_types::Timestamp>,
) -> Result<Timestamp, FieldError> {
    let at = at.ok_or_else(|| FieldError::new(field, "is required"))?;
    if !(0..1_000_000_000).contains(&at.nanos) {
        return Err(FieldError::new(field, "nanos out of range"));
    }
    Ok(Timestamp::from_seconds_and_nanos(at.seconds, at.nanos))
}

/// A span of time for the wire.
#[must_use]
pub fn encode_duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

/// A span of time from the wire; negative ones are zero.
#[must_use]
pub fn decode_duration(span: &prost_types::Duration) -> Duration {
    Duration::new(
        u64::try_from(span.seconds).unwrap_or(0),
        u32::try_from(span.nanos).unwrap_or(0),
    )
}

/// Blocks for the wire.
#[must_use]
pub fn encode_blocks(blocks: Blocks) -> Vec<pb::BlockRange> {
    blocks
        .ranges()
        .map(|(first, count)| pb::BlockRange {
            first: first.into(),
            count: count.into(),
        })
        .collect()
}

/// Blocks from the wire.
///
/// # Errors
/// When a run leaves the GPU or overlaps another.
pub fn decode_blocks(field: &str, ranges: &[pb::BlockRange]) -> Result<Blocks, FieldError> {
    let mut all = Blocks::EMPTY;
    for (index, range) in ranges.iter().enumerate() {
        let run = u8::try_from(range.first)
            .ok()
            .zip(u8::try_from(range.count).ok())
            .and_then(|(first, count)| Blocks::range(first, count))
            .ok_or_else(|| {
                FieldError::new(
                    format!("{field}[{index}]"),
                    "is not inside a GPU's 100 blocks",
                )
            })?;
        if run.overlaps(all) {
            return Err(FieldError::new(
                format!("{field}[{index}]"),
                "overlaps an earlier run",
            ));
        }
        all = all.union(run);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_round_trip_and_bad_runs_are_refused() {
        let blocks: Blocks = "0-24,50".parse().unwrap();
        assert_eq!(decode_blocks("b", &encode_blocks(blocks)), Ok(blocks));
        let outside = [pb::BlockRange {
            first: 99,
            count: 2,
        }];
        assert_eq!(decode_blocks("b", &outside).unwrap_err().field, "b[0]");
        let twice = [
            pb::BlockRange { first: 0, count: 2 },
            pb::BlockRange { first: 1, count: 1 },
        ];
        assert_eq!(decode_blocks("b", &twice).unwrap_err().field, "b[1]");
    }

    #[test]
    fn a_missing_time_names_its_field() {
        assert_eq!(
            decode_timestamp("started_at", None)
                .unwrap_err()
                .to_string(),
            "started_at: is required"
        );
    }
}
