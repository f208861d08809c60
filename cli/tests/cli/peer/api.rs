//! The public services over the peer's state.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cnlab_proto::{
    billing::v1::{Identity, WhoAmIRequest, account_service_server::AccountService},
    scheduler::v1::{
        self as pb, catalog_service_server::CatalogService, server_service_server::ServerService,
    },
};
use cnlab_service::status::{DOMAIN, TRACE_ID_HEADER};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{Call, Fault, State, TOKEN, TRACE_ID};

/// Between two steps of a server, so that each is seen.
pub(super) const STEP: Duration = Duration::from_millis(40);

#[derive(Clone)]
pub(crate) struct Api(pub(crate) Arc<Mutex<State>>);

pub(super) fn refusal(
    code: Code,
    reason: &str,
    message: &str,
    metadata: &[(&str, &str)],
) -> Status {
    let metadata: HashMap<String, String> = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
    traced(Status::with_error_details(code, message, details))
}

fn traced(mut status: Status) -> Status {
    status
        .metadata_mut()
        .insert(TRACE_ID_HEADER, TRACE_ID.parse().unwrap());
    status
}

pub(super) fn answer<T>(message: T) -> Result<Response<T>, Status> {
    let mut response = Response::new(message);
    response
        .metadata_mut()
        .insert(TRACE_ID_HEADER, TRACE_ID.parse().unwrap());
    Ok(response)
}

impl Api {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the call, checks the token, and goes wrong where that was asked for.
    pub(super) fn enter<T>(
        &self,
        method: &'static str,
        request: &Request<T>,
    ) -> Result<Option<Fault>, Status> {
        let text = |name: &str| {
            request
                .metadata()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let mut state = self.state();
        state.calls.push(Call {
            method,
            authorization: text("authorization"),
            key: text("idempotency-key"),
            traceparent: text("traceparent"),
        });
        if text("authorization").as_deref() != Some(&format!("Bearer {TOKEN}")) {
            return Err(refusal(
                Code::Unauthenticated,
                "TOKEN_UNKNOWN",
                "the token is not known",
                &[],
            ));
        }
        let position = state
            .faults
            .iter()
            .position(|(wanted, _)| *wanted == method);
        let fault = position
            .and_then(|at| state.faults.remove(at))
            .map(|(_, fault)| fault);
        if fault == Some(Fault::Away) {
            return Err(traced(Status::unavailable("the scheduler is away")));
        }
        Ok(fault)
    }

    pub(super) fn find(&self, server: &str) -> Result<pb::Server, Status> {
        self.state().find(server).ok_or_else(|| {
            let message = format!("there is no server {server:?}");
            refusal(
                Code::NotFound,
                "SERVER_NOT_FOUND",
                &message,
                &[("try", "see `cnlab server list`")],
            )
        })
    }
}

pub(super) fn finish<T>(fault: Option<Fault>, message: T) -> Result<Response<T>, Status> {
    match fault {
        Some(Fault::LoseAnswer) => Err(traced(Status::unavailable("connection lost"))),
        Some(Fault::Away) | None => answer(message),
    }
}

pub(super) fn need_key<T>(request: &Request<T>) -> Result<String, Status> {
    let key = request
        .metadata()
        .get("idempotency-key")
        .and_then(|value| value.to_str().ok());
    key.map(str::to_owned).ok_or_else(|| {
        refusal(
            Code::InvalidArgument,
            "KEY_MISSING",
            "no idempotency key",
            &[],
        )
    })
}

#[tonic::async_trait]
impl AccountService for Api {
    async fn who_am_i(
        &self,
        request: Request<WhoAmIRequest>,
    ) -> Result<Response<Identity>, Status> {
        let fault = self.enter("WhoAmI", &request)?;
        let identity = Identity {
            user_id: "usr_01900000000000000000000001".to_owned(),
            user_name: "admin".to_owned(),
            team_id: "team_01900000000000000000000001".to_owned(),
            team_name: "local".to_owned(),
            projects: vec!["local/default".to_owned(), "local/other".to_owned()],
            token_id: "tok_01900000000000000000000001".to_owned(),
            expires_at: None,
        };
        finish(fault, identity)
    }
}

#[tonic::async_trait]
impl CatalogService for Api {
    async fn list_profiles(
        &self,
        request: Request<pb::ListProfilesRequest>,
    ) -> Result<Response<pb::ListProfilesResponse>, Status> {
        let fault = self.enter("ListProfiles", &request)?;
        finish(
            fault,
            pb::ListProfilesResponse {
                profiles: self.state().profiles.clone(),
            },
        )
    }

    async fn list_images(
        &self,
        request: Request<pb::ListImagesRequest>,
    ) -> Result<Response<pb::ListImagesResponse>, Status> {
        let fault = self.enter("ListImages", &request)?;
        finish(
            fault,
            pb::ListImagesResponse {
                images: self.state().images.clone(),
            },
        )
    }
}

#[tonic::async_trait]
impl ServerService for Api {
    async fn create_server(
        &self,
        request: Request<pb::CreateServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let fault = self.enter("CreateServer", &request)?;
        let key = need_key(&request)?;
        let request = request.into_inner();
        let mut state = self.state();
        if let Some(server) = state.id_of_key(&key).and_then(|id| state.find(&id)) {
            return finish(fault, server);
        }
        let refused = match request.profile.as_str() {
            "denied" => Some((
                Code::PermissionDenied,
                "PROJECT_DENIED",
                "you may not use this project",
            )),
            "no-capacity" => Some((
                Code::ResourceExhausted,
                "NO_CAPACITY",
                "no GPU of this type is here",
            )),
            "over-budget" => Some((
                Code::ResourceExhausted,
                "BUDGET_EXCEEDED",
                "the budget of local/default is used up",
            )),
            "over-quota" => Some((
                Code::ResourceExhausted,
                "QUOTA_EXCEEDED",
                "you have 10 of 10 servers",
            )),
            "broken" => Some((Code::Internal, "INTERNAL", "internal error")),
            "hostile" => Some((
                Code::InvalidArgument,
                "BAD\u{1b}[2J",
                "a \u{1b}]0;owned\u{7} message\u{9b}31m",
            )),
            _ => None,
        };
        if let Some((code, reason, message)) = refused {
            return Err(refusal(code, reason, message, &[]));
        }
        if !state
            .profiles
            .iter()
            .any(|profile| profile.name == request.profile)
        {
            return Err(refusal(
                Code::NotFound,
                "PROFILE_NOT_FOUND",
                &format!("there is no profile {:?}", request.profile),
                &[("try", "see `cnlab profiles list`"), ("field", "profile")],
            ));
        }
        if !state.images.iter().any(|image| image.name == request.image) {
            return Err(refusal(
                Code::NotFound,
                "IMAGE_NOT_FOUND",
                &format!("there is no image {:?} in the catalogue", request.image),
                &[
                    ("try", "did you mean pytorch:2.4-cuda12.4"),
                    ("field", "image"),
                ],
            ));
        }
        if state
            .servers
            .values()
            .any(|server| server.name == request.name)
        {
            return Err(refusal(
                Code::AlreadyExists,
                "SERVER_NAME_TAKEN",
                &format!("server {} exists already", request.name),
                &[
                    (
                        "try",
                        "another --name, or `cnlab server show` to look at it",
                    ),
                    ("field", "name"),
                ],
            ));
        }
        let server = state.create(request, &key);
        finish(fault, server)
    }

    async fn get_server(
        &self,
        request: Request<pb::GetServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let fault = self.enter("GetServer", &request)?;
        finish(fault, self.find(&request.get_ref().server)?)
    }

    async fn list_servers(
        &self,
        request: Request<pb::ListServersRequest>,
    ) -> Result<Response<pb::ListServersResponse>, Status> {
        let fault = self.enter("ListServers", &request)?;
        let request = request.into_inner();
        let state = self.state();
        let all: Vec<_> = state
            .servers
            .values()
            .filter(|server| request.project.is_empty() || server.project == request.project)
            .cloned()
            .collect();
        // Small pages, so that every list of more than a few goes through page tokens.
        let from: usize = request.page_token.parse().unwrap_or(0);
        let page = state.page;
        let servers: Vec<_> = all.iter().skip(from).take(page).cloned().collect();
        let next = from + servers.len();
        let next_page_token = if next < all.len() {
            next.to_string()
        } else {
            String::new()
        };
        finish(
            fault,
            pb::ListServersResponse {
                servers,
                next_page_token,
            },
        )
    }

    async fn start_server(
        &self,
        request: Request<pb::StartServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let fault = self.enter("StartServer", &request)?;
        need_key(&request)?;
        let server = self.find(&request.get_ref().server)?;
        let server = match server.state() {
            pb::ServerState::Stopped | pb::ServerState::Failed => self.state().start(&server),
            _ => {
                return Err(refusal(
                    Code::FailedPrecondition,
                    "SERVER_STATE",
                    &format!("server {} runs already", server.name),
                    &[],
                ));
            }
        };
        finish(fault, server)
    }

    async fn stop_server(
        &self,
        request: Request<pb::StopServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let fault = self.enter("StopServer", &request)?;
        need_key(&request)?;
        let server = self.find(&request.get_ref().server)?;
        let server = if server.state() == pb::ServerState::Stopped {
            server
        } else {
            self.state().stop(&server)
        };
        finish(fault, server)
    }

    async fn delete_server(
        &self,
        request: Request<pb::DeleteServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let fault = self.enter("DeleteServer", &request)?;
        need_key(&request)?;
        let server = self.find(&request.get_ref().server)?;
        finish(fault, self.state().delete(&server))
    }

    type WatchServerStream = ReceiverStream<Result<pb::Server, Status>>;

    async fn watch_server(
        &self,
        request: Request<pb::WatchServerRequest>,
    ) -> Result<Response<Self::WatchServerStream>, Status> {
        self.enter("WatchServer", &request)?;
        let server = self.find(&request.get_ref().server)?;
        let (news, stream) = tokio::sync::mpsc::channel(1);
        let api = self.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "a test's peer has no kit around it"
        )]
        tokio::spawn(async move {
            let (id, name) = (server.id.clone(), server.name.clone());
            let mut sent = server.version;
            if news.send(Ok(server)).await.is_err() {
                return;
            }
            // Every watcher of a server sees every state, whoever takes the step to it.
            loop {
                tokio::time::sleep(STEP).await;
                if news.is_closed() {
                    return;
                }
                let broken = api
                    .state()
                    .broken_watches
                    .iter()
                    .position(|broken| *broken == name);
                if let Some(at) = broken {
                    api.state().broken_watches.remove(at);
                    let _ = news
                        .send(Err(Status::unavailable("the gateway restarts")))
                        .await;
                    return;
                }
                let stepped = api.state().step(&id);
                let now = stepped.or_else(|| api.state().find(&id));
                let Some(server) = now.filter(|server| server.version > sent) else {
                    continue;
                };
                sent = server.version;
                let gone = server.state() == pb::ServerState::Deleted;
                if news.send(Ok(server)).await.is_err() || gone {
                    return;
                }
            }
        });
        answer(ReceiverStream::new(stream))
    }

    async fn open_server(
        &self,
        request: Request<pb::OpenServerRequest>,
    ) -> Result<Response<pb::OpenServerResponse>, Status> {
        let fault = self.enter("OpenServer", &request)?;
        need_key(&request)?;
        let server = self.find(&request.get_ref().server)?;
        let port = self.state().port;
        let link = if server.name.starts_with("hostile") {
            "javascript:alert(1)".to_owned()
        } else {
            format!(
                "http://srv-{}.localhost:{port}/_cnlab/open?code=c0de",
                server.name
            )
        };
        let expires_at = Some(prost_types::Timestamp {
            seconds: 1_764_500_060,
            nanos: 0,
        });
        finish(
            fault,
            pb::OpenServerResponse {
                link,
                url: server.url,
                expires_at,
            },
        )
    }

    type GetServerLogsStream = ReceiverStream<Result<pb::LogChunk, Status>>;

    async fn get_server_logs(
        &self,
        request: Request<pb::GetServerLogsRequest>,
    ) -> Result<Response<Self::GetServerLogsStream>, Status> {
        self.enter("GetServerLogs", &request)?;
        self.find(&request.get_ref().server)?;
        let request = request.into_inner();
        let mut lines = self.state().logs.clone();
        if request.tail_lines > 0 {
            let skip = lines
                .len()
                .saturating_sub(usize::try_from(request.tail_lines).unwrap());
            lines.drain(..skip);
        }
        let (news, stream) = tokio::sync::mpsc::channel(1);
        #[expect(
            clippy::disallowed_methods,
            reason = "a test's peer has no kit around it"
        )]
        tokio::spawn(async move {
            for text in lines {
                if news.send(Ok(pb::LogChunk { text })).await.is_err() {
                    return;
                }
            }
            if request.follow {
                news.closed().await;
            }
        });
        answer(ReceiverStream::new(stream))
    }
}
