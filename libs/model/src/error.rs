//! One small set of error kinds, on which status codes, HTTP answers and exit codes depend.

use std::fmt;

/// What class of error this is, independent of who found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// The object does not exist, or the caller may not know that it does.
    NotFound,
    /// An object with this name or id is there already.
    AlreadyExists,
    /// The request itself is wrong; repeating it cannot help.
    Invalid,
    /// The caller did not say who it is, or not credibly.
    Unauthenticated,
    /// The caller may not do this.
    Forbidden,
    /// Somebody else changed the object meanwhile; read again, then retry.
    Conflict,
    /// The object is in a state that does not allow this.
    Precondition,
    /// A quota or the capacity is used up.
    Exhausted,
    /// A part is away for now; retry.
    Unavailable,
    /// The deadline passed.
    Deadline,
    /// A defect of ours: only a trace id is shown.
    Internal,
}

/// An error that a service tells its caller: a kind, a stable reason and a public text.
///
/// The text is lowercase without a full stop; the internal cause is the `Error::source` of
/// the implementing type and never reaches the caller.
pub trait Fault: std::error::Error {
    /// The class of this error.
    fn kind(&self) -> ErrorKind;
    /// Stable upper-case name such as `SLICE_TAKEN`; every one is explained in `docs/errors.md`.
    fn reason(&self) -> &'static str;
    /// What the caller can do about it, where there is something.
    fn try_this(&self) -> Option<String> {
        None
    }
    /// The request field at fault, for [`ErrorKind::Invalid`].
    fn field(&self) -> Option<&str> {
        None
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Invalid => "invalid",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
            Self::Precondition => "precondition",
            Self::Exhausted => "exhausted",
            Self::Unavailable => "unavailable",
            Self::Deadline => "deadline",
            Self::Internal => "internal",
        })
    }
}
