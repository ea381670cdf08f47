//! A socket of an NBD connection, perhaps with TLS above it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::Connection;

use crate::number::lock;

/// Bytes that are read from a socket at once below TLS.
const CIPHER_BYTES: usize = 32 << 10;
/// Bytes that are encrypted at once.
const PLAIN_BYTES: usize = 64 << 10;

/// A connected socket.
pub enum Socket {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP connection.
    Tcp(TcpStream),
}

impl Socket {
    /// How long a read may wait; none for any time.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_read_timeout(timeout),
            Self::Tcp(socket) => socket.set_read_timeout(timeout),
        }
    }

    /// Ends one or both directions.
    pub fn shutdown(&self, how: Shutdown) {
        // It is gone already if this fails.
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

/// TLS, and what was received and not decrypted yet.
struct Tls {
    connection: Connection,
    cipher: Vec<u8>,
    from: usize,
}

impl Tls {
    /// Decrypts what was received until there is something to read. Returns `None` if more must be
    /// received.
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A peer that hangs up without saying so in TLS has hung up all the same.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Some(0)),
                other => return other.map(Some),
            }
            // Only once all is read that was decrypted: there is a limit to that.
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

/// A connection's two directions. One thread reads; any thread writes.
pub struct Channel {
    socket: Arc<Socket>,
    tls: Option<Mutex<Tls>>,
    /// Held while something is sent, so that messages stay whole.
    sending: Mutex<()>,
}

impl Channel {
    /// A channel without TLS.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self { socket, tls: None, sending: Mutex::default() }
    }

    /// Whether TLS is on.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// The socket below.
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

    /// Reads some bytes, 0 at the end.
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

    /// Reads exactly as many bytes as fit.
    pub fn read_exact(&self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => into = &mut into[length..],
            }
        }
        Ok(())
    }

    /// Sends a whole message, or several, with nothing in between.
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
            // With nothing to send, what TLS itself has to say is sent.
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

    /// Says goodbye where TLS has a word for it, and hangs up.
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
