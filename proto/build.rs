//! Compiles the protos with protox (no protoc needed) and keeps the descriptor set with
//! its options, from which the gateway derives the HTTP API.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const PROTOS: &[&str] = &[
    "cnlab/model/v1/http.proto",
    "cnlab/model/v1/model.proto",
    "cnlab/scheduler/v1/server.proto",
    "cnlab/scheduler/v1/run.proto",
    "cnlab/scheduler/v1/node.proto",
    "cnlab/scheduler/v1/queue.proto",
    "cnlab/scheduler/v1/roster.proto",
    "cnlab/node/v1/node.proto",
    "cnlab/migration/v1/migration.proto",
    "cnlab/cloud/v1/cloud.proto",
    "cnlab/billing/v1/billing.proto",
];

#[expect(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=cnlab");
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true);
    for proto in PROTOS {
        compiler.open_file(proto)?;
    }
    // Encoded by the compiler itself: prost's own types would drop the HTTP options.
    let encoded = compiler.encode_file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), &encoded)?;
    tonic_prost_build::configure()
        .compile_well_known_types(false)
        .compile_fds(prost_types::FileDescriptorSet::decode(encoded.as_slice())?)?;
    Ok(())
}
