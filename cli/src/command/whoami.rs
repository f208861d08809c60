//! `cnlab whoami`.

use cnlab_proto::billing::v1 as pb;

use crate::{
    command::Setting,
    console::Console,
    error::Result,
    output::{Document, table::Facts},
    session::Effect,
};

/// Shows the caller's own account.
///
/// # Errors
/// When nobody is signed in or the gateway does not answer.
pub async fn run(setting: Setting<'_>, console: &mut Console) -> Result<()> {
    let session = setting.session(console)?;
    let identity = session
        .call(Effect::Read, pb::WhoAmIRequest {}, async |request| {
            session.account().who_am_i(request).await
        })
        .await?
        .message;
    let endpoint = session.endpoint().as_str();
    console.result(
        || table(&identity, endpoint),
        || vec![identity.user_name.clone()],
        || {
            Ok(
                Document::of("Identity", "cnlab.billing.v1.Identity", &identity)?
                    .with("endpoint", endpoint),
            )
        },
    )
}

fn table(identity: &pb::Identity, endpoint: &str) -> String {
    let mut facts = Facts::default();
    facts.add(
        "User",
        format!("{} ({})", identity.user_name, identity.user_id),
    );
    if !identity.team_name.is_empty() {
        facts.add(
            "Team",
            format!("{} ({})", identity.team_name, identity.team_id),
        );
    }
    facts.add_all("Projects", identity.projects.iter().cloned());
    facts.add("Token", identity.token_id.as_str());
    facts.add(
        "Expires",
        identity
            .expires_at
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
    );
    facts.add("Gateway", endpoint);
    facts.render()
}
