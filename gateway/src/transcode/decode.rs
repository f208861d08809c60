//! JSON, query and path into an encoded protobuf message.
//!
//! **Invariant**: what is not understood is refused with the path of the field, never
//! ignored.

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use crate::{
    error::GatewayError,
    transcode::{table::Variables, text},
};

/// A refusal that names a field.
pub(super) fn field(path: impl Into<String>, problem: impl Into<String>) -> GatewayError {
    GatewayError::Field {
        field: path.into(),
        problem: problem.into(),
    }
}

/// The message that a JSON body and the variables of the path stand for. An empty body is
/// an empty object.
///
/// # Errors
/// When the body is no JSON object of this type, or contradicts the path.
pub fn from_json(
    message: &MessageDescriptor,
    body: &[u8],
    variables: &Variables,
) -> Result<Bytes, GatewayError> {
    let value = if body.iter().all(u8::is_ascii_whitespace) {
        Value::Object(Map::new())
    } else {
        serde_json::from_slice(body).map_err(|error| GatewayError::Syntax(error.to_string()))?
    };
    let Value::Object(mut object) = value else {
        return Err(GatewayError::Syntax("expected an object".to_owned()));
    };
    bind(message, &mut object, variables)?;
    encode(message, object)
}

/// The message that a query and the variables of the path stand for.
///
/// # Errors
/// When a parameter is no field of this type.
pub fn from_query(
    message: &MessageDescriptor,
    query: &str,
    variables: &Variables,
) -> Result<Bytes, GatewayError> {
    let mut object = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = |part| {
            text::decode(part, true).ok_or_else(|| field(name, "broken escapes in the query"))
        };
        let name = decoded(name)?;
        put(message, &mut object, &name, &name, &decoded(value)?)?;
    }
    bind(message, &mut object, variables)?;
    encode(message, object)
}

/// Puts the path's variables in; they win, but must not be contradicted.
fn bind(
    message: &MessageDescriptor,
    object: &mut Map<String, Value>,
    variables: &Variables,
) -> Result<(), GatewayError> {
    for (name, value) in variables {
        let descriptor = message.get_field_by_name(name);
        for key in [
            Some(name.as_str()),
            descriptor.as_ref().map(FieldDescriptor::json_name),
        ]
        .into_iter()
        .flatten()
        {
            if let Some(other) = object.remove(key)
                && other.as_str() != Some(value)
            {
                return Err(field(
                    name,
                    "is given by the path, and the request says something else",
                ));
            }
        }
        object.insert(name.clone(), Value::String(value.clone()));
    }
    Ok(())
}

fn find(message: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    message
        .get_field_by_json_name(name)
        .or_else(|| message.get_field_by_name(name))
}

/// Puts one query parameter where its dotted path says.
fn put(
    message: &MessageDescriptor,
    object: &mut Map<String, Value>,
    whole: &str,
    path: &str,
    text: &str,
) -> Result<(), GatewayError> {
    let (name, rest) = path
        .split_once('.')
        .map_or((path, None), |(name, rest)| (name, Some(rest)));
    let descriptor = find(message, name).ok_or_else(|| field(whole, "there is no such field"))?;
    let key = descriptor.json_name().to_owned();
    if let Some(rest) = rest {
        let Kind::Message(inner) = descriptor.kind() else {
            return Err(field(whole, "there is no such field"));
        };
        if descriptor.is_list() || descriptor.is_map() {
            return Err(field(whole, "cannot be given in a query"));
        }
        let Value::Object(nested) = object
            .entry(key)
            .or_insert_with(|| Value::Object(Map::new()))
        else {
            return Err(field(whole, "is given twice"));
        };
        return put(&inner, nested, whole, rest, text);
    }
    let value = scalar(&descriptor, text).map_err(|problem| field(whole, problem))?;
    if descriptor.is_list() {
        if let Value::Array(items) = object
            .entry(key)
            .or_insert_with(|| Value::Array(Vec::new()))
        {
            items.push(value);
        }
        return Ok(());
    }
    match object.insert(key, value) {
        Some(_) => Err(field(whole, "is given twice")),
        None => Ok(()),
    }
}

/// A query's text as the JSON value that the field would have.
fn scalar(descriptor: &FieldDescriptor, text: &str) -> Result<Value, &'static str> {
    match descriptor.kind() {
        Kind::Bool => match text {
            // `?follow` alone means yes.
            "true" | "1" | "" => Ok(Value::Bool(true)),
            "false" | "0" => Ok(Value::Bool(false)),
            _ => Err("is neither true nor false"),
        },
        Kind::Enum(_) => Ok(text
            .parse::<i32>()
            .map_or_else(|_| Value::from(text), Value::from)),
        Kind::Message(message) if !message.full_name().starts_with("google.protobuf.") => {
            Err("is an object: name one of its fields")
        }
        // Canonical JSON takes numbers, times and spans as texts.
        _ => Ok(Value::from(text)),
    }
}

fn encode(message: &MessageDescriptor, object: Map<String, Value>) -> Result<Bytes, GatewayError> {
    let value = Value::Object(object);
    match DynamicMessage::deserialize(message.clone(), &value) {
        Ok(message) => Ok(message.encode_to_vec().into()),
        Err(error) => {
            let (path, problem) =
                locate(message, &value).unwrap_or((String::new(), error.to_string()));
            Err(field(path, problem))
        }
    }
}

/// Finds the innermost field at fault by reading every field alone.
fn locate(message: &MessageDescriptor, value: &Value) -> Option<(String, String)> {
    for (name, value) in value.as_object()? {
        let alone = |value: Value| {
            let object = Value::Object(Map::from_iter([(name.clone(), value)]));
            DynamicMessage::deserialize(message.clone(), &object).err()
        };
        let Some(error) = alone(value.clone()) else {
            continue;
        };
        let Some(descriptor) = find(message, name) else {
            return Some((name.clone(), "there is no such field".to_owned()));
        };
        let inner = match descriptor.kind() {
            Kind::Message(inner) if !inner.full_name().starts_with("google.protobuf.") => {
                Some(inner)
            }
            _ => None,
        };
        if descriptor.is_list()
            && let Value::Array(items) = value
        {
            for (index, item) in items.iter().enumerate() {
                if let Some(error) = alone(Value::Array(vec![item.clone()])) {
                    let here = format!("{name}[{index}]");
                    return Some(
                        below(here, inner.as_ref(), item)
                            .unwrap_or_else(|here| (here, error.to_string())),
                    );
                }
            }
        }
        return Some(
            below(name.clone(), inner.as_ref(), value)
                .unwrap_or_else(|here| (here, error.to_string())),
        );
    }
    // Every field is right alone: two of them exclude each other.
    None
}

fn below(
    here: String,
    inner: Option<&MessageDescriptor>,
    value: &Value,
) -> Result<(String, String), String> {
    match inner.and_then(|inner| locate(inner, value)) {
        Some((path, problem)) => Ok((format!("{here}.{path}"), problem)),
        None => Err(here),
    }
}

#[cfg(test)]
mod tests {
    use cnlab_proto::{model::v1 as model, scheduler::v1 as pb};
    use prost_reflect::DescriptorPool;

    use super::*;

    fn descriptor(name: &str) -> MessageDescriptor {
        let pool = DescriptorPool::decode(cnlab_proto::DESCRIPTOR_SET).unwrap();
        pool.get_message_by_name(name).unwrap()
    }

    fn refused(name: &str, json: &str) -> (String, String) {
        match from_json(&descriptor(name), json.as_bytes(), &vec![]) {
            Err(GatewayError::Field { field, problem }) => (field, problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn json_becomes_the_message_that_the_generated_code_reads() {
        let json = br#"{"name":"x","storageBytes":"53687091200","install_heavy":true}"#;
        let bytes = from_json(
            &descriptor("cnlab.scheduler.v1.CreateServerRequest"),
            json,
            &vec![],
        )
        .unwrap();
        let request = pb::CreateServerRequest::decode(bytes).unwrap();
        assert_eq!(request.storage_bytes, 50 << 30);
        assert!(request.install_heavy);
        let json = br#"{"grant":{"fence":7,"slices":[{"isolation":"ISOLATION_CLASS_SOFT","blocks":[{"first":3,"count":2}]}]},"eta":"1.5s","createdAt":"2026-01-02T03:04:05Z"}"#;
        let bytes = from_json(&descriptor("cnlab.scheduler.v1.Server"), json, &vec![]).unwrap();
        let server = pb::Server::decode(bytes).unwrap();
        let slice = server.grant.unwrap().slices.remove(0);
        assert_eq!(slice.isolation(), model::IsolationClass::Soft);
        assert_eq!(slice.blocks[0].first, 3);
        assert_eq!(server.eta.unwrap().nanos, 500_000_000);
    }

    #[test]
    fn the_field_at_fault_is_named_however_deep() {
        let server = "cnlab.scheduler.v1.Server";
        assert_eq!(refused(server, r#"{"nane":"x"}"#).0, "nane");
        assert_eq!(refused(server, r#"{"name":7}"#).0, "name");
        assert_eq!(
            refused(
                server,
                r#"{"grant":{"slices":[{"blocks":[{"first":1},{"first":-1}]}]}}"#
            )
            .0,
            "grant.slices[0].blocks[1].first"
        );
        assert_eq!(
            refused(server, r#"{"grant":{"slices":[{"block":[]}]}}"#).0,
            "grant.slices[0].block"
        );
        assert_eq!(
            refused(server, r#"{"runtime":{"installed":["a",1]}}"#).0,
            "runtime.installed[1]"
        );
        assert_eq!(refused(server, r#"{"state":"SLEEPING"}"#).0, "state");
        assert_eq!(
            refused(server, r#"{"createdAt":"yesterday"}"#).0,
            "createdAt"
        );
        assert_eq!(
            refused(server, r#"{"storageBytes":"99999999999999999999"}"#).0,
            "storageBytes"
        );
    }

    #[test]
    fn no_object_is_a_syntax_error() {
        for wrong in ["[", "[]", "7", "{\"a\":1}}", "nul", "\u{0}"] {
            let error = from_json(
                &descriptor("cnlab.scheduler.v1.Server"),
                wrong.as_bytes(),
                &vec![],
            )
            .unwrap_err();
            assert!(matches!(error, GatewayError::Syntax(_)), "{wrong}: {error}");
        }
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(
            from_json(
                &descriptor("cnlab.scheduler.v1.Server"),
                deep.as_bytes(),
                &vec![]
            )
            .is_err()
        );
    }

    #[test]
    fn a_query_fills_fields_of_every_kind() {
        let bytes = from_query(
            &descriptor("cnlab.scheduler.v1.GetServerLogsRequest"),
            "follow=true&tailLines=20",
            &vec![("server".to_owned(), "a/b".to_owned())],
        )
        .unwrap();
        let request = pb::GetServerLogsRequest::decode(bytes).unwrap();
        assert_eq!(
            (request.server.as_str(), request.follow, request.tail_lines),
            ("a/b", true, 20)
        );
        let bytes = from_query(
            &descriptor("cnlab.scheduler.v1.Server"),
            "state=SERVER_STATE_READY&runtime.installed=a%3D1&runtime.installed=b&grant.fence=9&name=a+b&eta=2s",
            &vec![],
        )
        .unwrap();
        let server = pb::Server::decode(bytes).unwrap();
        assert_eq!(server.runtime.as_ref().unwrap().installed, ["a=1", "b"]);
        assert_eq!(
            (server.name.as_str(), server.state()),
            ("a b", pb::ServerState::Ready)
        );
    }

    #[test]
    fn queries_that_are_not_understood_are_refused() {
        let list = descriptor("cnlab.scheduler.v1.ListServersRequest");
        for (query, name) in [
            ("pagesize=1", "pagesize"),
            ("page_size=x", "pageSize"),
            ("page_size=1&pageSize=2", "pageSize"),
            ("project.x=1", "project.x"),
        ] {
            match from_query(&list, query, &vec![]) {
                Err(GatewayError::Field { field, .. }) => assert_eq!(field, name),
                other => panic!("{query}: {other:?}"),
            }
        }
        let get = descriptor("cnlab.scheduler.v1.GetServerRequest");
        assert!(
            from_query(
                &get,
                "server=b",
                &vec![("server".to_owned(), "a".to_owned())]
            )
            .is_err()
        );
    }
}
