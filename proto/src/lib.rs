//! The wire contract of every CNLab service, compiled from the protos beside this crate.
//!
//! **Invariant**: nothing here decides anything; a message means the same in every service.
#![expect(
    clippy::match_single_binding,
    reason = "generated for a service without methods"
)]

pub mod convert;

/// Every proto of this crate with its options and comments, as an encoded
/// `FileDescriptorSet`. Reflection, transcoding and OpenAPI derive from it.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Shared nouns: slices, grants, GPUs, failures, and the HTTP option.
pub mod model {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("cnlab.model.v1");
    }
}

/// Servers, runs, catalogue and node roster.
pub mod scheduler {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("cnlab.scheduler.v1");
    }
}

/// Workloads on one node.
pub mod node {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("cnlab.node.v1");
    }
}

/// Live migrations.
pub mod migration {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("cnlab.migration.v1");
    }
}

/// Rented machines.
pub mod cloud {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("cnlab.cloud.v1");
    }
}

/// Accounts, credentials and usage.
pub mod billing {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("cnlab.billing.v1");
    }
}
