//! Tests of what many hosts do together.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that meets an unexpected error has failed, and says what it skips"
)]

mod agents;
mod applications;
mod asking;
mod between;
mod calendar;
mod conformance;
mod counting;
mod index;
mod local;
mod nats;
mod node_messages;
mod nodes;
mod rounds;
mod three;
