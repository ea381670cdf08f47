//! Connecting to a server.

use std::ffi::OsStr;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use silt_format::{Error, Result};

use super::channel::{Channel, Socket};
use super::connection::Connection;
use super::negotiation::{Wanted, lost, negotiate};
use super::uri::Address;

/// Timeout for establishing a TCP connection.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// Timeout for replies once the export is open.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// Connects to a server and opens an export. `silence` is the timeout for replies until the export
/// is open.
///
/// Fails with an I/O error if the connection fails, and with the errors of the negotiation:
/// `NotFound` if the export does not exist, `Denied` if the server refuses it or the two sides do
/// not agree on TLS.
pub fn connect(address: &Address, wanted: &Wanted<'_>, silence: Duration) -> Result<Connection> {
    let socket = match address {
        Address::Tcp(host, port) => tcp(host, *port).map(Socket::Tcp),
        Address::Unix(path) => unix(path).map(Socket::Unix),
    };
    over(socket.map_err(|error| Error::io("connecting to the server", error))?, wanted, silence)
}

/// Opens an export over a connected socket.
pub fn over(socket: Socket, wanted: &Wanted<'_>, silence: Duration) -> Result<Connection> {
    let socket = Arc::new(socket);
    socket.prepare().map_err(lost)?;
    socket.set_read_timeout(Some(silence)).map_err(lost)?;
    let mut channel = Channel::new(Arc::clone(&socket));
    let terms = negotiate(&mut channel, wanted)?;
    socket.set_read_timeout(Some(SILENCE_MAX)).map_err(lost)?;
    Ok(Connection::new(channel, terms))
}

fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

fn unix(path: &OsStr) -> io::Result<UnixStream> {
    match path.as_bytes().strip_prefix(b"\0") {
        Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
        None => UnixStream::connect(path),
    }
}
