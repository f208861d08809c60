//! What the gateway itself refuses, and how that is told: as problem+json to HTTP callers,
//! as a status to gRPC callers.

use std::borrow::Cow;

use cnlab_model::{ErrorKind, Fault};
use http::{HeaderValue, Method, StatusCode, header};
use serde::Serialize;
use thiserror::Error;
use tonic_types::StatusExt as _;

use cnlab_service::status::{self, PublicError};

use crate::{body::Body, http_types::Response};

/// A refusal that comes from the gateway and not from a service behind it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GatewayError {
    /// No route of the API has this path.
    #[error("there is no {0} in this API")]
    NoSuchPath(String),
    /// The path exists, but not with this method.
    #[error("this path does not take the method {method}, only {}", list(.allowed))]
    MethodNotAllowed {
        /// What was used.
        method: Method,
        /// What the path takes.
        allowed: Vec<Method>,
    },
    /// A body of another type than JSON.
    #[error("the body must be application/json")]
    NotJson,
    /// A body over the limit.
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge {
        /// Bytes that are accepted.
        limit: u64,
    },
    /// The client stopped sending its body.
    #[error("the body did not arrive in time")]
    BodyStalled,
    /// The body broke off.
    #[error("the body is incomplete")]
    BodyBroken,
    /// Header fields over the limit.
    #[error("the header fields are larger than {limit} bytes")]
    HeadTooLarge {
        /// Bytes that are accepted.
        limit: usize,
    },
    /// A message that two parsers could read in two ways, or a path that tries to leave its
    /// place.
    #[error("the request is malformed: {0}")]
    Malformed(&'static str),
    /// The host name belongs to nobody here.
    #[error("no server has this host name")]
    UnknownHost,
    /// A field of the body, the query or the path makes no sense.
    #[error("{field}: {problem}")]
    Field {
        /// Its path, such as `grant.slices[0].blocks[0]`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The body is no JSON at all.
    #[error("the body is not valid JSON: {0}")]
    Syntax(String),
    /// Nobody said who is calling.
    #[error("this needs a token")]
    TokenMissing,
    /// The token is unknown, expired or revoked.
    #[error("the token is not valid")]
    TokenInvalid,
    /// Too much is going on.
    #[error("the gateway is at its limit of concurrent requests")]
    Overloaded,
    /// The answer did not begin in time.
    #[error("the service behind the gateway did not answer in time")]
    DeadlineExceeded,
    /// A service behind the gateway is away.
    #[error("{0} is not reachable")]
    UpstreamUnavailable(&'static str),
    /// The gRPC method is not public.
    #[error("the method {0} is not part of the public API")]
    NotPublic(String),
    /// The server has no running notebook.
    #[error("the notebook does not answer")]
    NotebookUnavailable,
    /// A page of another site tried to act here.
    #[error("the request comes from another site")]
    ForeignOrigin,
    /// The browser has no session for this server.
    #[error("this server needs a sign-in")]
    SessionMissing,
    /// The sign-in code is unknown, used or expired.
    #[error("the sign-in link was used already or has expired")]
    CodeInvalid,
    /// A defect of ours.
    #[error("internal error")]
    Internal,
}

fn list(methods: &[Method]) -> String {
    methods
        .iter()
        .map(Method::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Fault for GatewayError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchPath(_) | Self::UnknownHost => ErrorKind::NotFound,
            Self::MethodNotAllowed { .. }
            | Self::NotJson
            | Self::BodyTooLarge { .. }
            | Self::BodyStalled
            | Self::BodyBroken
            | Self::HeadTooLarge { .. }
            | Self::Malformed(_)
            | Self::Field { .. }
            | Self::Syntax(_) => ErrorKind::Invalid,
            Self::TokenMissing | Self::TokenInvalid | Self::SessionMissing | Self::CodeInvalid => {
                ErrorKind::Unauthenticated
            }
            Self::Overloaded | Self::UpstreamUnavailable(_) | Self::NotebookUnavailable => {
                ErrorKind::Unavailable
            }
            Self::DeadlineExceeded => ErrorKind::Deadline,
            Self::ForeignOrigin => ErrorKind::Forbidden,
            Self::NotPublic(_) | Self::Internal => ErrorKind::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::NoSuchPath(_) => "NO_SUCH_PATH",
            Self::MethodNotAllowed { .. } => "METHOD_NOT_ALLOWED",
            Self::NotJson => "NOT_JSON",
            Self::BodyTooLarge { .. } => "BODY_TOO_LARGE",
            Self::BodyStalled => "BODY_STALLED",
            Self::BodyBroken => "BODY_BROKEN",
            Self::HeadTooLarge { .. } => "HEAD_TOO_LARGE",
            Self::Malformed(_) => "MALFORMED_REQUEST",
            Self::UnknownHost => "UNKNOWN_HOST",
            Self::Field { .. } => "INVALID_FIELD",
            Self::Syntax(_) => "INVALID_JSON",
            Self::TokenMissing => "TOKEN_MISSING",
            Self::TokenInvalid => "TOKEN_INVALID",
            Self::Overloaded => "OVERLOADED",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::UpstreamUnavailable(_) => "UPSTREAM_UNAVAILABLE",
            Self::NotPublic(_) => "NOT_PUBLIC",
            Self::NotebookUnavailable => "NOTEBOOK_UNAVAILABLE",
            Self::ForeignOrigin => "FOREIGN_ORIGIN",
            Self::SessionMissing => "SESSION_MISSING",
            Self::CodeInvalid => "CODE_INVALID",
            Self::Internal => "INTERNAL",
        }
    }

    fn try_this(&self) -> Option<String> {
        let text = match self {
            Self::NoSuchPath(_) => "see /v1/openapi.json for what there is",
            Self::NotJson => "send the header content-type: application/json",
            Self::TokenMissing => {
                "send the header authorization: Bearer <token>, or run cnlab login"
            }
            Self::TokenInvalid => "run cnlab login with a token that is still valid",
            Self::Overloaded
            | Self::UpstreamUnavailable(_)
            | Self::DeadlineExceeded
            | Self::NotebookUnavailable => "try again in a moment",
            Self::SessionMissing | Self::CodeInvalid => "make a new link with cnlab server open",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn field(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            _ => None,
        }
    }
}

impl GatewayError {
    /// The HTTP status code. HTTP has finer ones than the kinds for what happens before a
    /// service is called.
    #[must_use]
    pub fn http_status(&self) -> StatusCode {
        match self {
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyStalled => StatusCode::REQUEST_TIMEOUT,
            Self::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownHost => StatusCode::MISDIRECTED_REQUEST,
            Self::NotPublic(_) => StatusCode::NOT_IMPLEMENTED,
            _ => status::http_status(status::code(self.kind())),
        }
    }

    /// This refusal for a gRPC caller.
    #[must_use]
    pub fn to_status(&self) -> tonic::Status {
        match self {
            Self::NotPublic(_) => tonic::Status::unimplemented(self.to_string()),
            Self::BodyTooLarge { .. } => {
                status::plain(ErrorKind::Exhausted, self.reason(), &self.to_string(), None)
            }
            _ => status::to_status(self),
        }
    }

    /// This refusal as a gRPC response.
    #[must_use]
    pub fn into_grpc(self) -> Response {
        self.to_status()
            .into_http::<tonic::body::Body>()
            .map(Body::grpc)
    }

    /// This refusal as problem+json.
    #[must_use]
    pub fn into_problem(self) -> Response {
        let code = self.http_status();
        let detail = self.to_string();
        let mut response = Problem {
            kind: urn(self.reason()),
            title: title(self.kind()),
            status: code.as_u16(),
            detail: Cow::Owned(detail),
            reason: Cow::Borrowed(self.reason()),
            cause: None,
            field: self.field().map(str::to_owned),
            try_this: self.try_this(),
            trace_id: None,
        }
        .into_response(code);
        let headers = response.headers_mut();
        match &self {
            Self::MethodNotAllowed { allowed, .. } => {
                if let Ok(allow) = HeaderValue::try_from(list(allowed)) {
                    headers.insert(header::ALLOW, allow);
                }
            }
            Self::TokenMissing | Self::TokenInvalid => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // What follows on such a connection cannot be trusted to begin a message.
            Self::Malformed(_) | Self::HeadTooLarge { .. } | Self::BodyTooLarge { .. } => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ if self.kind() == ErrorKind::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// A service's answer as problem+json.
#[must_use]
pub fn problem_of_status(error: &tonic::Status) -> Response {
    let code = status::http_status(error.code());
    let mut response = Problem::of_status(error).into_response(code);
    match code {
        StatusCode::UNAUTHORIZED => {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    response
}

/// An error as RFC 9457 writes it, with our members.
#[derive(Debug, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: Cow<'static, str>,
    reason: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    try_this: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

impl Problem {
    /// What a service said, in this form.
    #[must_use]
    pub fn of_status(error: &tonic::Status) -> Self {
        let public = PublicError::from_status(error);
        let ours = error
            .get_details_error_info()
            .is_some_and(|info| info.domain == status::DOMAIN);
        let of_transport = matches!(
            public.kind,
            ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::Deadline
        );
        // A library's words about a broken connection are no public text.
        let detail = if of_transport && !ours {
            Cow::Borrowed(title(public.kind))
        } else {
            Cow::Owned(public.message)
        };
        Self {
            kind: urn(&public.reason),
            title: title(public.kind),
            status: status::http_status(error.code()).as_u16(),
            detail,
            reason: Cow::Owned(public.reason),
            cause: public.cause,
            field: public.field,
            try_this: public.try_this,
            trace_id: public.trace_id,
        }
    }

    /// As one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn into_response(mut self, code: StatusCode) -> Response {
        if self.trace_id.is_none() {
            self.trace_id = crate::layers::trace::current_id();
        }
        let mut response = Response::new(Body::full(self.to_json()));
        *response.status_mut() = code;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

fn urn(reason: &str) -> String {
    format!("urn:cnlab:error:{reason}")
}

const fn title(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not found",
        ErrorKind::AlreadyExists => "already exists",
        ErrorKind::Invalid => "invalid request",
        ErrorKind::Unauthenticated => "not signed in",
        ErrorKind::Forbidden => "not allowed",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Precondition => "not possible in this state",
        ErrorKind::Exhausted => "limit reached",
        ErrorKind::Unavailable => "not available for now",
        ErrorKind::Deadline => "took too long",
        ErrorKind::Internal => "internal error",
    }
}
