//! The NBD protocol.

pub mod wire;
