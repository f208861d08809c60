//! One error form for every command: what failed, why, what to do, and an id to quote.
//!
//! **Invariants**: every failure has a stable reason and an exit code from the one table in
//! [`Exit`]; the text is lowercase without a full stop.

use std::{fmt, process::ExitCode};

use cnlab_model::{ErrorKind, Fault};
use cnlab_proto::model::v1 as pb;
use cnlab_service::status::PublicError;
use tonic::Status;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Anything that has no code of its own.
    Error,
    /// The command line or a value on it is wrong.
    Usage,
    /// The object does not exist.
    NotFound,
    /// Nobody is signed in, or the token is not valid.
    Auth,
    /// Forbidden, by rights, policy or quota.
    Denied,
    /// No capacity, or the wait in the queue ended without a slice.
    Capacity,
    /// A budget is used up.
    Budget,
    /// The object exists already, has changed, or is in a state that does not allow this.
    Conflict,
    /// `--wait-timeout` passed.
    WaitTimeout,
    /// Ctrl-C.
    Interrupted,
    /// What the command of a run returned, or 128 and the number of the signal that ended it.
    Command(u8),
}

impl Exit {
    /// Every exit code with its meaning, in rising order, for the reference.
    pub const TABLE: &[(Self, &str)] = &[
        (Self::Error, "an error that has no code of its own"),
        (Self::Usage, "the command line or a value on it is wrong"),
        (Self::NotFound, "the object does not exist"),
        (Self::Auth, "nobody is signed in, or the token is not valid"),
        (Self::Denied, "denied by rights, policy or quota"),
        (
            Self::Capacity,
            "no capacity, or the queue ended without a slice",
        ),
        (Self::Budget, "a budget is used up"),
        (
            Self::Conflict,
            "it exists already, has changed, or its state does not allow this",
        ),
        (
            Self::WaitTimeout,
            "`--wait-timeout` passed; the work goes on",
        ),
        (Self::Interrupted, "Ctrl-C"),
    ];

    /// The number that the process exits with.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Error => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Auth => 4,
            Self::Denied => 5,
            Self::Capacity => 6,
            Self::Budget => 7,
            Self::Conflict => 8,
            Self::WaitTimeout => 124,
            Self::Interrupted => 130,
            Self::Command(code) => code,
        }
    }

    /// The code for an error of this kind and reason.
    fn of(kind: ErrorKind, reason: &str) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Invalid => Self::Usage,
            ErrorKind::Unauthenticated => Self::Auth,
            ErrorKind::Forbidden => Self::by_reason(reason).unwrap_or(Self::Denied),
            ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::Precondition => {
                Self::by_reason(reason).unwrap_or(Self::Conflict)
            }
            ErrorKind::Exhausted => Self::by_reason(reason).unwrap_or(Self::Capacity),
            ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Internal => Self::Error,
        }
    }

    /// Reasons that decide the code more closely than their kind does.
    fn by_reason(reason: &str) -> Option<Self> {
        if reason.contains("BUDGET") || reason.contains("CREDIT") {
            return Some(Self::Budget);
        }
        if reason.starts_with("QUOTA") {
            return Some(Self::Denied);
        }
        // Asking again a moment later helps: this is no lack of capacity.
        if reason.contains("RATE_LIMIT") || reason.contains("OVERLOAD") {
            return Some(Self::Error);
        }
        if reason.contains("CAPACITY")
            || reason.contains("QUEUE_TIMEOUT")
            || reason == "PROFILE_UNAVAILABLE"
            || reason == "DEADLINE_UNREACHABLE"
        {
            return Some(Self::Capacity);
        }
        None
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command failed. Boxed, since it travels up through many `Result`s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Box<Facts>);

/// What a failure says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Stable upper-case name.
    pub reason: String,
    /// What happened.
    pub message: String,
    /// Why, in the words of whoever found it.
    pub cause: Option<String>,
    /// What the user can do.
    pub try_this: Option<String>,
    /// The request field at fault.
    pub field: Option<String>,
    /// Id to quote.
    pub trace_id: Option<String>,
    /// What the process exits with.
    pub exit: Exit,
    /// Nothing is printed: the reader of the output went away, or a stream was ended on purpose.
    pub silent: bool,
}

/// The result of everything that a command does.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with a reason, a text and an exit code.
    pub fn new(exit: Exit, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Box::new(Facts {
            reason: reason.into(),
            message: message.into(),
            cause: None,
            try_this: None,
            field: None,
            trace_id: None,
            exit,
            silent: false,
        }))
    }

    /// A wrong value on the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "USAGE", message)
    }

    /// Ends the command with this code and without a word.
    #[must_use]
    pub fn silent(exit: Exit) -> Self {
        let mut failure = Self::new(exit, "SILENT", "ended");
        failure.0.silent = true;
        failure
    }

    /// The local machine refused something, such as writing a file.
    pub fn local(message: impl Into<String>, error: &std::io::Error) -> Self {
        Self::new(Exit::Error, "LOCAL_IO", message).caused_by(error)
    }

    /// Says why.
    #[must_use]
    pub fn caused_by(mut self, cause: impl fmt::Display) -> Self {
        self.0.cause = Some(cause.to_string()).filter(|cause| !cause.is_empty());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn try_this(mut self, advice: impl Into<String>) -> Self {
        self.0.try_this = Some(advice.into()).filter(|advice| !advice.is_empty());
        self
    }

    /// Says what to do, unless something is said already.
    #[must_use]
    pub fn or_try(mut self, advice: impl FnOnce() -> String) -> Self {
        self.0.try_this.get_or_insert_with(advice);
        self
    }

    /// Names the field at fault.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// Adds the trace id, unless there is one already.
    #[must_use]
    pub fn traced(mut self, trace_id: Option<String>) -> Self {
        self.0.trace_id = self.0.trace_id.take().or(trace_id);
        self
    }

    /// What it says.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.0
    }

    /// What the process exits with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.0.exit
    }

    /// An error of our own types, found before anything was sent: same text as the server's.
    #[must_use]
    pub fn fault(fault: &dyn Fault) -> Self {
        let mut failure = Self::new(
            Exit::of(fault.kind(), fault.reason()),
            fault.reason(),
            fault.to_string(),
        );
        failure.0.try_this = fault.try_this();
        failure.0.field = fault.field().map(str::to_owned);
        failure
    }

    /// What a gateway answered.
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        let public = PublicError::from_status(status);
        let message = if public.message.is_empty() {
            public.kind.to_string()
        } else {
            public.message
        };
        let mut failure = Self::new(
            Exit::of(public.kind, &public.reason),
            public.reason,
            message,
        );
        failure.0.cause = public.cause.filter(|cause| !cause.is_empty());
        failure.0.try_this = public.try_this.filter(|advice| !advice.is_empty());
        failure.0.field = public.field.filter(|field| !field.is_empty());
        failure.0.trace_id = public.trace_id;
        failure
    }

    /// What a server says of its own failure.
    #[must_use]
    pub fn of_server(name: &str, failure: Option<&pb::Failure>) -> Self {
        let exit = failure.and_then(|failure| Exit::by_reason(&failure.reason));
        let otherwise = ("SERVER_FAILED", format!("server {name} failed"));
        Self::of_workload(otherwise, failure, exit.unwrap_or(Exit::Error))
    }

    /// What a run says of its own failure; the exit code is that of its command.
    #[must_use]
    pub fn of_run(name: &str, failure: Option<&pb::Failure>, exit: Exit) -> Self {
        Self::of_workload(("RUN_FAILED", format!("run {name} failed")), failure, exit)
    }

    fn of_workload(
        (reason, message): (&str, String),
        failure: Option<&pb::Failure>,
        exit: Exit,
    ) -> Self {
        let Some(failure) = failure else {
            return Self::new(exit, reason, message);
        };
        let reason = if failure.reason.is_empty() {
            reason
        } else {
            &failure.reason
        };
        let message = if failure.message.is_empty() {
            message
        } else {
            failure.message.clone()
        };
        let mut made = Self::new(exit, reason, message).try_this(failure.try_this.clone());
        made.0.cause = Some(failure.cause.clone()).filter(|cause| !cause.is_empty());
        made
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.0.reason, self.0.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_reasons_decide_the_exit_code() {
        for (kind, reason, code) in [
            (ErrorKind::Invalid, "IMAGE_UNKNOWN", 2),
            (ErrorKind::NotFound, "SERVER_NOT_FOUND", 3),
            (ErrorKind::Unauthenticated, "TOKEN_UNKNOWN", 4),
            (ErrorKind::Forbidden, "NOT_OWNER", 5),
            (ErrorKind::Exhausted, "QUOTA_EXCEEDED", 5),
            (ErrorKind::Exhausted, "NO_CAPACITY", 6),
            (ErrorKind::Exhausted, "EXHAUSTED", 6),
            (ErrorKind::Exhausted, "BUDGET_EXCEEDED", 7),
            (ErrorKind::Precondition, "BUDGET_EXCEEDED", 7),
            (ErrorKind::Precondition, "PROFILE_UNAVAILABLE", 6),
            (ErrorKind::Exhausted, "RATE_LIMITED", 1),
            (ErrorKind::AlreadyExists, "SERVER_EXISTS", 8),
            (ErrorKind::Precondition, "SERVER_STOPPED", 8),
            (ErrorKind::Conflict, "CONFLICT", 8),
            (ErrorKind::Unavailable, "UNAVAILABLE", 1),
            (ErrorKind::Deadline, "DEADLINE", 1),
            (ErrorKind::Internal, "INTERNAL", 1),
        ] {
            assert_eq!(Exit::of(kind, reason).code(), code, "{kind} {reason}");
        }
    }

    #[test]
    fn the_table_names_every_code_once_in_order() {
        let codes: Vec<u8> = Exit::TABLE.iter().map(|(exit, _)| exit.code()).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 124, 130]);
    }

    #[test]
    fn a_failed_server_speaks_for_itself() {
        let said = pb::Failure {
            reason: "ENVIRONMENT_BUILD_FAILED".to_owned(),
            message: "the environment could not be built".to_owned(),
            cause: "no space left on device".to_owned(),
            try_this: "free some space".to_owned(),
        };
        let failure = Failure::of_server("a", Some(&said));
        assert_eq!(
            failure.to_string(),
            "error[ENVIRONMENT_BUILD_FAILED]: the environment could not be built"
        );
        assert_eq!(
            failure.facts().cause.as_deref(),
            Some("no space left on device")
        );
        assert_eq!(failure.exit(), Exit::Error);
        assert_eq!(
            Failure::of_server("a", None).facts().reason,
            "SERVER_FAILED"
        );
    }
}
