//! What travels through the stack.

use std::net::IpAddr;

use cnlab_model::id::ServerId;
use http::HeaderMap;

use crate::body::{Body, RequestBody};

/// An answer.
pub type Response = http::Response<Body>;

/// A request and what the layers have found out about it so far.
///
/// A struct and not `http::Extensions`, whose map would cost an allocation per request.
#[derive(Debug)]
pub struct Call {
    /// The request itself.
    pub request: http::Request<RequestBody>,
    /// Who sent it, as the connection says.
    pub peer: IpAddr,
    /// Whose it is.
    pub site: Site,
}

/// Who a request is for, which decides what the layers do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// A server's own web origin.
    Notebook(ServerId),
    /// `application/grpc`: the command line tool.
    Grpc,
    /// Paths under `/v1/`.
    Api,
    /// Landing page, health and the redirects of printed addresses.
    Front,
}

impl Site {
    /// Whether requests need a token.
    #[must_use]
    pub const fn is_api(self) -> bool {
        matches!(self, Self::Grpc | Self::Api)
    }
}

/// Removes every header whose name is unwanted. Looking at the names in one pass is cheaper
/// than asking the map for each name that might be there.
pub fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    while let Some(name) = headers.keys().find(|name| unwanted(name.as_str())).cloned() {
        headers.remove(name);
    }
}
