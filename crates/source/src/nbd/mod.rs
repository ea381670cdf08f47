//! The NBD protocol: the parts that both ends share, and a client.
//!
//! [`wire`] holds the protocol's numbers and layouts; a [`Channel`] is a socket with or without
//! TLS. A client [`connect`]s to the server of a [`Uri`], and reads from a [`Connection`].

mod channel;
mod connection;
mod dial;
mod exchanges;
mod negotiation;
mod tls;
mod uri;
pub mod wire;

pub use channel::{Channel, Socket};
pub use connection::{Connection, REQUESTS_MAX};
pub use dial::{connect, over};
pub use exchanges::{Read, Status};
pub(crate) use negotiation::violation;
pub use negotiation::{EXPORT_BYTES_MAX, Terms, Wanted};
pub use tls::{TlsClient, TlsOptions, TlsServer};
pub use uri::{Address, Uri, UriTls};
