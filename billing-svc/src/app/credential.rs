//! Turns credentials into accounts, and makes those that browsers need.

use std::time::Duration;

use billing_core::{
    policy::{Action, Subject, permits},
    token::{Kind, Token},
};
use cnlab_model::{
    Timestamp,
    id::{ServerId, TokenId, UserId},
};
use sha2::{Digest, Sha256};

use super::App;
use crate::{
    error::Error,
    store::{
        account::{self, Account},
        credential::{self, Hash},
    },
};

/// How long an open code is valid.
const CODE_LIFE: Duration = Duration::from_secs(60);
/// How long a browser stays signed in to a server.
const SESSION_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long an expired code or session is remembered, to say that it expired.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn hash(token: &Token) -> Hash {
    Sha256::digest(token.expose().as_bytes()).into()
}

impl App {
    /// The account behind a user's token, the token's id and when it expires.
    pub(crate) async fn authenticate_token(
        &self,
        text: &str,
    ) -> Result<(Account, TokenId, Option<Timestamp>), Error> {
        let token = Token::parse(Kind::User, text).map_err(Error::TokenMalformed)?;
        let record = credential::token(self.db.read(), &hash(&token))
            .await?
            .ok_or(Error::TokenUnknown)?;
        if record.revoked {
            return Err(Error::TokenRevoked);
        }
        if record.expires_at.is_some_and(|at| at <= self.now()) {
            return Err(Error::TokenExpired);
        }
        let account = account::find(self.db.read(), record.user_id)
            .await?
            .ok_or(Error::TokenUnknown)?;
        Ok((account, record.id, record.expires_at))
    }

    /// A code that signs one browser of this user in to this server, and when it expires. The
    /// scheduler asks for it after it has made sure that the server is the user's.
    pub(crate) async fn issue_open_code(
        &self,
        user: UserId,
        server: ServerId,
    ) -> Result<(Token, Timestamp), Error> {
        let code = Token::from_random(Kind::OpenCode, &self.ids.secret());
        let (hash, now) = (&hash(&code), self.now());
        let expires_at = now.plus(CODE_LIFE);
        self.db
            .write(|tx| async move {
                if account::find(&tx, user).await?.is_none() {
                    return Err(Error::UserUnknown(user));
                }
                credential::insert_code(&tx, hash, user, server, now, expires_at).await
            })
            .await?;
        Ok((code, expires_at))
    }

    /// Uses a code up; answers with a session for that server, and when it expires.
    pub(crate) async fn redeem_open_code(
        &self,
        text: &str,
        server: ServerId,
    ) -> Result<(Token, Timestamp), Error> {
        let code = Token::parse(Kind::OpenCode, text).map_err(|_| Error::CodeUnknown)?;
        let session = Token::from_random(Kind::Session, &self.ids.secret());
        let (code, secret, now) = (&hash(&code), &hash(&session), self.now());
        let expires_at = now.plus(SESSION_LIFE);
        self.db
            .write(|tx| async move {
                let redeemed = credential::redeem_code(&tx, code, server, now).await?;
                let record = credential::code(&tx, code).await?;
                match record {
                    Some(record) if redeemed => {
                        let user = record.user_id;
                        credential::insert_session(&tx, secret, user, server, now, expires_at).await
                    }
                    // Whoever tries it on another server learns nothing about it.
                    Some(record) if record.server_id != server => Err(Error::CodeUnknown),
                    Some(record) if record.ended => Err(Error::CodeUsed),
                    Some(_) => Err(Error::CodeExpired),
                    None => Err(Error::CodeUnknown),
                }
            })
            .await?;
        Ok((session, expires_at))
    }

    /// The account behind a session on this server, and when it expires.
    pub(crate) async fn authenticate_session(
        &self,
        text: &str,
        server: ServerId,
    ) -> Result<(Account, Timestamp), Error> {
        let session = Token::parse(Kind::Session, text).map_err(|_| Error::SessionUnknown)?;
        let record = credential::session(self.db.read(), &hash(&session))
            .await?
            .ok_or(Error::SessionUnknown)?;
        let subject = Subject::Session {
            server: record.server_id,
        };
        if record.ended || !permits(&subject, Action::EnterServer(server)) {
            return Err(Error::SessionUnknown);
        }
        if record.expires_at <= self.now() {
            return Err(Error::SessionExpired);
        }
        let account = account::find(self.db.read(), record.user_id)
            .await?
            .ok_or(Error::SessionUnknown)?;
        Ok((account, record.expires_at))
    }

    /// Forgets codes and sessions that expired long ago; returns how many.
    pub(crate) async fn purge_credentials(&self) -> Result<u64, Error> {
        let limit = Timestamp(
            self.now()
                .0
                .saturating_sub(i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX)),
        );
        self.db
            .write(|tx| async move { credential::purge(&tx, limit).await })
            .await
    }
}
