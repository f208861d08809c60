//! The gateway over real sockets, in front of real peers: gRPC services on the kit, a hyper
//! server in the place of a node.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot set itself up has failed"
)]

mod api;
mod floods;
mod front;
mod grpc;
mod hostile;
mod node;
mod notebook;
mod peers;
mod sign_in;
mod websocket;
mod world;
