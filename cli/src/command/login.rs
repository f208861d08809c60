//! `cnlab login`: checks a token with the gateway and keeps it.
//!
//! **Invariant**: a token is kept only after the gateway accepted it, and is never printed.

use std::io::IsTerminal as _;

use clap::Args;
use cnlab_proto::billing::v1 as pb;

use crate::{
    command::Setting,
    console::Console,
    context,
    error::{Exit, Failure, Result},
    output::Document,
    private_file,
    session::{self, Effect, Session},
};

/// How to sign in.
#[derive(Debug, Clone, Default, Args)]
pub struct LoginArgs {
    /// The token. Other users of this machine may see it in the list of processes; prefer
    /// --token-stdin or the variable CNLAB_TOKEN.
    #[arg(
        long,
        value_name = "TOKEN",
        conflicts_with = "token_stdin",
        allow_hyphen_values = true
    )]
    pub token: Option<SecretText>,
    /// Read the token from stdin.
    #[arg(long)]
    pub token_stdin: bool,
}

/// Text that `Debug` does not show.
#[derive(Clone)]
pub struct SecretText(String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// More than any token is long, in bytes.
const MAX_STDIN: u64 = 64 * 1024;

/// Signs in.
///
/// # Errors
/// When there is no token, the gateway does not accept it, or it cannot be kept.
pub async fn run(setting: Setting<'_>, console: &mut Console, args: LoginArgs) -> Result<()> {
    let paths = setting.paths()?;
    let token = token(setting, console, args)?;
    session::check_token(&token)?;
    let (endpoint, project) = session::find(&setting.target(), &paths, setting.environment)?;
    if !endpoint.is_loopback() {
        console.note(&format!(
            "warning: your token goes to {endpoint} without encryption"
        ))?;
    }
    let session = Session::with_token(setting.environment.program, endpoint, project, &token)?;
    let identity = session
        .call(Effect::Read, pb::WhoAmIRequest {}, async |request| {
            session.account().who_am_i(request).await
        })
        .await?
        .message;
    let endpoint = session.endpoint();
    context::store_token(&paths, endpoint.as_str(), &token)?;
    let known = context::current(&paths)?.is_some_and(|context| {
        crate::connect::Endpoint::parse(&context.endpoint).is_ok_and(|context| context == *endpoint)
    });
    if !known {
        context::write(&paths, endpoint.authority(), endpoint.as_str())?;
    }
    console.result(
        || {
            format!(
                "✓ Logged in as {} at {endpoint}",
                crate::text::one_line(&identity.user_name)
            )
        },
        || vec![identity.user_name.clone()],
        || {
            Ok(
                Document::of("Identity", "cnlab.billing.v1.Identity", &identity)?
                    .with("endpoint", endpoint.as_str()),
            )
        },
    )
}

fn token(setting: Setting<'_>, console: &mut Console, args: LoginArgs) -> Result<String> {
    if args.token_stdin {
        if std::io::stdin().is_terminal() {
            console.note("paste the token, then press Enter and Ctrl-D")?;
        }
        let text = private_file::read_stdin(MAX_STDIN)
            .map_err(|error| Failure::local("the token cannot be read from stdin", &error))?;
        return Ok(text.trim().to_owned());
    }
    if let Some(token) = args.token {
        return Ok(token.0.trim().to_owned());
    }
    let program = setting.environment.program;
    setting.environment.token.clone().map(|token| token.trim().to_owned()).ok_or_else(|| {
        Failure::new(Exit::Auth, "TOKEN_REQUIRED", "a token is needed to log in")
            .caused_by("this gateway has no sign-in in the browser yet")
            .try_this(format!(
                "`{program} login --token-stdin < FILE`, where `{program} up` says which file holds the token of its \
                 stack; elsewhere ask your admin for a token"
            ))
    })
}
