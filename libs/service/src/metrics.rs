//! Numbers about a service, exported as OTLP where telemetry has an endpoint.
//!
//! Names are `cnlab_<service>_<what>_<unit>`. An instrument is made once, after telemetry
//! was set up (in `Service::build`), and kept: one that is made before stays silent.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};

const SCOPE: &str = "cnlab";
/// From a fast RPC to a slow environment build, in seconds.
const BOUNDS: [f64; 14] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0,
];

/// How long something took, in seconds, by labels.
#[derive(Debug, Clone)]
pub struct Durations(Histogram<f64>);

impl Durations {
    /// The histogram of this name.
    #[must_use]
    pub fn named(name: &'static str, description: &'static str) -> Self {
        let meter = global::meter(SCOPE);
        let histogram = meter
            .f64_histogram(name)
            .with_description(description)
            .with_unit("s")
            .with_boundaries(BOUNDS.to_vec());
        Self(histogram.build())
    }

    /// Adds one observation.
    pub fn record(&self, took: Duration, labels: &[(&'static str, &str)]) {
        self.0.record(took.as_secs_f64(), &key_values(labels));
    }
}

/// How often something happened, by labels.
#[derive(Debug, Clone)]
pub struct Count(Counter<u64>);

impl Count {
    /// The counter of this name.
    #[must_use]
    pub fn named(name: &'static str, description: &'static str) -> Self {
        Self(
            global::meter(SCOPE)
                .u64_counter(name)
                .with_description(description)
                .build(),
        )
    }

    /// Counts this many more.
    pub fn add(&self, more: u64, labels: &[(&'static str, &str)]) {
        self.0.add(more, &key_values(labels));
    }
}

/// How much of something there is now, by labels.
#[derive(Debug, Clone)]
pub struct Level(Gauge<u64>);

impl Level {
    /// The gauge of this name.
    #[must_use]
    pub fn named(name: &'static str, description: &'static str) -> Self {
        Self(
            global::meter(SCOPE)
                .u64_gauge(name)
                .with_description(description)
                .build(),
        )
    }

    /// Sets it.
    pub fn set(&self, value: u64, labels: &[(&'static str, &str)]) {
        self.0.record(value, &key_values(labels));
    }
}

fn key_values(labels: &[(&'static str, &str)]) -> Vec<KeyValue> {
    labels
        .iter()
        .map(|(key, value)| KeyValue::new(*key, (*value).to_owned()))
        .collect()
}
