//! What bytes come and go through: a socket, perhaps with TLS above it.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use silt_format::{Error, Result};

use crate::catalog::lock;

/// Bytes that are read from a socket at once below TLS.
const CIPHER_BYTES: usize = 32 << 10;
/// Bytes that are encrypted at once.
const PLAIN_BYTES: usize = 64 << 10;
/// Largest file of certificates or keys.
const PEM_BYTES_MAX: u64 = 1 << 20;

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

    /// Sends what is written at once, and notices peers that are gone.
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

/// How a server does TLS.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// A PEM file with the server's certificate and those that lead to its authority.
    pub certificate: PathBuf,
    /// A PEM file with the certificate's private key.
    pub key: PathBuf,
    /// A PEM file with the authorities that clients' certificates must be of; none to let in
    /// clients without certificates.
    pub client_authority: Option<PathBuf>,
}

impl TlsOptions {
    /// Reads the files. Fails as `Invalid` if they hold no usable certificates or keys.
    pub fn load(&self) -> Result<Arc<ServerConfig>> {
        let wrong =
            |path: &PathBuf, why: String| Error::invalid(format!("{}: {why}", path.display()));
        let certificates = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>> {
            let found: std::result::Result<Vec<_>, _> =
                CertificateDer::pem_reader_iter(open(path)?).collect();
            let found = found.map_err(|error| wrong(path, error.to_string()))?;
            if found.is_empty() {
                return Err(wrong(path, "it has no certificate".to_owned()));
            }
            Ok(found)
        };
        let key = PrivateKeyDer::from_pem_reader(open(&self.key)?);
        let key = key.map_err(|error| wrong(&self.key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid(error.to_string()))?;
        let config = match &self.client_authority {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| wrong(path, error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                config.with_client_cert_verifier(
                    verifier.map_err(|error| wrong(path, error.to_string()))?,
                )
            }
        };
        let chain = certificates(&self.certificate)?;
        let config = config.with_single_cert(chain, key);
        config.map(Arc::new).map_err(|error| wrong(&self.certificate, error.to_string()))
    }
}

fn open(path: &PathBuf) -> Result<BufReader<io::Take<File>>> {
    let file = File::open(path);
    let file = file.map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    Ok(BufReader::new(file.take(PEM_BYTES_MAX)))
}

/// A connection's two directions. One thread reads; any thread writes.
pub struct Channel {
    socket: Arc<Socket>,
    tls: Option<Mutex<ServerConnection>>,
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

    /// Goes on with TLS; nothing may have been read beyond what was asked for.
    pub fn start_tls(&mut self, config: Arc<ServerConfig>) -> io::Result<()> {
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut socket = &*self.socket;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        self.tls = Some(Mutex::new(connection));
        Ok(())
    }

    /// Reads some bytes, 0 at the end.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return read_some(&self.socket, into) };
        let mut cipher = vec![0; CIPHER_BYTES];
        loop {
            match lock(tls).reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Who hangs up without saying so in TLS has hung up all the same.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            let length = read_some(&self.socket, &mut cipher)?;
            let mut rest = &cipher[..length];
            let mut connection = lock(tls);
            if length == 0 {
                connection.read_tls(&mut io::empty())?;
                drop(connection.process_new_packets());
                continue;
            }
            while !rest.is_empty() {
                connection.read_tls(&mut rest)?;
                connection.process_new_packets().map_err(io::Error::other)?;
            }
            let answers = connection.wants_write();
            drop(connection);
            if answers {
                self.write_all(&[])?;
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
                let mut connection = lock(tls);
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
                drop(connection);
                socket.write_all(&cipher)?;
            }
            Ok(())
        })
    }

    /// Says goodbye where TLS has a word for it, and hangs up.
    pub fn close(&self) {
        if let Some(tls) = &self.tls {
            lock(tls).send_close_notify();
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
