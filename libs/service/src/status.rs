//! The one table between error kinds, gRPC codes and HTTP status codes, and the details that
//! travel with an error.

use std::{collections::HashMap, time::Duration};

use cnlab_model::{ErrorKind, Fault};
use cnlab_proto::convert::FieldError;
use http::StatusCode;
use tonic::{Code, Status, metadata::MetadataMap};
use tonic_types::{ErrorDetails, StatusExt as _};

/// The domain of our error reasons.
pub const DOMAIN: &str = "cnlab";
/// Response metadata and header that carries the trace id.
pub const TRACE_ID_HEADER: &str = "cnlab-trace-id";
const RETRY_SOON: Duration = Duration::from_millis(200);

/// The gRPC code of a kind.
#[must_use]
pub const fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::Conflict => Code::Aborted,
        ErrorKind::Precondition => Code::FailedPrecondition,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Deadline => Code::DeadlineExceeded,
        ErrorKind::Internal => Code::Internal,
    }
}

/// The kind of a gRPC code, for codes of ours and of libraries.
#[must_use]
pub const fn kind(code: Code) -> ErrorKind {
    match code {
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::Invalid,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        Code::PermissionDenied => ErrorKind::Forbidden,
        Code::Aborted => ErrorKind::Conflict,
        Code::FailedPrecondition => ErrorKind::Precondition,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::Unavailable | Code::Cancelled => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::Deadline,
        Code::Ok | Code::Unknown | Code::Internal | Code::Unimplemented | Code::DataLoss => {
            ErrorKind::Internal
        }
    }
}

/// The HTTP status code of a gRPC code.
#[must_use]
pub const fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        _ => match kind(code) {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::AlreadyExists | ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ErrorKind::Precondition => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Deadline => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        },
    }
}

/// What the caller is told of an error. An internal one is logged here with its whole chain
/// and shows nothing but that it happened.
#[must_use]
pub fn to_status(error: &(dyn Fault + 'static)) -> Status {
    let mut metadata = HashMap::new();
    if let Some(try_this) = error.try_this() {
        metadata.insert("try".to_owned(), try_this);
    }
    if error.kind() == ErrorKind::Internal {
        let trace_id = crate::trace::trace_id().unwrap_or_default();
        tracing::error!(reason = error.reason(), error = %chain(error), trace_id, "internal error");
        let details = ErrorDetails::with_error_info("INTERNAL", DOMAIN, metadata);
        return Status::with_error_details(Code::Internal, "internal error", details);
    }
    let mut details = ErrorDetails::new();
    if let Some(field) = error.field() {
        metadata.insert("field".to_owned(), field.to_owned());
        details.add_bad_request_violation(field, error.to_string());
    }
    if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Unavailable) {
        details.set_retry_info(Some(RETRY_SOON));
    }
    details.set_error_info(error.reason(), DOMAIN, metadata);
    Status::with_error_details(code(error.kind()), error.to_string(), details)
}

/// A request whose field makes no sense.
#[must_use]
pub fn invalid_field(error: &FieldError) -> Status {
    let metadata = HashMap::from([("field".to_owned(), error.field.clone())]);
    let mut details = ErrorDetails::with_error_info("INVALID_FIELD", DOMAIN, metadata);
    details.add_bad_request_violation(&error.field, &error.problem);
    Status::with_error_details(Code::InvalidArgument, error.to_string(), details)
}

/// An error of the kit itself, with a stable reason.
#[must_use]
pub fn plain(kind: ErrorKind, reason: &str, message: &str, try_this: Option<&str>) -> Status {
    let metadata: HashMap<_, _> = try_this
        .map(|text| ("try".to_owned(), text.to_owned()))
        .into_iter()
        .collect();
    Status::with_error_details(
        code(kind),
        message,
        ErrorDetails::with_error_info(reason, DOMAIN, metadata),
    )
}

/// An error and its sources, outermost first.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        // Many errors of other crates end with the text of their own source.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = source.source();
    }
    text
}

/// An error as every surface shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicError {
    /// Its class.
    pub kind: ErrorKind,
    /// Stable reason.
    pub reason: String,
    /// What happened.
    pub message: String,
    /// The cause in its own words.
    pub cause: Option<String>,
    /// What to do about it.
    pub try_this: Option<String>,
    /// The request field at fault.
    pub field: Option<String>,
    /// Id to quote.
    pub trace_id: Option<String>,
}

impl PublicError {
    /// Reads an error off the wire; one without details of ours keeps its code as reason.
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        let info = status
            .get_details_error_info()
            .filter(|info| info.domain == DOMAIN);
        let detail = |key: &str| {
            info.as_ref()
                .and_then(|info| info.metadata.get(key).cloned())
        };
        Self {
            kind: kind(status.code()),
            cause: detail("cause"),
            try_this: detail("try"),
            field: detail("field"),
            trace_id: trace_id(status.metadata()),
            message: status.message().to_owned(),
            reason: info.map_or_else(|| code_reason(status.code()).to_owned(), |info| info.reason),
        }
    }
}

fn trace_id(metadata: &MetadataMap) -> Option<String> {
    metadata
        .get(TRACE_ID_HEADER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

pub(crate) const fn code_reason(code: Code) -> &'static str {
    match code {
        Code::Unimplemented => "UNIMPLEMENTED",
        _ => match kind(code) {
            ErrorKind::NotFound => "NOT_FOUND",
            ErrorKind::AlreadyExists => "ALREADY_EXISTS",
            ErrorKind::Invalid => "INVALID",
            ErrorKind::Unauthenticated => "UNAUTHENTICATED",
            ErrorKind::Forbidden => "FORBIDDEN",
            ErrorKind::Conflict => "CONFLICT",
            ErrorKind::Precondition => "PRECONDITION",
            ErrorKind::Exhausted => "EXHAUSTED",
            ErrorKind::Unavailable => "UNAVAILABLE",
            ErrorKind::Deadline => "DEADLINE",
            ErrorKind::Internal => "INTERNAL",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the slice is taken")]
    struct Taken(ErrorKind, #[source] std::io::Error);

    impl Fault for Taken {
        fn kind(&self) -> ErrorKind {
            self.0
        }

        fn reason(&self) -> &'static str {
            "SLICE_TAKEN"
        }

        fn try_this(&self) -> Option<String> {
            Some("wait".to_owned())
        }

        fn field(&self) -> Option<&str> {
            Some("slice")
        }
    }

    fn taken(kind: ErrorKind) -> Taken {
        Taken(kind, std::io::Error::other("the secret cause"))
    }

    const KINDS: [ErrorKind; 11] = [
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::Invalid,
        ErrorKind::Unauthenticated,
        ErrorKind::Forbidden,
        ErrorKind::Conflict,
        ErrorKind::Precondition,
        ErrorKind::Exhausted,
        ErrorKind::Unavailable,
        ErrorKind::Deadline,
        ErrorKind::Internal,
    ];

    #[test]
    fn kinds_and_codes_round_trip() {
        for each in KINDS {
            assert_eq!(kind(code(each)), each);
        }
    }

    #[test]
    fn details_travel() {
        let public = PublicError::from_status(&to_status(&taken(ErrorKind::Conflict)));
        assert_eq!(public.reason, "SLICE_TAKEN");
        assert_eq!(public.message, "the slice is taken");
        assert_eq!(public.try_this.as_deref(), Some("wait"));
        assert_eq!(public.field.as_deref(), Some("slice"));
    }

    #[test]
    fn an_internal_error_shows_nothing() {
        let status = to_status(&taken(ErrorKind::Internal));
        let all = format!("{status:?}");
        assert!(
            !all.contains("secret") && !all.contains("slice is taken"),
            "{all}"
        );
        assert_eq!(PublicError::from_status(&status).reason, "INTERNAL");
    }
}
