//! Messages to values and back, with the field at fault in every error.

use std::{fmt::Display, str::FromStr};

use billing_core::policy::Subject;
use cnlab_model::{
    ProjectName, Timestamp,
    id::{RunId, ServerId, TokenId, UsageId},
};
use cnlab_proto::{
    billing::v1 as pb,
    convert::{
        FieldError, decode_blocks, decode_timestamp, encode_duration, encode_timestamp, parse_field,
    },
};
use cnlab_service::Caller;

use crate::{
    app::Opening,
    error::Error,
    store::{
        account::Account,
        usage::{Place, Usage},
    },
};

/// Longest family name of a GPU.
const MAX_GPU_TYPE: usize = 64;
/// Most GPUs of one grant: no machine has more.
const MAX_SLICES: usize = 16;
const PAGE: u16 = 100;
const MAX_PAGE: u16 = 1000;

pub(crate) fn decode_id<T>(field: &str, text: &str) -> Result<T, Error>
where
    T: FromStr,
    T::Err: Display,
{
    Ok(parse_field(field, text)?)
}

pub(crate) fn decode_time(
    field: &str,
    at: Option<&prost_types::Timestamp>,
) -> Result<Timestamp, Error> {
    Ok(decode_timestamp(field, at)?)
}

/// The caller as the policy sees one.
pub(crate) fn decode_subject(caller: &Caller) -> Subject {
    Subject::User {
        user: caller.user_id,
        projects: caller.projects.clone(),
    }
}

pub(crate) fn encode_identity(
    account: Account,
    token: Option<TokenId>,
    expires_at: Option<Timestamp>,
) -> pb::Identity {
    pb::Identity {
        user_id: account.user_id.to_string(),
        user_name: account.user_name,
        team_id: account.team_id.to_string(),
        team_name: account.team_name,
        projects: account.projects.into_iter().map(String::from).collect(),
        token_id: token.map(|id| id.to_string()).unwrap_or_default(),
        expires_at: expires_at.map(encode_timestamp),
    }
}

pub(crate) fn decode_opening(request: pb::OpenUsageRequest) -> Result<Opening, Error> {
    let mut blocks = 0_u16;
    let mut gpu_type: Option<String> = None;
    if !(1..=MAX_SLICES).contains(&request.slices.len()) {
        return Err(FieldError::new("slices", format!("has 1 to {MAX_SLICES} elements")).into());
    }
    for (at, slice) in request.slices.into_iter().enumerate() {
        let wrong = |field: &str, problem: &str| {
            Err(FieldError::new(format!("slices[{at}].{field}"), problem).into())
        };
        let of_it = decode_blocks(&format!("slices[{at}].blocks"), &slice.blocks)?;
        if of_it.is_empty() {
            return wrong("blocks", "is empty");
        }
        if slice.gpu_type.is_empty() || slice.gpu_type.len() > MAX_GPU_TYPE {
            return wrong("gpu_type", "has 1 to 64 bytes");
        }
        let first = gpu_type.get_or_insert_with(|| slice.gpu_type.clone());
        if *first != slice.gpu_type {
            return wrong("gpu_type", "is not the type of the first slice");
        }
        blocks = blocks.saturating_add(of_it.count().into());
    }
    let workload = &request.workload_id;
    if workload.parse::<ServerId>().is_err() && workload.parse::<RunId>().is_err() {
        return Err(FieldError::new("workload_id", "is no id of a server or run").into());
    }
    Ok(Opening {
        grant_id: parse_field("grant_id", &request.grant_id)?,
        user_id: parse_field("user_id", &request.user_id)?,
        project: parse_field("project", &request.project)?,
        workload_id: request.workload_id,
        gpu_type: gpu_type.unwrap_or_default(),
        blocks,
        started_at: decode_timestamp("started_at", request.started_at.as_ref())?,
    })
}

/// An interval as it stands at this time.
pub(crate) fn encode_usage(usage: Usage, now: Timestamp) -> pb::UsageInterval {
    pb::UsageInterval {
        block_time: Some(encode_duration(usage.interval().block_time(now))),
        id: usage.id.to_string(),
        grant_id: usage.grant_id.to_string(),
        user_id: usage.user_id.to_string(),
        project: usage.project.into(),
        workload_id: usage.workload_id,
        gpu_type: usage.gpu_type,
        blocks: usage.blocks.into(),
        started_at: Some(encode_timestamp(usage.started_at)),
        ended_at: usage.ended_at.map(encode_timestamp),
    }
}

/// No project at all, or one that is written correctly.
pub(crate) fn decode_project(text: &str) -> Result<Option<ProjectName>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    decode_id("project", text).map(Some)
}

pub(crate) fn decode_page_size(size: u32) -> Result<u16, Error> {
    match u16::try_from(size) {
        Ok(0) => Ok(PAGE),
        Ok(size) if size <= MAX_PAGE => Ok(size),
        Ok(_) | Err(_) => Err(Error::PageSize),
    }
}

/// A place as `<microseconds>.<id>`; clients have no business in it.
pub(crate) fn encode_page_token(place: Place) -> String {
    format!("{}.{}", place.started_at.0, place.id)
}

pub(crate) fn decode_page_token(text: &str) -> Result<Option<Place>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let (time, id) = text.split_once('.').ok_or(Error::PageToken)?;
    let place = Place {
        started_at: Timestamp(time.parse().map_err(|_| Error::PageToken)?),
        id: id.parse::<UsageId>().map_err(|_| Error::PageToken)?,
    };
    Ok(Some(place))
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;

    use super::*;

    #[test]
    fn page_tokens_round_trip_and_others_are_refused() {
        let place = Place {
            started_at: Timestamp(-17),
            id: UsageId::from_ulid(Ulid(9)),
        };
        let text = encode_page_token(place);
        assert_eq!(decode_page_token(&text).unwrap(), Some(place));
        assert_eq!(decode_page_token("").unwrap(), None);
        for wrong in [
            "x",
            "1",
            "1.",
            ".",
            "1.use_",
            "a.use_00000000000000000000000001",
        ] {
            assert!(decode_page_token(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn page_sizes_have_a_default_and_a_most() {
        assert_eq!(decode_page_size(0).unwrap(), 100);
        assert_eq!(decode_page_size(1000).unwrap(), 1000);
        assert!(decode_page_size(1001).is_err());
        assert!(decode_page_size(u32::MAX).is_err());
    }
}
