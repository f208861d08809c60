//! The grants of runs expire: a node that says nothing for the time of a lease has ended
//! them by then, and they begin anew elsewhere.

use cnlab_model::{Timestamp, id::WorkloadId};

use crate::{
    app::App,
    error::SchedulerError,
    store::{grant, roster},
};

impl App {
    /// Takes the runs away from every node that was not heard of since `before`.
    pub(crate) async fn expire_runs(&self, before: Timestamp) -> Result<(), SchedulerError> {
        for node in roster::silent(self.db.read(), before).await? {
            for grant in grant::held(self.db.read(), Some(node.id)).await? {
                if let WorkloadId::Run(run) = grant.workload {
                    self.run_expired(run, &grant, &node, before).await?;
                }
            }
        }
        Ok(())
    }
}
