//! What the service tests share: a scheduler that writes down what it hears, a node in this process
//! or in one of its own, and a client of its notebooks.

mod node;
mod notebook;
mod scheduler;

pub(crate) use node::{
    InProcess, KEY, Leftovers, Machine, OwnProcess, config, launch_request, shared_environments,
    supervisors, until,
};
pub(crate) use notebook::{Kernel, Notebook};
pub(crate) use scheduler::Scheduler;

use cnlab_proto::node::v1::node_service_client::NodeServiceClient;
use cnlab_service::{Secret, channel};

/// A client of a node's gRPC methods.
pub(crate) type NodeClient = NodeServiceClient<channel::UpstreamChannel>;

/// Generous, since a stop waits for processes.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(120);

pub(crate) fn client(endpoint: &str) -> NodeClient {
    let key = Secret::new(KEY.to_owned());
    NodeServiceClient::new(channel::connect(endpoint, &key, DEADLINE).unwrap())
}

/// Fresh ids, so that test processes at the same time never share a cgroup.
pub(crate) fn ulid() -> cnlab_model::id::Ulid {
    cnlab_service::Runtime::system().ids.ulid()
}
