//! Creating a server.

use cnlab_model::{
    ProjectName, ServerName,
    id::{ServerId, VolumeId},
};
use cnlab_service::{Caller, trace};
use scheduler_core::{profile::Profile, server::State};

use super::{App, catalog::shown, once::Attempt, run::OnLate, view::View};
use crate::{
    cell::{Placed, Who, Wish},
    error::SchedulerError,
    store::record::Server,
};

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct NewServer {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) profile: String,
    pub(crate) storage_bytes: u64,
    /// Empty: the caller's default project.
    pub(crate) project: String,
    pub(crate) install_heavy: bool,
    /// How many slices; one where nothing is said.
    pub(crate) gpus: Option<u32>,
}

impl App {
    /// Creates a server and starts it, or lets it wait for a slice.
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        ask: NewServer,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        let server = match self.new_server(caller, &ask) {
            Ok(server) => server,
            // Catalogues and the caller's projects change; what was answered once holds.
            Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
        };
        let traceparent = server.traceparent.clone();
        let wish = Wish::New {
            who: Who::Server(Box::new(server)),
            profile: ask.profile,
            on_late: OnLate::Accept,
        };
        self.want_server(wish, attempt, traceparent).await
    }

    /// Has a wish about a server fulfilled.
    pub(super) async fn want_server(
        &self,
        wish: Wish,
        attempt: &Attempt,
        traceparent: Option<String>,
    ) -> Result<View, SchedulerError> {
        match self.cell.want(wish, attempt, traceparent).await? {
            Placed::Server(view) => Ok(*view),
            Placed::Run(_) => Err(SchedulerError::ChangedMeanwhile),
        }
    }

    fn new_server(&self, caller: &Caller, ask: &NewServer) -> Result<Server, SchedulerError> {
        let name: ServerName = ask.name.parse().map_err(SchedulerError::NameInvalid)?;
        let project = project_of(caller, &ask.project)?;
        let image = self.catalogue.image(&ask.image)?;
        if ask.storage_bytes == 0 {
            return Err(SchedulerError::StorageZero);
        }
        let now = self.now();
        Ok(Server {
            id: ServerId::from_ulid(self.runtime.ids.ulid()),
            name,
            project,
            owner: caller.user_id,
            team: caller.team_id,
            // Filled in by who places, who knows the profiles of the moment.
            profile: Profile {
                name: ask.profile.clone(),
                gpu_type: String::new(),
                percent: 0,
                memory_bytes: 0,
                cpu_milli: 0,
            },
            gpus: gpus_of(ask.gpus)?,
            image: image.recipe.name.clone(),
            image_reference: image.recipe.reference.clone(),
            install_heavy: ask.install_heavy,
            storage_bytes: ask.storage_bytes,
            volume: VolumeId::from_ulid(self.runtime.ids.ulid()),
            state: State::Queued,
            phase_detail: String::new(),
            grant: None,
            node: None,
            created_at: now,
            queued_at: Some(now),
            started_at: None,
            ready_at: None,
            stopped_at: None,
            expected_at: None,
            failure: None,
            runtime: None,
            sequence: 0,
            traceparent: trace::current_traceparent(),
            version: 1,
        })
    }
}

/// Most slices of one server or run: no machine has more GPUs.
const MAX_GPUS: u8 = 16;

/// How many slices are asked for.
pub(crate) fn gpus_of(wanted: Option<u32>) -> Result<u8, SchedulerError> {
    let wanted = wanted.unwrap_or(1);
    match u8::try_from(wanted) {
        Ok(gpus @ 1..=MAX_GPUS) => Ok(gpus),
        Ok(_) | Err(_) => Err(SchedulerError::GpusInvalid {
            problem: format!("1 to {MAX_GPUS} GPUs can be asked for, not {wanted}"),
        }),
    }
}

/// The project that a caller means.
pub(crate) fn project_of(caller: &Caller, wanted: &str) -> Result<ProjectName, SchedulerError> {
    if wanted.is_empty() {
        return caller
            .projects
            .first()
            .cloned()
            .ok_or(SchedulerError::NoProject);
    }
    caller
        .projects
        .iter()
        .find(|project| project.as_str() == wanted)
        .cloned()
        .ok_or_else(|| SchedulerError::ProjectUnknown {
            wanted: shown(wanted),
            yours: caller.projects.iter().map(ProjectName::to_string).collect(),
        })
}
