//! Who a request is made for.
//!
//! The gateway authenticates a person and says so in the metadata of its calls. Services
//! believe it because the internal key was checked before; whatever a client sends under
//! these names is removed at the gateway.

use cnlab_model::{
    ErrorKind, ProjectName,
    id::{TeamId, UserId},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::{Request, Status};

use crate::status;

/// Every name that begins with this is ours: the gateway removes it from what clients send.
pub const RESERVED_PREFIX: &str = "cnlab-";
const USER_ID: HeaderName = HeaderName::from_static("cnlab-caller-user-id");
const USER_NAME: HeaderName = HeaderName::from_static("cnlab-caller-user-name");
const TEAM_ID: HeaderName = HeaderName::from_static("cnlab-caller-team-id");
const PROJECTS: HeaderName = HeaderName::from_static("cnlab-caller-projects");
/// Metadata key, and HTTP header, of an idempotency key.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Longer keys are refused: they become primary keys.
const MAX_KEY: usize = 128;

/// The person for whom a request is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The account.
    pub user_id: UserId,
    /// Its name.
    pub user_name: String,
    /// The team that the account belongs to.
    pub team_id: TeamId,
    /// Projects that the account may use; the first is its default.
    pub projects: Vec<ProjectName>,
}

impl Caller {
    /// The caller of a request.
    ///
    /// # Errors
    /// UNAUTHENTICATED when the request was made on nobody's behalf.
    pub fn of<T>(request: &Request<T>) -> Result<&Self, Status> {
        request.extensions().get::<Self>().ok_or_else(|| {
            status::plain(
                ErrorKind::Unauthenticated,
                "CALLER_MISSING",
                "this call is made on behalf of a person, and none is named",
                None,
            )
        })
    }

    /// Reads the caller from headers, if they name one.
    ///
    /// # Errors
    /// When they name one that makes no sense, which only a defect of ours can send.
    pub(crate) fn read_from(headers: &HeaderMap) -> Result<Option<Self>, Status> {
        if !headers.contains_key(USER_ID) {
            return Ok(None);
        }
        let text = |name: &HeaderName| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let read = || {
            Some(Self {
                user_id: text(&USER_ID).parse().ok()?,
                user_name: text(&USER_NAME).to_owned(),
                team_id: text(&TEAM_ID).parse().ok()?,
                projects: text(&PROJECTS)
                    .split(',')
                    .filter(|project| !project.is_empty())
                    .map(str::parse)
                    .collect::<Result<_, _>>()
                    .ok()?,
            })
        };
        read()
            .map(Some)
            .ok_or_else(|| Status::internal("internal error"))
    }

    /// Writes the caller into headers, in place of any that is there.
    pub fn write_to(&self, headers: &mut HeaderMap) {
        let projects = self
            .projects
            .iter()
            .map(ProjectName::as_str)
            .collect::<Vec<_>>()
            .join(",");
        for (name, text) in [
            (USER_ID, self.user_id.to_string()),
            (USER_NAME, self.user_name.clone()),
            (TEAM_ID, self.team_id.to_string()),
            (PROJECTS, projects),
        ] {
            // Names are validated texts; one that is no header value is left out rather
            // than sent damaged.
            match HeaderValue::try_from(text) {
                Ok(value) => {
                    headers.insert(name, value);
                }
                Err(_) => {
                    headers.remove(name);
                }
            }
        }
    }

    /// Whether the account may use this project.
    #[must_use]
    pub fn may_use(&self, project: &ProjectName) -> bool {
        self.projects.contains(project)
    }
}

/// The idempotency key of a request, if it has one.
///
/// # Errors
/// INVALID_ARGUMENT when it is longer than 128 characters or not printable ASCII.
pub fn idempotency_key<T>(request: &Request<T>) -> Result<Option<String>, Status> {
    let Some(value) = request.metadata().get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= MAX_KEY => Ok(Some(key.to_owned())),
        _ => Err(status::plain(
            ErrorKind::Invalid,
            "IDEMPOTENCY_KEY_INVALID",
            "an idempotency key is 1 to 128 printable ASCII characters",
            None,
        )),
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;

    use super::*;

    #[test]
    fn a_caller_survives_the_wire() {
        let caller = Caller {
            user_id: UserId::from_ulid(Ulid(1)),
            user_name: "ada".to_owned(),
            team_id: TeamId::from_ulid(Ulid(2)),
            projects: vec![
                "local/default".parse().unwrap(),
                "local/two".parse().unwrap(),
            ],
        };
        let mut headers = HeaderMap::new();
        caller.write_to(&mut headers);
        assert!(
            headers
                .keys()
                .all(|name| name.as_str().starts_with(RESERVED_PREFIX))
        );
        assert_eq!(Caller::read_from(&headers).unwrap(), Some(caller));
        assert_eq!(Caller::read_from(&HeaderMap::new()).unwrap(), None);
    }
}
