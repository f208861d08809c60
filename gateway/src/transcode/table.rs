//! The route table: which method answers which HTTP method and path.

use std::{collections::HashMap, sync::Arc};

use http::{Method, uri::PathAndQuery};
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, ReflectMessage as _, Value,
};
use thiserror::Error;

use crate::{error::GatewayError, transcode::text, upstream::Upstream};

/// Name of the option that makes a method public.
const OPTION: &str = "cnlab.model.v1.http";

/// Why the descriptors make no table. Found at start, so that a wrong proto never serves.
#[derive(Debug, Error)]
pub enum TableError {
    /// The descriptor set cannot be read.
    #[error("the descriptor set is damaged")]
    Descriptors(#[from] prost_reflect::DescriptorError),
    /// The descriptor set lacks the option's definition.
    #[error("the descriptor set does not define {OPTION}")]
    NoOption,
    /// A method's option makes no sense.
    #[error("the HTTP option of {method} is wrong: {problem}")]
    Option {
        /// Full name of the method.
        method: String,
        /// What is wrong.
        problem: String,
    },
}

/// A public method.
#[derive(Debug)]
pub struct Rpc {
    /// As gRPC writes it: `/package.Service/Method`.
    pub path: PathAndQuery,
    /// Which service answers.
    pub upstream: Upstream,
    /// What it takes.
    pub input: MessageDescriptor,
    /// What it gives.
    pub output: MessageDescriptor,
    /// Whether the answer is a stream.
    pub streams: bool,
    /// Whether the request is the JSON body.
    pub takes_body: bool,
    /// HTTP method.
    pub method: Method,
    /// The path template as the proto writes it.
    pub template: String,
    /// The method's descriptor, for its comments.
    pub descriptor: MethodDescriptor,
    pattern: Pattern,
}

/// A path template, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    segments: Vec<Segment>,
    /// What stands after the colon of the last segment.
    verb: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Variable(String),
}

/// Variables of a path: field name and value.
pub type Variables = Vec<(String, String)>;

/// A public method and the variables of its path.
#[derive(Debug)]
pub struct Found<'a> {
    /// The method.
    pub rpc: &'a Rpc,
    /// Percent-decoded.
    pub variables: Variables,
}

/// Every public method.
#[derive(Debug)]
pub struct Table {
    pool: DescriptorPool,
    rpcs: Vec<Arc<Rpc>>,
    by_grpc_path: HashMap<String, Arc<Rpc>>,
}

impl Table {
    /// Reads the table from an encoded `FileDescriptorSet`.
    ///
    /// # Errors
    /// When an option is not one that the gateway understands completely.
    pub fn from_descriptors(encoded: &[u8]) -> Result<Self, TableError> {
        let pool = DescriptorPool::decode(encoded)?;
        let option = pool
            .get_extension_by_name(OPTION)
            .ok_or(TableError::NoOption)?;
        let mut rpcs = Vec::new();
        for service in pool.services() {
            for method in service.methods() {
                let options = method.options();
                if !options.has_extension(&option) {
                    continue;
                }
                let wrong = |problem: String| TableError::Option {
                    method: method.full_name().to_owned(),
                    problem,
                };
                let Value::Message(rule) = options.get_extension(&option).into_owned() else {
                    return Err(wrong("it is no message".to_owned()));
                };
                let rpc = Rpc::new(&method, &rule).map_err(wrong)?;
                if rpcs.iter().any(|other: &Arc<Rpc>| {
                    other.method == rpc.method && other.pattern.same_as(&rpc.pattern)
                }) {
                    return Err(wrong(format!("{} {} is taken", rpc.method, rpc.template)));
                }
                rpcs.push(Arc::new(rpc));
            }
        }
        let by_grpc_path = rpcs
            .iter()
            .map(|rpc| (rpc.path.as_str().to_owned(), Arc::clone(rpc)))
            .collect();
        Ok(Self {
            pool,
            rpcs,
            by_grpc_path,
        })
    }

    /// The method behind an HTTP request.
    ///
    /// # Errors
    /// Not found, or found with other methods only.
    pub fn find(&self, method: &Method, path: &str) -> Result<Found<'_>, GatewayError> {
        let mut allowed = Vec::new();
        for rpc in &self.rpcs {
            let Some(raw) = rpc.pattern.matches(path) else {
                continue;
            };
            if rpc.method != *method {
                allowed.push(rpc.method.clone());
                continue;
            }
            let variables = raw
                .map(|(name, value)| {
                    let value = text::decode(value, false)
                        .ok_or(GatewayError::Malformed("a path with broken escapes"))?;
                    Ok((name.to_owned(), value.into_owned()))
                })
                .collect::<Result<_, GatewayError>>()?;
            return Ok(Found { rpc, variables });
        }
        if allowed.is_empty() {
            return Err(GatewayError::NoSuchPath(path.chars().take(200).collect()));
        }
        Err(GatewayError::MethodNotAllowed {
            method: method.clone(),
            allowed,
        })
    }

    /// The public method that gRPC names so.
    #[must_use]
    pub fn by_grpc_path(&self, path: &str) -> Option<&Rpc> {
        self.by_grpc_path.get(path).map(Arc::as_ref)
    }

    /// Every public method, in the order of the protos.
    pub fn rpcs(&self) -> impl Iterator<Item = &Rpc> {
        self.rpcs.iter().map(Arc::as_ref)
    }

    /// Where the types come from.
    #[must_use]
    pub const fn pool(&self) -> &DescriptorPool {
        &self.pool
    }
}

impl Rpc {
    fn new(method: &MethodDescriptor, rule: &DynamicMessage) -> Result<Self, String> {
        let rule_type = rule.descriptor();
        let (verb, template) = rule_type
            .fields()
            .filter(|field| field.containing_oneof().is_some() && rule.has_field(field))
            .find_map(|field| {
                Some((
                    field.name().to_ascii_uppercase(),
                    rule.get_field(&field).as_str()?.to_owned(),
                ))
            })
            .ok_or("it names no path")?;
        let body = rule
            .get_field_by_name("body")
            .and_then(|body| body.as_str().map(str::to_owned))
            .unwrap_or_default();
        let takes_body = match body.as_str() {
            "*" => true,
            "" => false,
            other => {
                return Err(format!(
                    "a body of {other:?} is not understood, only \"*\" or none"
                ));
            }
        };
        if method.is_client_streaming() {
            return Err("a stream of requests has no form in HTTP".to_owned());
        }
        let service = method.parent_service();
        let package = service.package_name();
        let pattern = Pattern::parse(&template)?;
        for name in pattern.variables() {
            let field = method
                .input()
                .get_field_by_name(name)
                .ok_or_else(|| format!("{name:?} is no field of the request"))?;
            if field.kind() != prost_reflect::Kind::String || field.is_list() {
                return Err(format!("{name:?} is no single text"));
            }
        }
        Ok(Self {
            path: PathAndQuery::try_from(format!("/{}/{}", service.full_name(), method.name()))
                .map_err(|e| e.to_string())?,
            upstream: Upstream::of_package(package)
                .ok_or_else(|| format!("no upstream serves the package {package}"))?,
            input: method.input(),
            output: method.output(),
            streams: method.is_server_streaming(),
            takes_body,
            method: Method::from_bytes(verb.as_bytes()).map_err(|e| e.to_string())?,
            template,
            descriptor: method.clone(),
            pattern,
        })
    }

    /// Names of the path's variables.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.pattern.variables()
    }
}

impl Pattern {
    fn parse(template: &str) -> Result<Self, String> {
        let path = template
            .strip_prefix("/v1/")
            .ok_or_else(|| format!("{template:?} does not begin with /v1/"))?;
        let after_slash = path.rfind('/').map_or(0, |at| at + 1);
        let (path, verb) = match path[after_slash..].find(':') {
            Some(colon) => (
                &path[..after_slash + colon],
                Some(path[after_slash + colon + 1..].to_owned()),
            ),
            None => (path, None),
        };
        let segments = path
            .split('/')
            .map(|segment| {
                match segment
                    .strip_prefix('{')
                    .and_then(|rest| rest.strip_suffix('}'))
                {
                    Some(name)
                        if !name.is_empty()
                            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
                    {
                        Ok(Segment::Variable(name.to_owned()))
                    }
                    None if !segment.is_empty() && !segment.contains(['{', '}', '*', '%']) => {
                        Ok(Segment::Literal(segment.to_owned()))
                    }
                    _ => Err(format!("the segment {segment:?} is not understood")),
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { segments, verb })
    }

    /// The raw values of the variables, if the path matches. Routing happens on the raw
    /// path: an escaped slash never makes a segment.
    fn matches<'a>(&'a self, path: &'a str) -> Option<impl Iterator<Item = (&'a str, &'a str)>> {
        let path = path.strip_prefix("/v1/")?;
        let after_slash = path.rfind('/').map_or(0, |at| at + 1);
        let (path, verb) = match path[after_slash..].rfind(':') {
            Some(colon) => (
                &path[..after_slash + colon],
                Some(&path[after_slash + colon + 1..]),
            ),
            None => (path, None),
        };
        if verb != self.verb.as_deref() {
            return None;
        }
        let mut given = path.split('/');
        for segment in &self.segments {
            let text = given.next()?;
            match segment {
                Segment::Literal(literal) if text == literal => {}
                Segment::Variable(_) if !text.is_empty() => {}
                Segment::Literal(_) | Segment::Variable(_) => return None,
            }
        }
        if given.next().is_some() {
            return None;
        }
        Some(self.segments.iter().zip(path.split('/')).filter_map(
            |(segment, text)| match segment {
                Segment::Variable(name) => Some((name.as_str(), text)),
                Segment::Literal(_) => None,
            },
        ))
    }

    fn variables(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Variable(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// Whether both match the same paths.
    fn same_as(&self, other: &Self) -> bool {
        self.verb == other.verb
            && self.segments.len() == other.segments.len()
            && self
                .segments
                .iter()
                .zip(&other.segments)
                .all(|pair| match pair {
                    (Segment::Literal(a), Segment::Literal(b)) => a == b,
                    (Segment::Variable(_), Segment::Variable(_)) => true,
                    (Segment::Literal(_), Segment::Variable(_))
                    | (Segment::Variable(_), Segment::Literal(_)) => false,
                })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::from_descriptors(cnlab_proto::DESCRIPTOR_SET).unwrap()
    }

    fn found(method: &Method, path: &str) -> Result<(String, Variables), GatewayError> {
        table()
            .find(method, path)
            .map(|found| (found.rpc.path.to_string(), found.variables))
    }

    #[test]
    fn paths_find_their_methods() {
        let var = |value: &str| vec![("server".to_owned(), value.to_owned())];
        for (method, path, rpc, variables) in [
            (Method::GET, "/v1/servers", "ListServers", vec![]),
            (Method::POST, "/v1/servers", "CreateServer", vec![]),
            (Method::GET, "/v1/servers/first", "GetServer", var("first")),
            (
                Method::DELETE,
                "/v1/servers/first",
                "DeleteServer",
                var("first"),
            ),
            (
                Method::POST,
                "/v1/servers/first:start",
                "StartServer",
                var("first"),
            ),
            (
                Method::GET,
                "/v1/servers/first:watch",
                "WatchServer",
                var("first"),
            ),
            (
                Method::GET,
                "/v1/servers/first/logs",
                "GetServerLogs",
                var("first"),
            ),
            (
                Method::GET,
                "/v1/servers/a%2Fb%2Fc",
                "GetServer",
                var("a/b/c"),
            ),
        ] {
            let (found, values) = found(&method, path).unwrap();
            assert_eq!(found, format!("/cnlab.scheduler.v1.ServerService/{rpc}"));
            assert_eq!(values, variables, "{path}");
        }
        assert_eq!(
            found(&Method::POST, "/v1/runs/train:cancel").unwrap(),
            (
                "/cnlab.scheduler.v1.RunService/CancelRun".to_owned(),
                vec![("run".to_owned(), "train".to_owned())]
            )
        );
        assert_eq!(
            found(&Method::GET, "/v1/me").unwrap().0,
            "/cnlab.billing.v1.AccountService/WhoAmI"
        );
    }

    #[test]
    fn other_paths_and_methods_are_told_apart() {
        for path in [
            "/v1/",
            "/v1/server",
            "/v1/servers/",
            "/v1/servers/a/b",
            "/v1/servers/a:fly",
            "/v1/servers/:start",
            "/v2/servers",
        ] {
            assert!(
                matches!(found(&Method::GET, path), Err(GatewayError::NoSuchPath(_))),
                "{path}"
            );
        }
        let Err(GatewayError::MethodNotAllowed { allowed, .. }) =
            found(&Method::PATCH, "/v1/servers/a")
        else {
            panic!("another error");
        };
        assert_eq!(allowed, [Method::GET, Method::DELETE]);
        assert!(matches!(
            found(&Method::GET, "/v1/servers/a:start"),
            Err(GatewayError::MethodNotAllowed { .. })
        ));
    }

    #[test]
    fn internal_methods_are_not_in_the_table() {
        let table = table();
        assert!(
            table
                .by_grpc_path("/cnlab.scheduler.v1.ServerService/WatchServer")
                .is_some()
        );
        for internal in [
            "/cnlab.scheduler.v1.RosterService/ResolveRoute",
            "/cnlab.billing.v1.CredentialService/AuthenticateToken",
            "/cnlab.node.v1.NodeService/StopWorkload",
        ] {
            assert!(table.by_grpc_path(internal).is_none(), "{internal}");
        }
    }

    #[test]
    fn templates_that_are_not_understood_are_refused() {
        for wrong in ["/v2/x", "/v1/{a=**}", "/v1/{}", "/v1//x", "/v1/*"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
