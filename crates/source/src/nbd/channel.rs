//! The socket of an NBD connection, with or without TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::Connection;

use crate::number::lock;

/// Maximum number of encrypted bytes that are read from a socket at a time.
const CIPHER_BYTES: usize = 32 << 10;
/// Maximum number of bytes that are encrypted at a time.
const PLAIN_BYTES: usize = 64 << 10;

/// A connected socket.
pub enum Socket {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP connection.
    Tcp(TcpStream),
}

impl Socket {
    /// Sets the timeout of reads; `None` for no timeout.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_read_timeout(timeout),
            Self::Tcp(socket) => socket.set_read_timeout(timeout),
        }
    }

    /// Shuts down one or both directions.
    pub fn shutdown(&self, how: Shutdown) {
        // If this fails, the connection is closed already.
        let _ = match self {
            Self::Unix(socket) => socket.shutdown(how),
            Self::Tcp(socket) => socket.shutdown(how),
        };
    }

    /// Sets the socket to send written bytes immediately, and to notice peers that are gone.
    pub fn prepare(&self) -> io::Result<()> {
        if let Self::Tcp(socket) = self {
            socket.set_nodelay(true)?;
            rustix::net::sockopt::set_socket_keepalive(socket, true)?;
        }
        Ok(())
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).read(into),
            Socket::Tcp(socket) => (&*socket).read(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).write(bytes),
            Socket::Tcp(socket) => (&*socket).write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The state of TLS.
struct Tls {
    connection: Connection,
    /// Received bytes.
    cipher: Vec<u8>,
    /// Offset in `cipher` from which they are not decrypted yet.
    from: usize,
}

impl Tls {
    /// Reads decrypted bytes into `into`, and decrypts received bytes if necessary. Returns `None`
    /// if more must be received.
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A peer that closes the connection without `close_notify` has closed it, too.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Some(0)),
                other => return other.map(Some),
            }
            // All decrypted bytes are read now. Decrypting earlier could exceed the limit of the
            // TLS library's buffer.
            let mut rest = &self.cipher[self.from..];
            if rest.is_empty() {
                return Ok(None);
            }
            self.connection.read_tls(&mut rest)?;
            self.from = self.cipher.len() - rest.len();
            self.connection.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

/// Both directions of a connection. One thread at a time may read; any thread may write.
pub struct Channel {
    socket: Arc<Socket>,
    tls: Option<Mutex<Tls>>,
    /// Held while a message is sent, so that messages are not mixed.
    sending: Mutex<()>,
}

impl Channel {
    /// Returns a channel without TLS.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self { socket, tls: None, sending: Mutex::default() }
    }

    /// Returns whether TLS is on.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Starts TLS. No bytes beyond the previous message may have been read.
    pub fn start_tls(&mut self, connection: impl Into<Connection>) -> io::Result<()> {
        let mut connection = connection.into();
        let mut socket = &*self.socket;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        self.tls = Some(Mutex::new(Tls { connection, cipher: Vec::new(), from: 0 }));
        Ok(())
    }

    /// Reads at least one byte, and returns the number of bytes read; 0 at the end.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return read_some(&self.socket, into) };
        loop {
            let mut state = lock(tls);
            if let Some(length) = state.read(into)? {
                return Ok(length);
            }
            let answers = state.connection.wants_write();
            let mut cipher = std::mem::take(&mut state.cipher);
            drop(state);
            if answers {
                self.write_all(&[])?;
            }
            cipher.resize(CIPHER_BYTES, 0);
            let received = read_some(&self.socket, &mut cipher)?;
            cipher.truncate(received);
            let mut state = lock(tls);
            (state.cipher, state.from) = (cipher, 0);
            if received == 0 {
                state.connection.read_tls(&mut io::empty())?;
                drop(state.connection.process_new_packets());
            }
        }
    }

    /// Fills `into`. Fails with `UnexpectedEof` at the end.
    pub fn read_exact(&self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => into = &mut into[length..],
            }
        }
        Ok(())
    }

    /// Sends one or more messages, with nothing in between.
    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(|send| send(bytes))
    }

    /// Sends a message in parts, with nothing in between.
    pub fn write_with(
        &self,
        write: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        let _sending = lock(&self.sending);
        let mut socket = &*self.socket;
        let Some(tls) = &self.tls else { return write(&mut |bytes| socket.write_all(bytes)) };
        let mut cipher = Vec::new();
        write(&mut |bytes| {
            // With nothing to send, pending messages of TLS itself are sent.
            let pieces = bytes.chunks(PLAIN_BYTES).chain(bytes.is_empty().then_some(bytes));
            for piece in pieces {
                cipher.clear();
                let mut state = lock(tls);
                let connection = &mut state.connection;
                let mut rest = piece;
                while !rest.is_empty() {
                    let taken = connection.writer().write(rest)?;
                    rest = &rest[taken..];
                    while connection.wants_write() {
                        connection.write_tls(&mut cipher)?;
                    }
                }
                while connection.wants_write() {
                    connection.write_tls(&mut cipher)?;
                }
                drop(state);
                socket.write_all(&cipher)?;
            }
            Ok(())
        })
    }

    /// Closes the connection; with TLS, sends `close_notify` first.
    pub fn close(&self) {
        if let Some(tls) = &self.tls {
            lock(tls).connection.send_close_notify();
            let _ = self.write_all(&[]);
        }
        self.socket.shutdown(Shutdown::Both);
    }
}

fn read_some(mut socket: &Socket, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
