//! `cnlab server create`: the quickstart's command.

use clap::Args;
use cnlab_model::ByteSize;
use cnlab_proto::scheduler::v1 as pb;

use super::{WaitArgs, left_waiting, result, wait};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::{Exit, Failure, Result},
    names,
    session::{Effect, Session},
    text,
};

/// What to create.
#[derive(Debug, Clone, Default, Args)]
pub struct CreateArgs {
    /// Its name, unique in the project: a-z, 0-9 and dashes.
    #[arg(long)]
    pub name: String,
    /// The image, such as pytorch:2.4-cuda12.4; see `images list`.
    #[arg(long)]
    pub image: String,
    /// The profile, such as h100-25pct; see `profiles list`.
    #[arg(long)]
    pub profile: String,
    /// How many GPUs of one node, where the profile is an entire one.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub gpus: Option<u8>,
    /// Size of its storage, such as 50gb or 32Gi.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub storage: String,
    /// Install the image's heavy packages (such as torch) even where no real GPU is.
    #[arg(long)]
    pub with_heavy_packages: bool,
    /// How to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Checks what can be checked without a gateway, and answers with the storage.
///
/// # Errors
/// When a value is wrong.
pub fn check(args: &CreateArgs) -> Result<ByteSize> {
    names::new_server(&args.name)?;
    for (field, value) in [("image", &args.image), ("profile", &args.profile)] {
        // Everything else is for the catalogue to say, with the near matches.
        if value.is_empty() || value.len() > MAX_REFERENCE {
            return Err(Failure::new(
                Exit::Usage,
                "INVALID_FIELD",
                format!("the {field} must have 1 to {MAX_REFERENCE} characters"),
            )
            .field(field));
        }
    }
    names::storage(&args.storage)
}

/// Longest name of an image or a profile, in bytes.
const MAX_REFERENCE: usize = 255;

/// Creates the server, waits for it where that is wanted, and answers with it.
///
/// # Errors
/// When a value is wrong, the gateway refuses, or the server does not become ready.
pub async fn run(session: &Session, console: &mut Console, args: CreateArgs) -> Result<pb::Server> {
    let storage = check(&args)?;
    console.note(&format!("  storage: {storage} = {} bytes", storage.0))?;
    let request = pb::CreateServerRequest {
        name: args.name.clone(),
        image: args.image,
        profile: args.profile,
        storage_bytes: storage.0,
        project: session.project().unwrap_or_default().to_owned(),
        install_heavy: args.with_heavy_packages,
        gpus: args.gpus.map(u32::from),
    };
    let name = args.name;
    let work = async {
        let send = async |request| session.servers().create_server(request).await;
        let answer = session.call(Effect::Mutation, request, send).await?;
        finish(session, console, answer.message, args.wait)
            .await
            .map_err(|failure| failure.traced(answer.trace_id))
    };
    interruptible(work, || left_waiting(session, &name, "the creation")).await
}

/// Waits until a server that was just created or started is ready, and says so.
///
/// # Errors
/// When it does not become ready.
pub async fn finish(
    session: &Session,
    console: &mut Console,
    server: pb::Server,
    how: WaitArgs,
) -> Result<pb::Server> {
    let program = session.program();
    if how.no_wait {
        result(console, &server)?;
        console.milestone(&format!("✓ Accepted: {}", server.name))?;
        console.note(&format!(
            "  watch it: {program} server show --watch {}",
            server.name
        ))?;
        return Ok(server);
    }
    let server = wait::until(
        session,
        console,
        server,
        wait::Goal::Ready,
        how.wait_timeout,
    )
    .await?;
    result(console, &server)?;
    console.milestone(&format!("✓ Ready: {}", text::one_line(&server.url)))?;
    if server
        .runtime
        .as_ref()
        .is_some_and(|runtime| runtime.simulated_gpu)
    {
        console.note("  note: the GPU of this slice is simulated; no CUDA device is behind it")?;
    }
    console.note(&format!("  open it: {program} server open {}", server.name))?;
    console.note(&format!("  stop it: {program} server stop {}", server.name))?;
    Ok(server)
}
