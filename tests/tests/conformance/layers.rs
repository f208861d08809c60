//! Who may import whom (docs/architecture.md).

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::root;

/// The layer of every crate of ours; an arrow only points down.
const LAYERS: &[(&str, u8)] = &[
    ("cnlab-model", 0),
    ("cnlab-proto", 1),
    ("scheduler-core", 1),
    ("node-core", 1),
    ("billing-core", 1),
    ("cnlab-service", 2),
    ("cnlab-db", 2),
    ("cnlab-lease", 2),
    ("scheduler-sim", 2),
    ("node-sandbox", 2),
    ("gateway", 3),
    ("scheduler-svc", 3),
    ("node-svc", 3),
    ("migration-svc", 3),
    ("cloud-svc", 3),
    ("billing-svc", 3),
    ("cnlab-up", 4),
    ("cnlab", 5),
    ("cnlab-tests", 5),
    ("xtask", 5),
    ("cnlab-testkit", 2),
];

/// What a pure core may use from outside.
const CORE_MAY_USE: &[&str] = &["cnlab-model", "serde", "thiserror"];

/// Libraries that only one crate may name, because it owns what they reach.
const OWNERS: &[(&str, &[&str])] = &[
    ("redis", &["cnlab-lease"]),
    ("nvml-wrapper", &["node-svc"]),
    ("figment", &["cnlab-service"]),
    ("opentelemetry", &["cnlab-service"]),
    ("opentelemetry-otlp", &["cnlab-service"]),
    ("opentelemetry_sdk", &["cnlab-service"]),
    ("clap", &["cnlab-service", "cnlab", "xtask"]),
    (
        "sea-orm",
        &[
            "cnlab-db",
            "scheduler-svc",
            "billing-svc",
            "migration-svc",
            "cloud-svc",
        ],
    ),
    (
        "anyhow",
        &["cnlab", "cnlab-up", "cnlab-tests", "cnlab-testkit", "xtask"],
    ),
];

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .unwrap()
}

/// Crate → what it links in a normal build.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    metadata()
        .packages
        .iter()
        .map(|package| {
            let names = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind == DependencyKind::Normal)
                .map(|dependency| dependency.name.clone())
                .collect();
            (package.name.to_string(), names)
        })
        .collect()
}

fn layer(name: &str) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(each, _)| *each == name)
        .map(|(_, layer)| *layer)
}

#[test]
fn every_crate_has_a_layer_and_arrows_point_down() {
    let mut faults = Vec::new();
    for (name, uses) in dependencies() {
        let Some(own) = layer(&name) else {
            faults.push(format!(
                "{name} has no layer: give it one here and in docs/architecture.md"
            ));
            continue;
        };
        for used in uses {
            // The suites are made of the testkit; nothing else links it.
            if used == "cnlab-testkit" && name == "cnlab-tests" {
                continue;
            }
            if used == "cnlab-testkit" {
                faults.push(format!("{name} links cnlab-testkit outside its tests"));
            }
            if let Some(other) = layer(&used)
                && other >= own
            {
                faults.push(format!(
                    "{name} (layer {own}) imports {used} (layer {other})"
                ));
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn cores_use_nothing_from_outside_but_the_list() {
    for (name, uses) in dependencies() {
        if name.ends_with("-core") {
            for used in uses {
                assert!(CORE_MAY_USE.contains(&used.as_str()), "{name} uses {used}");
            }
        }
    }
}

#[test]
fn a_core_belongs_to_its_service_only() {
    for (name, uses) in dependencies() {
        for used in uses {
            if let Some(stem) = used.strip_suffix("-core")
                && layer(&used).is_some()
            {
                // The simulator drives the core where no service is.
                assert!(
                    [format!("{stem}-svc"), format!("{stem}-sim")].contains(&name),
                    "{name} imports another service's core"
                );
            }
        }
    }
}

#[test]
fn libraries_with_an_owner_are_named_by_it_only() {
    for (name, uses) in dependencies() {
        for (library, owners) in OWNERS {
            assert!(
                !uses.contains(*library) || owners.contains(&name.as_str()),
                "{name} names {library}"
            );
        }
    }
}

#[test]
fn services_are_folder_package_and_binary_of_one_name() {
    for package in metadata().packages {
        if layer(&package.name) == Some(3) {
            let folder = package.manifest_path.parent().unwrap();
            assert_eq!(folder.file_name(), Some(package.name.as_str()));
            assert!(
                package
                    .targets
                    .iter()
                    .any(|target| target.is_bin() && target.name == package.name.as_str())
            );
            assert!(
                folder.join("README.md").is_file(),
                "{} has no README.md",
                package.name
            );
        }
    }
}
