//! Who somebody is.

use billing_core::policy::{Action, Subject, permits};
use cnlab_model::id::UserId;

use super::App;
use crate::{
    error::Error,
    store::account::{self, Account},
};

impl App {
    /// The account of this user, for somebody who may see it.
    pub(crate) async fn account(&self, subject: &Subject, user: UserId) -> Result<Account, Error> {
        if !permits(subject, Action::SeeAccount(user)) {
            return Err(Error::Denied("you may see your own account only"));
        }
        account::find(self.db.read(), user)
            .await?
            .ok_or(Error::UserUnknown(user))
    }
}
