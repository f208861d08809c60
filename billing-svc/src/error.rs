//! What can go wrong, with a stable reason and what to do about it.

use billing_core::token::TokenError;
use cnlab_db::DbError;
use cnlab_model::{
    ErrorKind, Fault,
    id::{GrantId, UserId},
};
use cnlab_proto::convert::FieldError;
use cnlab_service::status::to_status;
use sea_orm::DbErr;
use thiserror::Error;
use tonic::Status;

/// Errors of billing-svc. None of them holds a credential.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("{0}")]
    TokenMalformed(TokenError),
    #[error("nobody has this token")]
    TokenUnknown,
    #[error("the token has expired")]
    TokenExpired,
    #[error("the token was revoked")]
    TokenRevoked,
    #[error("this link is not valid for this server")]
    CodeUnknown,
    #[error("the link has expired: it is valid for 60 seconds")]
    CodeExpired,
    #[error("the link was used already: it is valid once")]
    CodeUsed,
    #[error("this browser is not signed in to this server")]
    SessionUnknown,
    #[error("the sign-in of this browser has expired")]
    SessionExpired,
    #[error("there is no user {0}")]
    UserUnknown(UserId),
    #[error("there is no project {0:?} that you may use")]
    ProjectUnknown(String),
    #[error("no usage was opened for {0}")]
    UsageUnknown(GrantId),
    #[error("usage was opened for {0} with other details")]
    UsageMismatch(GrantId),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("the page token is not one of this list")]
    PageToken,
    #[error("a page has at most 1000 entries")]
    PageSize,
    #[error("{0}")]
    Denied(&'static str),
    #[error("the stored {0} makes no sense")]
    Row(&'static str),
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<DbErr> for Error {
    fn from(error: DbErr) -> Self {
        Self::Db(error.into())
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        to_status(&error)
    }
}

impl Fault for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TokenMalformed(_)
            | Self::TokenUnknown
            | Self::TokenExpired
            | Self::TokenRevoked
            | Self::CodeUnknown
            | Self::CodeExpired
            | Self::CodeUsed
            | Self::SessionUnknown
            | Self::SessionExpired => ErrorKind::Unauthenticated,
            Self::UserUnknown(_) | Self::ProjectUnknown(_) | Self::UsageUnknown(_) => {
                ErrorKind::NotFound
            }
            Self::UsageMismatch(_) => ErrorKind::AlreadyExists,
            Self::Field(_) | Self::PageToken | Self::PageSize => ErrorKind::Invalid,
            Self::Denied(_) => ErrorKind::Forbidden,
            Self::Row(_) => ErrorKind::Internal,
            Self::Db(error) => error.kind(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::TokenMalformed(_) => "TOKEN_MALFORMED",
            Self::TokenUnknown => "TOKEN_UNKNOWN",
            Self::TokenExpired => "TOKEN_EXPIRED",
            Self::TokenRevoked => "TOKEN_REVOKED",
            Self::CodeUnknown => "CODE_UNKNOWN",
            Self::CodeExpired => "CODE_EXPIRED",
            Self::CodeUsed => "CODE_USED",
            Self::SessionUnknown => "SESSION_UNKNOWN",
            Self::SessionExpired => "SESSION_EXPIRED",
            Self::UserUnknown(_) => "USER_NOT_FOUND",
            Self::ProjectUnknown(_) => "PROJECT_NOT_FOUND",
            Self::UsageUnknown(_) => "USAGE_NOT_FOUND",
            Self::UsageMismatch(_) => "USAGE_MISMATCH",
            Self::Field(_) => "INVALID_FIELD",
            Self::PageToken => "PAGE_TOKEN_INVALID",
            Self::PageSize => "PAGE_SIZE_INVALID",
            Self::Denied(_) => "ACCESS_DENIED",
            Self::Row(_) => "ROW_UNREADABLE",
            Self::Db(error) => error.reason(),
        }
    }

    fn try_this(&self) -> Option<String> {
        let text = match self {
            Self::TokenMalformed(_)
            | Self::TokenUnknown
            | Self::TokenExpired
            | Self::TokenRevoked => "sign in again: cnlab login --token",
            Self::CodeUnknown
            | Self::CodeExpired
            | Self::CodeUsed
            | Self::SessionUnknown
            | Self::SessionExpired => "ask for a new link: cnlab server open",
            Self::PageToken => "begin with the first page",
            Self::PageSize => "ask for at most 1000",
            Self::Db(error) => return error.try_this(),
            Self::UserUnknown(_)
            | Self::ProjectUnknown(_)
            | Self::UsageUnknown(_)
            | Self::UsageMismatch(_)
            | Self::Field(_)
            | Self::Denied(_)
            | Self::Row(_) => return None,
        };
        Some(text.to_owned())
    }

    fn field(&self) -> Option<&str> {
        match self {
            Self::Field(error) => Some(&error.field),
            Self::PageToken => Some("page_token"),
            Self::PageSize => Some("page_size"),
            _ => None,
        }
    }
}
