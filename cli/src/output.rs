//! The four forms in which every command writes its result.
//!
//! **Invariants**: stdout carries data only; in the machine forms it is one document per
//! result with `apiVersion` and `kind` at the top and the names of the HTTP API below.

pub mod json;
pub mod name;
pub mod table;
pub mod yaml;

use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Map, Value};

use crate::error::{Exit, Failure, Result};

/// The version of the machine-readable forms.
pub const API_VERSION: &str = "cnlab/v1";

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
    /// Names only, one a line, for use in other commands.
    Name,
}

/// A machine-readable result.
#[derive(Debug, Clone)]
pub struct Document(Map<String, Value>);

impl Document {
    /// A document of this kind without content.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        let mut fields = Map::new();
        fields.insert("apiVersion".to_owned(), API_VERSION.into());
        fields.insert("kind".to_owned(), kind.into());
        Self(fields)
    }

    /// A document with the fields of a message, named as in the HTTP API.
    ///
    /// # Errors
    /// When `message_name` is no message of ours; that is a defect.
    pub fn of(kind: &str, message_name: &str, message: &impl prost::Message) -> Result<Self> {
        let mut document = Self::new(kind);
        let fields = encode(message_name, message).map_err(|problem| {
            Failure::new(Exit::Error, "INTERNAL", format!("{kind} cannot be written"))
                .caused_by(problem)
        })?;
        document.0.extend(fields);
        Ok(document)
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// The whole as a value.
    #[must_use]
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// The document as text in this form, which ends with a line feed.
    ///
    /// # Errors
    /// When it cannot be written; that is a defect.
    pub fn render(self, format: Format) -> Result<String> {
        match format {
            Format::Yaml => yaml::render(&self.into_value()),
            Format::Json | Format::Table | Format::Name => json::render(&self.into_value()),
        }
    }
}

/// The failure as a document.
#[must_use]
pub fn failure(failure: &Failure) -> Document {
    let facts = failure.facts();
    let mut document = Document::new("Error")
        .with("reason", facts.reason.as_str())
        .with("message", facts.message.as_str());
    for (name, value) in [
        ("cause", &facts.cause),
        ("tryThis", &facts.try_this),
        ("field", &facts.field),
        ("traceId", &facts.trace_id),
    ] {
        if let Some(value) = value {
            document = document.with(name, value.as_str());
        }
    }
    document.with("exitCode", facts.exit.code())
}

fn encode(message_name: &str, message: &impl prost::Message) -> Result<Map<String, Value>, String> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    let pool = POOL
        .get_or_init(|| DescriptorPool::decode(cnlab_proto::DESCRIPTOR_SET).ok())
        .as_ref()
        .ok_or("the descriptors cannot be read")?;
    let descriptor = pool
        .get_message_by_name(message_name)
        .ok_or_else(|| format!("no message is called {message_name}"))?;
    let mut dynamic = DynamicMessage::new(descriptor);
    dynamic
        .transcode_from(message)
        .map_err(|error| error.to_string())?;
    // Fields with their zero value are written too: a script need not know what absent means.
    let options = SerializeOptions::new().skip_default_fields(false);
    match dynamic.serialize_with_options(serde_json::value::Serializer, &options) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => Err(format!("{other} is no object")),
        Err(error) => Err(error.to_string()),
    }
}
