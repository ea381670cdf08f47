//! A read-only NBD server: the volumes of snapshots as block devices.
//!
//! [`Server::run`] accepts connections until it is stopped. Each connection has a thread that
//! negotiates and reads requests. It answers requests whose data is in memory itself; a few other
//! threads of the connection do the rest, and reply in any order. A client that does not read its
//! replies blocks only its own threads. A connection never holds more than
//! [`CONNECTION_BYTES_MAX`], whatever the client sends.

mod exports;
mod handshake;
mod log_limit;
pub mod options;
mod reply;
mod server;
mod status;
mod transmission;

pub use exports::Exports;
pub use server::{Listener, Server, ServerOptions};
pub use silt_source::nbd::{TlsOptions, TlsServer};

/// Most bytes that a connection holds beside its threads' stacks: a reply of each thread, and the
/// requests that wait.
pub const CONNECTION_BYTES_MAX: usize =
    transmission::THREADS_MAX * transmission::PIECE_BYTES + options::OPTION_BYTES_MAX;
