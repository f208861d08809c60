//! What the dense numbers of the core are called before a caller.

use cnlab_service::Caller;
use scheduler_core::{
    cluster::{Kind, NodeIx},
    explain::Names,
    plan::JobId,
};

use super::Image;
use crate::{app::explain::Owner, cell::Who};

/// Names as far as a caller may know them: what belongs to a project that it may not use has
/// none.
pub(super) struct Before<'a> {
    pub(super) image: &'a Image,
    pub(super) caller: &'a Caller,
}

/// Whose somebody is before a caller.
pub(super) fn owner(who: &Who, caller: &Caller) -> Owner {
    if caller.may_use(who.project()) {
        Owner::Yours
    } else if who.team() == caller.team_id {
        Owner::YourTeam
    } else {
        Owner::Others
    }
}

impl Names for Before<'_> {
    fn kind(&self, kind: Kind) -> String {
        let family = self.image.kinds.family(kind);
        family.unwrap_or("another type").to_owned()
    }

    fn node(&self, node: NodeIx) -> String {
        let owner = self.image.owners.get(&node);
        let site = owner.and_then(|id| self.image.sites.get(id));
        site.map_or_else(|| "a node".to_owned(), |site| site.node.name.clone())
    }

    fn job(&self, job: JobId) -> String {
        let who = self.image.workload(job);
        let Some(who) = who.and_then(|id| self.image.who(id)) else {
            return "somebody".to_owned();
        };
        match owner(who, self.caller) {
            Owner::Yours if who.is_server() => format!("your server {}", who.name()),
            Owner::Yours => format!("your run {}", who.name()),
            Owner::YourTeam => "work of your team".to_owned(),
            Owner::Others => "work of another team".to_owned(),
        }
    }
}
