//! The API's description as OpenAPI 3.1, from the same descriptors and comments.

use std::collections::BTreeMap;

use prost_reflect::{
    DescriptorPool, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor,
};
use serde_json::{Map, Value, json};

use crate::transcode::table::{Rpc, Table};

/// The document as text.
#[must_use]
pub fn document(table: &Table) -> String {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut schemas = Schemas {
        pool: table.pool(),
        found: BTreeMap::new(),
    };
    for rpc in table.rpcs() {
        let operation = operation(rpc, &mut schemas);
        paths
            .entry(&rpc.template)
            .or_default()
            .insert(rpc.method.as_str().to_ascii_lowercase(), operation);
    }
    let mut found = schemas.found;
    found.insert("Problem".to_owned(), problem());
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "CNLab",
            "version": "v1",
            "description": "Everything that the cnlab command does. Bodies are canonical protobuf JSON: 64-bit numbers are \
                            strings, times are RFC 3339, spans are seconds with an s.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Problem": {
                    "description": "What went wrong, and what to do about it.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
            },
            "schemas": found,
        },
    });
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn operation(rpc: &Rpc, schemas: &mut Schemas<'_>) -> Value {
    let service = rpc.descriptor.parent_service();
    let mut operation = Map::new();
    operation.insert("operationId".to_owned(), rpc.descriptor.name().into());
    operation.insert(
        "tags".to_owned(),
        json!([service.name().trim_end_matches("Service")]),
    );
    if let Some(text) = comment(&rpc.descriptor.parent_file(), rpc.descriptor.path()) {
        operation.insert("description".to_owned(), text.into());
    }
    let variables: Vec<&str> = rpc.variables().collect();
    let mut parameters = Vec::new();
    for field in rpc.input.fields() {
        let in_path = variables.contains(&field.name());
        if !in_path && rpc.takes_body {
            continue;
        }
        let mut parameter = Map::new();
        parameter.insert(
            "name".to_owned(),
            if in_path {
                field.name()
            } else {
                field.json_name()
            }
            .into(),
        );
        parameter.insert(
            "in".to_owned(),
            if in_path { "path" } else { "query" }.into(),
        );
        if in_path {
            parameter.insert("required".to_owned(), true.into());
        }
        if let Some(text) = comment(&field.parent_file(), field.path()) {
            parameter.insert("description".to_owned(), text.into());
        }
        parameter.insert("schema".to_owned(), schemas.of_field(&field));
        parameters.push(Value::Object(parameter));
    }
    if rpc.method != http::Method::GET {
        parameters.push(json!({
            "name": "idempotency-key",
            "in": "header",
            "description": "Repeating a request with the same key has one effect and one answer.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 128 },
        }));
    }
    if !parameters.is_empty() {
        operation.insert("parameters".to_owned(), parameters.into());
    }
    if rpc.takes_body {
        operation.insert(
            "requestBody".to_owned(),
            request_body(rpc, &variables, schemas),
        );
    }
    let answer = schemas.of_message(&rpc.output);
    let (kind, description) = if rpc.streams {
        (
            "text/event-stream",
            "A stream of events. The data of each is one message as JSON; `end` or `error` comes last.",
        )
    } else {
        ("application/json", "Done.")
    };
    operation.insert(
        "responses".to_owned(),
        json!({
            "200": { "description": description, "content": { kind: { "schema": answer } } },
            "default": { "$ref": "#/components/responses/Problem" },
        }),
    );
    Value::Object(operation)
}

/// The body without the fields that the path gives.
fn request_body(rpc: &Rpc, variables: &[&str], schemas: &mut Schemas<'_>) -> Value {
    let schema = if variables.is_empty() {
        schemas.of_message(&rpc.input)
    } else {
        schemas.object(&rpc.input, |field| !variables.contains(&field.name()))
    };
    json!({ "content": { "application/json": { "schema": schema } } })
}

struct Schemas<'a> {
    pool: &'a DescriptorPool,
    found: BTreeMap<String, Value>,
}

impl Schemas<'_> {
    fn of_message(&mut self, message: &MessageDescriptor) -> Value {
        match message.full_name() {
            "google.protobuf.Timestamp" => json!({ "type": "string", "format": "date-time" }),
            "google.protobuf.Duration" => {
                json!({ "type": "string", "pattern": "^-?[0-9]+(\\.[0-9]{1,9})?s$" })
            }
            "google.protobuf.Empty" | "google.protobuf.Struct" => json!({ "type": "object" }),
            _ => {
                let name = self.name(message.full_name(), message.name());
                if !self.found.contains_key(&name) {
                    // First a placeholder: a message may hold itself.
                    self.found.insert(name.clone(), Value::Null);
                    let schema = self.object(message, |_| true);
                    self.found.insert(name.clone(), schema);
                }
                reference(&name)
            }
        }
    }

    fn object(
        &mut self,
        message: &MessageDescriptor,
        keep: impl Fn(&FieldDescriptor) -> bool,
    ) -> Value {
        let mut properties = Map::new();
        for field in message.fields().filter(|field| keep(field)) {
            let mut schema = self.of_field(&field);
            if let Some(text) = comment(&field.parent_file(), field.path())
                && let Value::Object(schema) = &mut schema
            {
                // OpenAPI 3.1 allows a description beside a reference.
                schema.insert("description".to_owned(), text.into());
            }
            properties.insert(field.json_name().to_owned(), schema);
        }
        let mut object = Map::new();
        object.insert("type".to_owned(), "object".into());
        if let Some(text) = comment(&message.parent_file(), message.path()) {
            object.insert("description".to_owned(), text.into());
        }
        object.insert("properties".to_owned(), properties.into());
        object.insert("additionalProperties".to_owned(), false.into());
        Value::Object(object)
    }

    fn of_field(&mut self, field: &FieldDescriptor) -> Value {
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                return json!({ "type": "object" });
            };
            let value = self.of_kind(&entry.map_entry_value_field().kind());
            return json!({ "type": "object", "additionalProperties": value });
        }
        let one = self.of_kind(&field.kind());
        if field.is_list() {
            json!({ "type": "array", "items": one })
        } else {
            one
        }
    }

    fn of_kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Bool => json!({ "type": "boolean" }),
            Kind::String => json!({ "type": "string" }),
            Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                json!({ "type": "integer", "format": "int32" })
            }
            Kind::Uint32 | Kind::Fixed32 => {
                json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX })
            }
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                json!({ "type": "string", "pattern": "^-?[0-9]{1,19}$" })
            }
            Kind::Uint64 | Kind::Fixed64 => json!({ "type": "string", "pattern": "^[0-9]{1,20}$" }),
            Kind::Float | Kind::Double => json!({ "type": "number" }),
            Kind::Message(message) => self.of_message(message),
            Kind::Enum(choices) => self.of_enum(choices),
        }
    }

    fn of_enum(&mut self, choices: &EnumDescriptor) -> Value {
        let name = self.name(choices.full_name(), choices.name());
        if !self.found.contains_key(&name) {
            let file = choices.parent_file();
            let mut text = comment(&file, choices.path()).unwrap_or_default();
            for value in choices.values() {
                if let Some(meaning) = comment(&file, value.path()) {
                    let gap = if text.is_empty() { "" } else { "\n" };
                    text = format!("{text}{gap}- `{}`: {meaning}", value.name());
                }
            }
            let values: Vec<_> = choices
                .values()
                .map(|value| value.name().to_owned())
                .collect();
            let mut schema = json!({ "type": "string", "enum": values });
            if !text.is_empty() {
                schema["description"] = text.into();
            }
            self.found.insert(name.clone(), schema);
        }
        reference(&name)
    }

    /// The short name where it is clear, else the full one.
    fn name(&self, full: &str, short: &str) -> String {
        let same = self
            .pool
            .all_messages()
            .filter(|message| message.name() == short)
            .count()
            + self
                .pool
                .all_enums()
                .filter(|choices| choices.name() == short)
                .count();
        if same > 1 || short == "Problem" {
            full.to_owned()
        } else {
            short.to_owned()
        }
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn problem() -> Value {
    json!({
        "type": "object",
        "description": "An error as RFC 9457 writes it.",
        "properties": {
            "type": { "type": "string", "format": "uri" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "What happened." },
            "reason": { "type": "string", "description": "Stable name of this error." },
            "cause": { "type": "string", "description": "The cause in its own words." },
            "field": { "type": "string", "description": "The field at fault." },
            "try": { "type": "string", "description": "What to do about it." },
            "trace_id": { "type": "string", "description": "The id to quote." },
        },
        "required": ["type", "title", "status", "detail", "reason"],
    })
}

/// The comment at a place of a file.
fn comment(file: &FileDescriptor, path: &[i32]) -> Option<String> {
    let info = file.file_descriptor_proto().source_code_info.as_ref()?;
    let location = info
        .location
        .iter()
        .find(|location| location.path == path)?;
    let text: Vec<_> = location.leading_comments().lines().map(str::trim).collect();
    let text = text.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}
