//! Who may do what.
//!
//! **Invariant**: deny by default. [`permits`] is the one place that says yes, and every kind
//! of subject and of action is named there.

use cnlab_model::{
    ProjectName,
    id::{ServerId, UserId},
};

/// Somebody whose credential was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A user, by a token: acts everywhere that the user may.
    User {
        /// Whose token it is.
        user: UserId,
        /// Projects that the user is a member of.
        projects: Vec<ProjectName>,
    },
    /// A browser session: acts on one server and nowhere else, whatever its user may.
    Session {
        /// The one server.
        server: ServerId,
    },
}

/// Something that somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// See an account: its name, team and projects.
    SeeAccount(UserId),
    /// Use a project: see its usage, run things in it.
    UseProject(&'a ProjectName),
    /// Enter a server with a browser.
    EnterServer(ServerId),
}

/// Whether the subject may do this.
#[must_use]
pub fn permits(subject: &Subject, action: Action<'_>) -> bool {
    match (subject, action) {
        (Subject::User { user, .. }, Action::SeeAccount(account)) => *user == account,
        (Subject::User { projects, .. }, Action::UseProject(project)) => projects.contains(project),
        (Subject::Session { server, .. }, Action::EnterServer(wanted)) => *server == wanted,
        // A browser enters with a session, which the user's token can ask for.
        (Subject::User { .. }, Action::EnterServer(_))
        | (Subject::Session { .. }, Action::SeeAccount(_) | Action::UseProject(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;
    use proptest::prelude::*;

    use super::*;

    fn project(number: u8) -> ProjectName {
        format!("local/p{number}").parse().unwrap()
    }

    proptest! {
        #[test]
        fn users_reach_their_own_and_nothing_else(
            user in 0..4_u128, account in 0..4_u128,
            mine in proptest::collection::vec(0..6_u8, 0..4), wanted in 0..6_u8,
            server in 0..4_u128,
        ) {
            let subject = Subject::User {
                user: UserId::from_ulid(Ulid(user)),
                projects: mine.iter().copied().map(project).collect(),
            };
            let account_id = UserId::from_ulid(Ulid(account));
            prop_assert_eq!(permits(&subject, Action::SeeAccount(account_id)), user == account);
            prop_assert_eq!(permits(&subject, Action::UseProject(&project(wanted))), mine.contains(&wanted));
            let server = ServerId::from_ulid(Ulid(server));
            prop_assert!(!permits(&subject, Action::EnterServer(server)));
        }

        #[test]
        fn a_session_reaches_its_server_and_nothing_else(own in 0..4_u128, wanted in 0..4_u128, user in 0..4_u128) {
            let subject = Subject::Session { server: ServerId::from_ulid(Ulid(own)) };
            let server = ServerId::from_ulid(Ulid(wanted));
            prop_assert_eq!(permits(&subject, Action::EnterServer(server)), own == wanted);
            prop_assert!(!permits(&subject, Action::SeeAccount(UserId::from_ulid(Ulid(user)))));
            prop_assert!(!permits(&subject, Action::UseProject(&project(1))));
        }
    }
}
