//! `cnlab images list`.

use clap::Subcommand;
use cnlab_proto::scheduler::v1 as pb;

use crate::{
    command::Setting,
    console::Console,
    error::Result,
    output::{Document, table::Table},
    session::{Effect, Session},
};

/// What can be done with images.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ImagesCommand {
    /// List what a server can run.
    #[command(visible_alias = "ls")]
    List,
}

/// Runs the command.
///
/// # Errors
/// When nobody is signed in or the gateway does not answer.
pub async fn run(
    setting: Setting<'_>,
    console: &mut Console,
    command: ImagesCommand,
) -> Result<()> {
    match command {
        ImagesCommand::List => {
            let session = setting.session(console)?;
            list(&session, console).await
        }
    }
}

/// All images.
///
/// # Errors
/// When the gateway does not answer.
pub async fn all(session: &Session) -> Result<pb::ListImagesResponse> {
    let send = async |request| session.catalog().list_images(request).await;
    Ok(session
        .call(Effect::Read, pb::ListImagesRequest {}, send)
        .await?
        .message)
}

/// Lists images.
///
/// # Errors
/// When the gateway does not answer.
pub async fn list(session: &Session, console: &mut Console) -> Result<()> {
    let answer = all(session).await?;
    console.result(
        || table(&answer.images),
        || {
            answer
                .images
                .iter()
                .map(|image| image.name.clone())
                .collect()
        },
        || {
            Document::of(
                "ImageList",
                "cnlab.scheduler.v1.ListImagesResponse",
                &answer,
            )
        },
    )?;
    if answer.images.is_empty() {
        console.note("the image catalogue is empty")
    } else {
        Ok(())
    }
}

fn table(images: &[pb::Image]) -> String {
    let mut table = Table::new(&["NAME", "HEAVY PACKAGES", "DESCRIPTION"]);
    for image in images {
        let heavy = if image.heavy_packages.is_empty() {
            "-".to_owned()
        } else {
            image.heavy_packages.join(", ")
        };
        table.row([&image.name, &heavy, &image.description]);
    }
    table.render()
}
