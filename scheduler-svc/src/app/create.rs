//! Creating a server.

use cnlab_model::{
    ProjectName, ServerName,
    id::{GrantId, ServerId, VolumeId},
};
use cnlab_service::{Caller, trace};
use scheduler_core::{profile::Profile, server::State};

use super::{
    App,
    catalog::{profile_named, shown},
    once::{self, Attempt, Once},
    place::{Plan, TRIES},
    view::View,
};
use crate::{
    error::SchedulerError,
    store::{
        self,
        cell::{Cell, request, server_turn},
        record::Server,
        starts,
    },
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
}

impl App {
    /// Creates a server and starts it, or lets it wait for a slice.
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        ask: NewServer,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        let mut server = match self.new_server(caller, &ask) {
            Ok(server) => server,
            // Catalogues and the caller's projects change; what was answered once holds.
            Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
        };
        let past = starts::of_image(self.db.read(), &server.image).await?;
        let _turn = self.turn().await;
        for _ in 0..TRIES {
            let mut cell = self.cell().await?;
            cell.keep_ahead_of(server_turn(server.created_at));
            let plan = self.plan_new(&cell, &mut server, &ask.profile, &past);
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
            };
            match self.insert(&cell, &server, &plan, attempt).await {
                Err(SchedulerError::SliceTaken) => self.metrics.lost_race(),
                done => return done,
            }
        }
        let cell = self.cell().await?;
        let plan = Plan::overtaken();
        let view = self.insert(&cell, &server, &plan, attempt).await;
        self.queue.wake();
        view
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
            // Filled in by the plan, which knows the profiles of the moment.
            profile: Profile {
                name: ask.profile.clone(),
                gpu_type: String::new(),
                percent: 0,
                memory_bytes: 0,
                cpu_milli: 0,
            },
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

    fn plan_new(
        &self,
        cell: &Cell,
        server: &mut Server,
        profile: &str,
        past: &[scheduler_core::estimate::PastStart],
    ) -> Result<Plan, SchedulerError> {
        let offered = cell.profiles(&self.catalogue.profiles, &self.catalogue.templates);
        server.profile = profile_named(&offered, profile)?.clone();
        let request = request(&server.profile, server.storage_bytes, None);
        self.plan(cell, &*server, &request, past)
    }

    async fn insert(
        &self,
        cell: &Cell,
        new: &Server,
        plan: &Plan,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        let now = self.now();
        let grant = GrantId::from_ulid(self.runtime.ids.ulid());
        let (view, first) = self
            .db
            .write(|tx| async move {
                let pending = match attempt.begin(&tx, now).await? {
                    Once::Again(view) => return Ok((*view, false)),
                    Once::First(pending) => pending,
                };
                let mut server = new.clone();
                let grant = self.carry_out(&tx, &mut server, plan, grant, now).await?;
                store::server::insert(&tx, &server, server.node).await?;
                let node_name = server
                    .node
                    .and_then(|node| cell.node(node))
                    .map(|node| node.name.clone());
                let view = View::new(server, grant, node_name, now);
                once::finish(&tx, pending, &view).await?;
                Ok::<_, SchedulerError>((view, true))
            })
            .await?;
        if first {
            self.publish(&view.server);
        }
        Ok(view)
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
