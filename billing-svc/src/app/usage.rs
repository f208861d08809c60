//! The meter, and the list of what it recorded.

use billing_core::policy::{Action, Subject, permits};
use cnlab_model::{
    ProjectName, Timestamp,
    id::{GrantId, UsageId, UserId},
};

use super::App;
use crate::{
    error::Error,
    store::usage::{self, Place, Usage},
};

/// An interval that is to be opened.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    pub(crate) grant_id: GrantId,
    pub(crate) user_id: UserId,
    pub(crate) project: ProjectName,
    pub(crate) workload_id: String,
    pub(crate) gpu_type: String,
    pub(crate) blocks: u16,
    pub(crate) started_at: Timestamp,
}

/// A part of a list, and where the next one begins.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Usage>,
    pub(crate) next: Option<Place>,
}

impl App {
    /// Begins an interval. The first call for a grant decides; a repetition with another user,
    /// workload or slice is refused, one with another time is the same interval.
    pub(crate) async fn open_usage(&self, opening: Opening) -> Result<Usage, Error> {
        let usage = &Usage {
            // One interval per grant: the same number, so that nothing has to be invented.
            id: UsageId::from_ulid(opening.grant_id.ulid()),
            grant_id: opening.grant_id,
            user_id: opening.user_id,
            project: opening.project,
            workload_id: opening.workload_id,
            gpu_type: opening.gpu_type,
            blocks: opening.blocks,
            started_at: opening.started_at,
            ended_at: None,
        };
        self.db
            .write(|tx| async move {
                usage::insert(&tx, usage).await?;
                let found = usage::find(&tx, usage.grant_id)
                    .await?
                    .ok_or(Error::UsageUnknown(usage.grant_id))?;
                let same = Usage {
                    started_at: found.started_at,
                    ended_at: found.ended_at,
                    ..usage.clone()
                };
                if same == found {
                    Ok(found)
                } else {
                    Err(Error::UsageMismatch(usage.grant_id))
                }
            })
            .await
    }

    /// Ends an interval; one that ended already stays as it is.
    pub(crate) async fn close_usage(&self, grant: GrantId, at: Timestamp) -> Result<Usage, Error> {
        self.db
            .write(|tx| async move {
                let mut found = usage::find(&tx, grant)
                    .await?
                    .ok_or(Error::UsageUnknown(grant))?;
                let closed = found.interval().close(at).ended_at();
                if let (None, Some(ended_at)) = (found.ended_at, closed) {
                    usage::end(&tx, found.id, ended_at).await?;
                }
                found.ended_at = closed;
                Ok(found)
            })
            .await
    }

    /// A page of the user's own intervals, newest first; of one project if one is named.
    pub(crate) async fn list_usage(
        &self,
        subject: &Subject,
        user: UserId,
        project: Option<&ProjectName>,
        after: Option<Place>,
        size: u16,
    ) -> Result<Page, Error> {
        if !permits(subject, Action::SeeAccount(user)) {
            return Err(Error::Denied("you may see your own usage only"));
        }
        if let Some(project) = project
            && !permits(subject, Action::UseProject(project))
        {
            return Err(Error::ProjectUnknown(project.to_string()));
        }
        // One more than asked for tells whether there is a next page.
        let wanted = u64::from(size).saturating_add(1);
        let mut items = usage::page(self.db.read(), user, project, after, wanted).await?;
        let more = items.len() > usize::from(size);
        items.truncate(usize::from(size));
        let next = items.last().filter(|_| more).map(|last| Place {
            started_at: last.started_at,
            id: last.id,
        });
        Ok(Page { items, next })
    }
}
