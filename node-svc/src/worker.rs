//! The loops of a node: tell the scheduler, renew grants, look after logs and storage, count.

mod gauges;
mod housekeep;
mod register;
mod renew;
mod report;

use std::{sync::Arc, time::Duration};

use cnlab_proto::scheduler::v1::roster_service_client::RosterServiceClient;
use cnlab_service::{
    Next, StartError, Wake, Worker,
    channel::{self, UpstreamChannel},
};

use crate::app::Node;

/// Every call to the scheduler ends after this time.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long a node that ends goes on trying to tell how its workloads ended.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// The scheduler, as a node calls it.
pub(crate) type Roster = RosterServiceClient<UpstreamChannel>;

/// A client of the configured scheduler. It connects when it is first used.
pub(crate) fn roster(node: &Node) -> Result<Roster, StartError> {
    let common = &node.config.common;
    Ok(RosterServiceClient::new(channel::connect(
        &node.config.scheduler,
        &common.internal_key,
        DEADLINE,
    )?))
}

/// All loops.
pub(crate) fn all(node: &Arc<Node>, roster: &Roster) -> Vec<Worker> {
    let rhythm = Arc::new(renew::Rhythm::new());
    let register = Arc::new(register::Register::new(
        Arc::clone(node),
        roster.clone(),
        Arc::clone(&rhythm),
    ));
    let renew = Arc::new(renew::Renew::new(Arc::clone(node), roster.clone(), rhythm));
    let report = Arc::new(report::Report::new(Arc::clone(node), roster.clone()));
    let gauges = Arc::new(gauges::Gauges::new(Arc::clone(node)));
    let housekeep = Arc::new(housekeep::Housekeep::new(Arc::clone(node)));
    vec![
        Worker::new("register", node.register.clone(), move || {
            let worker = Arc::clone(&register);
            async move { worker.tick().await }
        }),
        Worker::new("renew", node.renew.clone(), move || {
            let worker = Arc::clone(&renew);
            async move { worker.tick().await }
        }),
        Worker::new("report", node.report.clone(), move || {
            let worker = Arc::clone(&report);
            async move { worker.tick().await }
        }),
        Worker::new("housekeep", Wake::new(), move || {
            let worker = Arc::clone(&housekeep);
            async move { worker.tick().await }
        }),
        Worker::new("expire", Wake::new(), {
            let node = Arc::clone(node);
            move || {
                let node = Arc::clone(&node);
                async move { Next::After(node.expire()) }
            }
        }),
        Worker::new("gauges", Wake::new(), move || {
            let worker = Arc::clone(&gauges);
            async move { worker.tick() }
        }),
    ]
}

/// Tells the scheduler everything that it has not heard of. Called at an orderly shutdown, when
/// the loops may end before they come to it; what is not told then waits for the next start.
pub(crate) async fn report_the_rest(node: &Arc<Node>, roster: &Roster) {
    let report = report::Report::new(Arc::clone(node), roster.clone());
    if tokio::time::timeout(LAST_REPORTS, report.all())
        .await
        .is_err()
    {
        tracing::warn!("the scheduler does not answer; it hears at the next start what ended");
    }
}
