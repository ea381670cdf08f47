//! A read-only NBD server: the volumes of snapshots as block devices.
//!
//! [`Server::run`] accepts connections until it is told to stop. Each connection has a thread that
//! negotiates and reads requests, and answers those itself whose data is in memory; the rest goes
//! to a few threads of the connection, which reply as they finish, in any order. A client that does
//! not take its replies keeps only its own threads waiting. Nothing that a client sends makes a
//! connection hold more than [`CONNECTION_BYTES_MAX`].

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
